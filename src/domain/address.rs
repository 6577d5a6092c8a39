//! Ranges of IP addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// One address or a CIDR range: `203.0.113.7`, `203.0.113.0/24`, `2001:db8::/32`.
///
/// An IPv4 address is the same whether it comes as such or inside an IPv6 one (`::ffff:203.0.113.7`), as it does on a listener
/// that takes both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// Its first address, IPv4 where it is one.
    first: IpAddr,
    /// How many leading bits all its addresses share.
    bits: u32,
}

/// A text that is no range; says what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRange {
    /// What stands before the slash.
    #[error("is no IP address")]
    NotAnAddress,
    /// What stands behind the slash.
    #[error("has no prefix length that such an address can have")]
    NotAPrefix,
    /// It can be read as one address and as a range.
    #[error("has bits of an address behind its prefix")]
    HostBits,
}

impl AddressRange {
    /// Is this address in it?
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let rest = 32 - self.bits;
                (u64::from(first.to_bits()) >> rest) == (u64::from(address.to_bits()) >> rest)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                // All bits but the shared ones; a shift by all 128 of them is none that the type has.
                let shared = |address: u128| address.checked_shr(128 - self.bits).unwrap_or(0);
                shared(first.to_bits()) == shared(address.to_bits())
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// The last bits, which an address of the range is free to choose, of its first address.
    fn has_host_bits(&self) -> bool {
        match self.first {
            IpAddr::V4(first) => first.to_bits().checked_shl(self.bits).unwrap_or(0) != 0,
            IpAddr::V6(first) => first.to_bits().checked_shl(self.bits).unwrap_or(0) != 0,
        }
    }
}

impl FromStr for AddressRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let written: IpAddr = address.parse().map_err(|_| InvalidRange::NotAnAddress)?;
        let first = written.to_canonical();
        let most = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        // The prefix was counted in the address as it was written.
        let mapped = most(written) - most(first);
        let bits = match prefix {
            None => most(first),
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let bits = bits.parse::<u32>().ok().and_then(|bits| bits.checked_sub(mapped));
                bits.filter(|bits| *bits <= most(first)).ok_or(InvalidRange::NotAPrefix)?
            }
            Some(_) => return Err(InvalidRange::NotAPrefix),
        };
        let range = Self { first, bits };
        if range.has_host_bits() { Err(InvalidRange::HostBits) } else { Ok(range) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_addresses_that_share_its_prefix() {
        for (range, inside, outside) in [
            (
                "203.0.113.7",
                &["203.0.113.7", "::ffff:203.0.113.7"][..],
                &["203.0.113.6", "203.0.113.8", "::cb00:7107"][..],
            ),
            (
                "203.0.113.0/24",
                &["203.0.113.0", "203.0.113.255", "::ffff:203.0.113.9"],
                &["203.0.112.255", "203.0.114.0"],
            ),
            ("203.0.113.128/25", &["203.0.113.128", "203.0.113.255"], &["203.0.113.127"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"], &["::", "2001:db8::1"]),
            ("::ffff:203.0.113.0/120", &["203.0.113.9", "::ffff:203.0.113.9"], &["203.0.114.0"]),
            ("2001:db8::/32", &["2001:db8::1", "2001:db8:ffff::"], &["2001:db9::", "32.1.13.184"]),
            ("2001:db8::1", &["2001:db8::1"], &["2001:db8::2"]),
            ("::/0", &["::", "2001:db8::1"], &["1.2.3.4", "::ffff:1.2.3.4"]),
        ] {
            let parsed: AddressRange = range.parse().unwrap_or_else(|error| panic!("{range}: {error}"));
            for address in inside {
                assert!(parsed.contains(address.parse().unwrap()), "{range}: {address}");
            }
            for address in outside {
                assert!(!parsed.contains(address.parse().unwrap()), "{range}: {address}");
            }
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_range() {
        for (text, wrong) in [
            ("", InvalidRange::NotAnAddress),
            ("example.com", InvalidRange::NotAnAddress),
            ("203.0.113", InvalidRange::NotAnAddress),
            ("203.0.113.07", InvalidRange::NotAnAddress),
            ("203.0.113.7:80", InvalidRange::NotAnAddress),
            (" 203.0.113.7", InvalidRange::NotAnAddress),
            ("203.0.113.0/33", InvalidRange::NotAPrefix),
            ("203.0.113.0/", InvalidRange::NotAPrefix),
            ("203.0.113.0/-1", InvalidRange::NotAPrefix),
            ("203.0.113.0/+24", InvalidRange::NotAPrefix),
            ("203.0.113.0/255.255.255.0", InvalidRange::NotAPrefix),
            ("::ffff:203.0.113.0/24", InvalidRange::NotAPrefix),
            ("2001:db8::/129", InvalidRange::NotAPrefix),
            ("203.0.113.7/24", InvalidRange::HostBits),
            ("0.0.0.1/0", InvalidRange::HostBits),
            ("2001:db8::1/32", InvalidRange::HostBits),
        ] {
            assert_eq!(text.parse::<AddressRange>(), Err(wrong), "{text:?}");
        }
    }
}
