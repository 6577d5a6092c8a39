//! P9: what a lead holds stands in no log line and in no error, whatever becomes of its forward.

use std::io::{self, Write};
use std::sync::Arc;

use capgate::domain::routing::{BodyFormat, Content, FieldPart, FieldSource};
use capgate::domain::template::{Syntax, Template};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{RawBuyer, YES, buyer_with, forward, forwarder};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn p9_a_lead_in_a_url_reaches_no_log_and_no_error() {
    let lines = Lines::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(lines.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let forwarder = forwarder();
    // The digits of the lead's own field stand for what must stay private.
    let secret = "18446744073709551616";
    let by_get = |url: &str| buyer_with(url, |buyer| buyer.request.format = BodyFormat::Query);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answering = RawBuyer::answering(YES).await;
    let nonsense = RawBuyer::answering("nonsense\r\n\r\n").await;
    let endless = RawBuyer::answering("HTTP/1.1 200 OK\r\ncontent-length: 90000000\r\n\r\n").await;
    let moved = RawBuyer::answering("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n").await;
    for url in [
        answering.url(),
        nonsense.url(),
        endless.url(),
        moved.url(),
        format!("http://{closed}/leads"),
        "http://nowhere.invalid/leads".to_owned(),
        format!("https://127.0.0.1:{}/leads", answering.port()),
    ] {
        let told = format!("{:?}", forward(&forwarder, &by_get(&url)).await);
        assert!(!told.contains(secret), "{told}");
    }
    assert!(answering.requests()[0].contains(secret), "the buyer got it");

    // Leads that cannot be written at all.
    let source = "{\"a\": {{ lead.state }}, \"b\": {{ lead.big }}}";
    let template = Arc::new(Template::compile(source, Syntax::Json, jiff::tz::TimeZone::UTC).unwrap());
    let broken = buyer_with(&answering.url(), |buyer| buyer.request.content = Content::Template(template));
    let part = |number| FieldPart::Value(format!("f{number}"), FieldSource::Field("big".into()));
    let long = buyer_with(&answering.url(), |buyer| {
        buyer.request.format = BodyFormat::Query;
        buyer.request.content = Content::Fields((0..400).map(part).collect());
    });
    for (buyer, reason) in [(broken, "illegal_body"), (long, "url_too_long")] {
        let told = format!("{:?}", forward(&forwarder, &buyer).await);
        assert!(told.contains(reason) && !told.contains(secret), "{told}");
    }
    let logged = String::from_utf8(lines.0.lock().clone()).unwrap();
    assert!(logged.contains("a lead cannot be written for this buyer"), "{logged}");
    assert!(!logged.contains(secret), "{logged}");
}
