//! Addresses of Redis, as the library wants them.

/// The library lists a cluster's nodes as `?node=h:p&node=h:p` after the first.
pub(super) fn library_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| scheme.ends_with("-cluster")) else {
        return url.to_owned();
    };
    let (user, hosts) = rest.rsplit_once('@').map_or(("", rest), |(user, hosts)| (user, hosts));
    let mut hosts = hosts.trim_end_matches('/').split(',');
    let at = if user.is_empty() { "" } else { "@" };
    let mut out = format!("{scheme}://{user}{at}{}", hosts.next().unwrap_or_default());
    for (index, host) in hosts.enumerate() {
        out.push(if index == 0 { '?' } else { '&' });
        out.push_str("node=");
        out.push_str(host);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_of_a_cluster_are_listed() {
        assert_eq!(library_url("redis://h:1/2"), "redis://h:1/2");
        assert_eq!(library_url("redis-cluster://u:p@a:1,b:2,c:3"), "redis-cluster://u:p@a:1?node=b:2&node=c:3");
    }
}
