//! Standard Webhooks signatures: HMAC-SHA-256 over `{id}.{timestamp}.{body}`, under a secret that both sides have.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;

/// How far a signature's time may be from ours, into the past and into the future.
pub const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);
/// Longest `webhook-id`.
pub const ID_BYTES_MAX: usize = 255;
/// Signatures of one request that are looked at: a sender that changes its secret sends two.
const SIGNATURES_MAX: usize = 8;
/// Shortest secret, in bytes. Shorter ones can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// A secret that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// `whsec_` must be followed by base64.
    #[error("what follows whsec_ is not base64")]
    NotBase64,
    /// Can be guessed.
    #[error("is shorter than 16 bytes")]
    TooShort,
}

/// Signs and checks under one secret.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl SigningKey {
    /// Reads a secret: base64 after `whsec_`, else the bytes of the text.
    ///
    /// # Errors
    /// [`InvalidSecret`]; the secret is never part of it.
    pub fn new(secret: &str) -> Result<Self, InvalidSecret> {
        let bytes = match secret.strip_prefix("whsec_") {
            Some(text) => STANDARD.decode(text).map_err(|_| InvalidSecret::NotBase64)?,
            None => secret.as_bytes().to_vec(),
        };
        if bytes.len() < KEY_BYTES_MIN {
            return Err(InvalidSecret::TooShort);
        }
        Hmac::new_from_slice(&bytes).map(Self).map_err(|_| InvalidSecret::TooShort)
    }

    /// The value of `webhook-signature`. `unix_s` is that of `webhook-timestamp`.
    #[must_use]
    pub fn sign(&self, id: &str, unix_s: i64, body: &[u8]) -> String {
        format!("v1,{}", STANDARD.encode(self.over(id, &unix_s.to_string(), body).finalize().into_bytes()))
    }

    /// Do the three headers belong to this body, and is it fresh? `signatures` may hold several, apart by spaces. Compared in
    /// constant time.
    #[must_use]
    pub fn is_signed(&self, id: &str, timestamp: &str, signatures: &str, body: &[u8], now: Timestamp) -> bool {
        let is_whole =
            !id.is_empty() && id.len() <= ID_BYTES_MAX && timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let at = timestamp.parse().ok().and_then(|unix_s| Timestamp::from_second(unix_s).ok());
        let is_fresh = at.is_some_and(|at| at.duration_since(now).abs() <= TOLERANCE);
        let mac = self.over(id, timestamp, body);
        let is_ours = |signature: &str| {
            let decoded = signature.strip_prefix("v1,").and_then(|text| STANDARD.decode(text).ok());
            decoded.is_some_and(|bytes| mac.clone().verify_slice(&bytes).is_ok())
        };
        is_whole && is_fresh && signatures.split(' ').take(SIGNATURES_MAX).any(is_ours)
    }

    fn over(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn at(unix_s: i64) -> Timestamp {
        Timestamp::from_second(unix_s).unwrap()
    }

    #[test]
    fn the_specifications_example_is_signed_and_recognised() {
        let key = SigningKey::new(SECRET).unwrap();
        assert_eq!(key.sign(ID, 1_614_265_330, BODY), SIGNATURE);
        let is_signed = |id: &str, timestamp: &str, signatures: &str, body: &[u8], now| {
            key.is_signed(id, timestamp, signatures, body, at(now))
        };
        let now = 1_614_265_330;
        assert!(is_signed(ID, "1614265330", SIGNATURE, BODY, now));
        assert!(is_signed(ID, "1614265330", &format!("v1a,xx v1,AAAA {SIGNATURE}"), BODY, now + 300));
        assert!(is_signed(ID, "1614265330", SIGNATURE, BODY, now - 300));
        for (id, timestamp, signatures, body, now) in [
            (ID, "1614265330", SIGNATURE, BODY, now + 301),
            (ID, "1614265330", SIGNATURE, BODY, now - 301),
            (ID, "1614265331", SIGNATURE, BODY, now),
            (ID, "+1614265330", SIGNATURE, BODY, now),
            (ID, "", SIGNATURE, BODY, now),
            ("msg_other", "1614265330", SIGNATURE, BODY, now),
            ("", "1614265330", SIGNATURE, BODY, now),
            (ID, "1614265330", SIGNATURE, &b"{}"[..], now),
            (ID, "1614265330", "", BODY, now),
            (ID, "1614265330", &SIGNATURE[3..], BODY, now),
            (ID, "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1O", BODY, now),
        ] {
            assert!(!is_signed(id, timestamp, signatures, body, now), "{id} {timestamp} {signatures} {now}");
        }
        assert!(!SigningKey::new("another secret of ours").unwrap().is_signed(
            ID,
            "1614265330",
            SIGNATURE,
            BODY,
            at(now)
        ));
    }

    #[test]
    fn secrets_that_are_none_are_refused() {
        assert_eq!(SigningKey::new("whsec_???").err(), Some(InvalidSecret::NotBase64));
        assert_eq!(SigningKey::new("whsec_AAAA").err(), Some(InvalidSecret::TooShort));
        assert_eq!(SigningKey::new("").err(), Some(InvalidSecret::TooShort));
        assert!(SigningKey::new("0123456789abcdef").is_ok());
        assert_eq!(format!("{:?}", SigningKey::new(SECRET).unwrap()), "***");
    }
}
