//! Which addresses a buyer may have: a routing file must not turn the gateway into a way inside (F51).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;

/// The address in a URL whose host is an address and no name. Such a host never meets the resolver, so it is checked
/// before the call.
#[must_use]
pub fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).parse().ok()
}

/// Does the address belong to the public internet? Loopback, private, shared, link-local (cloud metadata services among
/// them), multicast, documentation and reserved ranges do not, nor does IPv6 that wraps such an IPv4 address.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let refused = match address.octets() {
        [100, second, ..] => (64..=127).contains(&second),
        [172, second, ..] => (16..=31).contains(&second),
        [0 | 10 | 127, ..]
        | [169, 254, ..]
        | [192, 168, ..]
        | [192, 0, 0 | 2, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => true,
        [first, ..] => first >= 224,
    };
    !refused
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let wrapped = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // Mapped, translated (two forms) and 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => wrapped(high, low),
        // Unspecified, loopback and the long-dead "compatible" form, which all start with 96 zero bits; local translation,
        // tunnels through unknown relays, documentation.
        [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] | [0x2001, 0 | 0xdb8, ..] | [0x3fff, ..] => false,
        [first, ..] => {
            let is_unique_local = first & 0xfe00 == 0xfc00;
            let is_link_or_site_local = first & 0xff80 == 0xfe80;
            let is_multicast = first & 0xff00 == 0xff00;
            !(is_unique_local || is_link_or_site_local || is_multicast)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f51_addresses_inside_are_refused() {
        let inside = [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
        ];
        for text in inside {
            assert!(!is_public(text.parse().unwrap()), "{text} was taken for public");
        }
        let outside = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "169.253.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
            "2606:4700::1",
            "2001:4860::1",
        ];
        for text in outside {
            assert!(is_public(text.parse().unwrap()), "{text} was refused");
        }
    }

    #[test]
    fn f51_every_spelling_of_an_address_in_a_url_is_seen() {
        for (url, address) in [
            ("http://127.1/", Some("127.0.0.1")),
            ("http://0x7f000001/", Some("127.0.0.1")),
            ("http://2130706433/", Some("127.0.0.1")),
            ("http://[::1]:8080/x", Some("::1")),
            ("https://[::ffff:a00:1]/", Some("::ffff:10.0.0.1")),
            ("https://buyer.example/", None),
        ] {
            assert_eq!(literal(&Url::parse(url).unwrap()), address.map(|text| text.parse().unwrap()), "{url}");
        }
    }
}
