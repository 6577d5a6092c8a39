//! The checks of `tests/fuzz` on bodies, heads and signatures that are spoilt at random, for a moment in every run.
//!
//! `CAPGATE_MUTATIONS_SECONDS=600 cargo test --test mutations` gives each check ten minutes; `CAPGATE_MUTATIONS_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

#[path = "../fuzz/checks.rs"]
mod checks;

/// Pieces that mean something to one of the readers.
const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\\u0061",
    b"\\u0000",
    b"\\ud83d",
    b"\\ude00",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\0",
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"null",
    b"true",
    b"false",
    b"-0",
    b"1e400",
    b"1E-7",
    b"18446744073709551616",
    b"0x10",
    b"\"a\":1,",
    b"\"email\":1,",
    b"\"f\":3,",
    b"\"test\":",
    b"\"Test\":\"1\",",
    b"\"ph\\u006fne\":\"2\",",
    b"&",
    b"=",
    b"+",
    b"%",
    b"%00",
    b"%ff",
    b"%7B",
    b"%22",
    b"test=1&",
    b"data.json=",
    b"content-length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"idempotency-key: k\r\n",
    b"prefer: wait=5\r\n",
    b"content-encoding: gzip\r\n",
    b"v1,",
    b"1614265330",
    b"whsec_",
    b"+1",
    b"ext.",
    b"[column_id=FIRST_NAME]",
    b";phone-context=",
    "é".as_bytes(),
    "🦀".as_bytes(),
    "\u{0130}".as_bytes(),
    "\u{a0}".as_bytes(),
];

fn shipped(file: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example/inputs").join(file)).expect(file)
}

fn bodies() -> Vec<Vec<u8>> {
    vec![
        shipped("google-ads.json"),
        shipped("meta.json"),
        shipped("typeform.json"),
        br#"{"first_name":"Ann","Phone_Number":"+1 (201) 555-0123","zip":"07030-1234","amount":12.50,"x":{"deep":[[{"a":null}]]}}"#.to_vec(),
        br#"{"data.json":{"email":["a@x.example"]},"deep":{"a":[1,2]},"is_test":false,"State":"n. j."}"#.to_vec(),
        format!("{{\"x\":{}{}}}", "[".repeat(31), "]".repeat(31)).into_bytes(),
        "\u{0660}201 555 0123 ext. 7".as_bytes().to_vec(),
        b"tel:+1-201-555-0123;ext=7;phone-context=example.com".to_vec(),
        b"/a/[n=v]/b~1c".to_vec(),
        br#"{"state":"NJ","x":{"a":1,"b":{"a":"t","c":[{"d":1e400,"e":-0}]}}}"#.to_vec(),
    ]
}

fn forms() -> Vec<Vec<u8>> {
    vec![
        shipped("unbounce.form"),
        b"first_name=Ann&phone=%2B1+201+555+0123&state=TX&email=a%40x.example&test=0".to_vec(),
        b"data.json={\"email\":[\"a%40x.example\"],\"e\":{\"f\":1,\"g\":2}}&deep=%5B1%5D&is_test=false".to_vec(),
    ]
}

fn heads() -> Vec<Vec<u8>> {
    vec![
        b"POST /v1/campaigns/solar/leads HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-type: application/json; charset=\"UTF-8\"\r\n\r\n".to_vec(),
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nIdempotency-Key: abc\r\nPrefer: respond-async, wait=10\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nauthorization: Bearer k\r\nx-api-key: k\r\ncontent-encoding: identity\r\n\r\n".to_vec(),
    ]
}

fn signatures() -> Vec<Vec<u8>> {
    vec![
        b"msg_1\n1614265330\nv1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n{\"test\": 2432232314}".to_vec(),
        b"msg_p5jXN8AQM9LWM0D4loKWxJek\n1614265330\nv1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,AAAA\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n{\"test\": 2432232314}".to_vec(),
        b"a\n-1614265330\nv1,\na secret of both sides\nbody".to_vec(),
    ]
}

fn spoil(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=bytes.len());
    match random.random_range(0..8) {
        0 => bytes.insert(at, random.random()),
        1 if at < bytes.len() => bytes[at] = random.random(),
        2 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
        3 => {
            let end = (at + random.random_range(0..16)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let end = (at + random.random_range(0..64)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            let to = random.random_range(0..=bytes.len());
            bytes.splice(to..to, piece);
        }
        5 => {
            let other = others.choose(random).expect("some");
            let from = random.random_range(0..=other.len());
            let end = (from + random.random_range(0..64)).min(other.len());
            bytes.splice(at..at, other[from..end].iter().copied());
        }
        6 => {
            let word = WORDS.choose(random).expect("some");
            let times = if random.random_ratio(1, 50) { random.random_range(1..200) } else { 1 };
            bytes.splice(at..at, word.repeat(times));
        }
        _ => bytes.truncate(at),
    }
}

fn run(name: &str, seeds: &[Vec<u8>], check: fn(&[u8])) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CAPGATE_MUTATIONS_SEED").unwrap_or_else(rand::random);
    let long = number("CAPGATE_MUTATIONS_SECONDS").map(Duration::from_secs);
    println!("{name}: CAPGATE_MUTATIONS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let began = Instant::now();
    let mut rounds: u64 = 0;
    // A run of its usual length is always the same for its seed, however busy the machine is.
    while long.map_or(rounds < 3_000, |long| began.elapsed() < long) {
        let mut bytes = seeds.choose(&mut random).expect("some").clone();
        for _ in 0..random.random_range(0..8) {
            spoil(&mut bytes, seeds, &mut random);
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
            println!("{name}: seed {seed}, round {rounds}: {:?}", String::from_utf8_lossy(&bytes));
            println!("{name}: bytes {bytes:?}");
            std::panic::resume_unwind(panic);
        }
        rounds += 1;
    }
    println!("{name}: {rounds} rounds in {:?}", began.elapsed());
}

#[test]
fn f59_f60_f61_f62_spoilt_bodies_are_refused_or_mean_one_thing() {
    run("body", &bodies(), checks::body);
}

#[test]
fn f60_f61_spoilt_forms_are_refused_or_mean_one_thing() {
    run("form", &forms(), checks::form);
}

#[test]
fn f43_f63_spoilt_heads_are_refused_or_have_one_reading() {
    run("header", &heads(), checks::header);
}

#[test]
fn spoilt_signatures_are_no_signatures() {
    run("signature", &signatures(), checks::signature);
}
