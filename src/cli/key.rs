//! `capgate key`: an API key for a publisher.

use std::fmt::Write as _;
use std::process::ExitCode;

use rand::TryRng as _;
use rand::rngs::SysRng;
use sha2::{Digest as _, Sha256};

/// Tells what kind of secret it is, to people and to secret scanners.
const PREFIX: &str = "cg_";

/// Prints a fresh key, once, and its SHA-256 as a line for the routing file.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "the key is this command's output")]
pub fn run() -> ExitCode {
    let mut bytes = [0_u8; 32];
    if let Err(error) = SysRng.try_fill_bytes(&mut bytes) {
        eprintln!("the system gave no random bytes: {error}");
        return ExitCode::FAILURE;
    }
    let key = format!("{PREFIX}{}", hex(&bytes));
    println!("key, shown this once:      {key}");
    println!("for the publisher's or the buyer's table: keys_sha256 = [\"{}\"]", hash_hex(&key));
    ExitCode::SUCCESS
}

/// SHA-256 of a key as the routing file holds it.
pub(super) fn hash_hex(key: &str) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Cannot fail because writing to a String has no error path.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_what_the_routing_file_expects() {
        // The first test vector of FIPS 180-2.
        assert_eq!(hash_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
