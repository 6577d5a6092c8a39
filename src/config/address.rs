//! Addresses that the gateway posts to.

use std::net::IpAddr;

use reqwest::Url;

use super::ForwardConfig;
use super::item::Item;

/// What an address looks like.
pub(super) const RIGHT: &str = "http://HOST/PATH or https://HOST/PATH";

/// Reads an address that `what` (a forward, a postback) is sent to; `hint` says where secrets belong instead.
pub(super) fn url(item: Item<'_>, forward: &ForwardConfig, what: &str, hint: &str) -> Option<Url> {
    let text = item.text()?;
    // A URL may carry a password or a token.
    let item = if text.contains(['@', '?']) { item.secret() } else { item };
    let Ok(url) = Url::parse(text) else {
        item.fail("is not a URL", RIGHT);
        return None;
    };
    if !matches!(url.scheme(), "http" | "https") {
        item.fail("is neither http nor https", RIGHT);
        return None;
    }
    if !url.username().is_empty() || url.password().is_some() {
        item.fail("carries a user name or password", hint);
        return None;
    }
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        item.fail("names no host", RIGHT);
        return None;
    };
    if url.fragment().is_some() {
        item.fail("has a #fragment, which is never sent", RIGHT);
    }
    if !forward.allow_private_addresses && is_private(host) {
        item.warn(
            format!("is a private address, so every {what} to it is refused"),
            "a public address, or forward.allow_private_addresses = true",
        );
    }
    Some(url)
}

/// Plainly private, as far as the text tells; each call checks the address that it really connects to.
fn is_private(host: &str) -> bool {
    if host == "localhost" || host.ends_with(".localhost") {
        return true;
    }
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => false,
    }
}
