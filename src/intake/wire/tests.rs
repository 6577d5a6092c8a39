use super::*;

#[test]
fn f63_a_head_with_two_readings_is_seen() {
    for good in [
        "POST / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding:  Chunked \r\nx: \r\n\r\n",
    ] {
        assert!(has_one_reading(good.as_bytes()), "{good:?}");
    }
    for bad in [
        "POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nx: a\ncontent-length: 5\r\n\r\n",
        "POST / HTTP/1.1\nx: a\r\n\r\n",
        "POST / HTTP/1.1\r\nx: a\r\n folded\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length : 5\r\n\r\n",
        "POST / HTTP/1.1\r\nx: a\rb\r\n\r\n",
        "POST / HTTP/1.1\r\nx: a\0b\r\n\r\n",
        "POST / HTTP/1.1\r\nno colon\r\n\r\n",
    ] {
        assert!(!has_one_reading(bad.as_bytes()), "{bad:?}");
    }
}

#[test]
fn f63_no_byte_beyond_a_head_or_its_body_is_handed_over() {
    let wire = Wire::new();
    let first = b"\r\nPOST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n";
    let mut bytes = first.to_vec();
    bytes.extend_from_slice(b"abcGET / HTTP/1.1\r\n\r\n");
    // However the bytes are cut, the head ends where it ends.
    for cut in 1..bytes.len() {
        let mut state = Wire::new().0.into_inner();
        let mut given = state.hand_over(&bytes[..cut]);
        if state.seen.is_none() {
            given += state.hand_over(&bytes[cut..]);
        }
        assert_eq!(given, first.len(), "cut at {cut}");
        assert_eq!(state.seen, Some(true), "cut at {cut}");
    }
    assert_eq!(wire.0.lock().hand_over(&bytes), first.len());
    assert!(wire.begin(Framing::Length(3)));
    assert_eq!(wire.0.lock().hand_over(b"abcGET / HTTP/1.1\r\n\r\n"), 3);
    wire.end(true);
    assert_eq!(wire.0.lock().hand_over(b"GET / HTTP/1.1\r\n\r\n"), 18);
    assert!(wire.begin(Framing::Length(0)));
    wire.end(true);
    assert!(!wire.begin(Framing::Length(0)), "a head that nobody saw was let through");
}

#[test]
fn f63_bytes_behind_a_chunked_body_spoil_the_connection() {
    for (body, may_go_on) in [
        (&b"3\r\nabc\r\n0\r\n\r\n"[..], true),
        (b"0\r\nTrailer: x\r\n\r\n", true),
        (b"0\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n", false),
        // A whole hidden request ends with an empty line too; then it is the unseen head that gives it away.
        (b"0\r\n\r\nPOST / HTTP/1.1\r\n\r\n", false),
    ] {
        let wire = Wire::new();
        wire.0.lock().hand_over(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n");
        assert!(wire.begin(Framing::Chunked));
        wire.0.lock().hand_over(body);
        wire.end(true);
        let hidden = body.len() > 20;
        if !hidden {
            wire.0.lock().hand_over(b"POST / HTTP/1.1\r\n\r\n");
        }
        assert_eq!(wire.begin(Framing::Length(0)), may_go_on, "{}", String::from_utf8_lossy(body));
    }
}
