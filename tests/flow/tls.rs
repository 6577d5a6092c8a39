//! Leads over TLS: certificates that change, handshakes that do not come, and HTTP/2 with what can be done with its streams.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::StubBuyer;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::headline::behaviours;
use crate::sockets::descriptors;
use crate::support::tls::{self, HTTP_2, HTTP_11, Pair, client_config, connect, shown};
use crate::support::{BuyerLine, KEY, PROMPT, Place, Process, client, get, lead, leads, routing, until};

const TLS: (&str, &str) = ("CAPGATE_INTAKE__TLS", "{ cert = \"cert.pem\", key = \"file:key.pem\" }");

/// A gateway that shows this certificate. Paths in its environment are relative to the working directory, so they stand in full.
async fn gateway(place: &Place, pair: &Pair, stub: &StubBuyer, more: &[(&'static str, &'static str)]) -> Process {
    pair.write(place.dir.path());
    let patient = "timeout_ms = 30000";
    place.write_routing(&routing(&[BuyerLine { id: "any", url: stub.url("/any"), more: patient, price: "9.00" }]));
    let folder = place.dir.path().display();
    let value =
        TLS.1.replace("cert.pem", &format!("{folder}/cert.pem")).replace("key.pem", &format!("{folder}/key.pem"));
    let variables = [&[(TLS.0, &*value.leak())], more].concat();
    let gateway = place.spawn_with("gateway.toml", "", &variables);
    gateway.until_ready().await;
    gateway
}

/// One request of HTTP/1.1 on this connection; the status, or nothing when the connection broke.
async fn post_http1<S>(stream: &mut S, key: &str, body: &str) -> Option<u16>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let request = format!(
        "POST /v1/campaigns/solar/leads HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: \
         application/json\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().ok()? {
                return head.split(' ').nth(1)?.parse().ok();
            }
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await.ok()? {
            0 => return None,
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
}

/// Publishers that post over TLS until they are told to stop, half of them over HTTP/2, on connections of 20 leads each.
struct Load {
    stop: Arc<AtomicBool>,
    taken: Arc<AtomicU32>,
    failed: Arc<AtomicU32>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(intake: std::net::SocketAddr, trusted: &[&Pair]) -> Self {
        let (stop, taken, failed) = (Arc::default(), Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        let mut load = Self { stop, taken, failed, tasks: Vec::new() };
        for task in 0..4 {
            let config = client_config(trusted, if task % 2 == 0 { &[HTTP_11] } else { &[HTTP_2] });
            let (stop, taken, failed) = (load.stop.clone(), load.taken.clone(), load.failed.clone());
            load.tasks.push(tokio::spawn(async move {
                for round in 0.. {
                    let key = |number| format!("{task}-{round}-{number}");
                    let mut statuses = Vec::new();
                    if task % 2 == 0 {
                        let Ok(mut stream) = connect(intake, &config).await else { break };
                        for number in 0..20 {
                            statuses.push(post_http1(&mut stream, &key(number), &lead(number)).await);
                        }
                    } else {
                        let http2 = tls::http2(intake, &config).await;
                        for number in 0..20 {
                            statuses.push(tls::post(&http2, &key(number), &lead(number)).await.map(|it| it.status));
                        }
                    }
                    for status in statuses {
                        // A 503 of a busy machine is an answer: what is looked for are broken connections.
                        let count = if matches!(status, Some(200 | 503)) { &taken } else { &failed };
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
                // No handshake.
                failed.fetch_add(1, Ordering::Relaxed);
            }));
        }
        load
    }

    async fn flow(&self) {
        let wanted = self.taken.load(Ordering::Relaxed) + 80;
        until("leads flow", async || self.taken.load(Ordering::Relaxed) >= wanted).await;
        assert_eq!(self.failed.load(Ordering::Relaxed), 0, "leads were lost");
    }

    async fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a publisher ends well");
        }
        assert_eq!(self.failed.load(Ordering::Relaxed), 0, "leads were lost");
        self.taken.load(Ordering::Relaxed)
    }
}

async fn tls_check(gateway: &Process) -> (u16, bool) {
    let answer = get(&client(), gateway.admin, "/readyz").await;
    let json = answer.json();
    let checks = json["checks"].as_array().cloned().unwrap_or_default();
    let check = checks.into_iter().find(|check| check["name"] == "tls").expect("a check of that name");
    (answer.status, check["ok"] == true)
}

async fn reload(gateway: &Process) -> (u16, String) {
    let answer = client().post(format!("http://{}/v1/reload", gateway.admin)).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f87_certificates_are_swapped_under_load_without_a_failed_lead_and_a_bad_pair_is_refused() {
    let stub = StubBuyer::on_loopback(behaviours(&["/any=accept"]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let folder = place.dir.path();
    let (first, second, third) = (Pair::new(), Pair::new(), Pair::new());
    let gateway = gateway(&place, &first, &stub, &[]).await;
    let any: Arc<ClientConfig> = client_config(&[&first, &second, &third], &[]);
    let intake = gateway.intake;
    assert_eq!(shown(intake, &any).await, Some(first.cert.clone()));
    // Connections that exist go on, whatever is shown to new ones.
    let mut old = connect(intake, &any).await.expect("a handshake");
    assert_eq!(post_http1(&mut old, "old-1", &lead(1)).await, Some(200));

    let load = Load::start(intake, &[&first, &second, &third]);
    load.flow().await;
    second.write(folder);
    until("the files are looked at", async || shown(intake, &any).await.as_ref() == Some(&second.cert)).await;
    load.flow().await;

    // A key that belongs to another certificate, then no certificate at all.
    std::fs::write(folder.join("key.pem"), &third.key_pem).expect("written");
    let (status, text) = reload(&gateway).await;
    assert_eq!(status, 422, "{text}");
    assert!(text.contains("does not belong to the certificate") && text.contains("\"field\":\"tls\""), "{text}");
    assert!(!text.contains("PRIVATE KEY"), "P9");
    assert_eq!(tls_check(&gateway).await, (200, false), "told, and ready all the same");
    std::fs::write(folder.join("cert.pem"), "nothing\n").expect("written");
    gateway.sh("kill -HUP");
    until("it is refused in the log", async || gateway.log().contains("holds no certificate")).await;
    assert!(gateway.log().contains("the one in force stays"));
    assert_eq!(shown(intake, &any).await, Some(second.cert.clone()));
    load.flow().await;

    third.write(folder);
    gateway.sh("kill -HUP");
    until("the signal is heard", async || shown(intake, &any).await.as_ref() == Some(&third.cert)).await;
    first.write(folder);
    assert_eq!(reload(&gateway).await.0, 200);
    assert_eq!(shown(intake, &any).await, Some(first.cert.clone()), "in force when the answer is there");
    assert_eq!(tls_check(&gateway).await, (200, true));
    load.flow().await;
    assert_eq!(post_http1(&mut old, "old-2", &lead(2)).await, Some(200), "the connection of the first certificate");
    println!("{} leads over TLS, none failed", load.end().await);
}

#[test]
fn a_bad_pair_at_the_start_is_exit_code_78_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("capgate.toml");
    std::fs::write(&file, "[intake]\ntls = { cert = \"cert.pem\", key = \"file:key.pem\" }\n").expect("written");
    let (good, other) = (Pair::new(), Pair::new());
    for (cert, key, why) in [
        (None, None, "cannot be read"),
        (Some(good.cert_pem.as_str()), None, "key.pem cannot be read"),
        (Some("no PEM"), Some(good.key_pem.as_str()), "holds no certificate"),
        (Some(&good.key_pem), Some(&good.key_pem), "holds no certificate"),
        (Some(&good.cert_pem), Some(&good.cert_pem), "holds no private key"),
        (Some(&good.cert_pem), Some(&other.key_pem), "does not belong to the certificate"),
    ] {
        for (name, text) in [("cert.pem", cert), ("key.pem", key)] {
            let path = folder.path().join(name);
            let _ = text.map_or_else(|| std::fs::remove_file(&path), |text| std::fs::write(&path, text));
        }
        for command in ["serve", "check"] {
            let ran = Command::new(env!("CARGO_BIN_EXE_capgate")).arg(command).arg("--config").arg(&file).output();
            let ran = ran.expect("it runs");
            let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
            assert_eq!(ran.status.code(), Some(78), "{command}: {said}");
            assert!(said.contains(why) && said.contains("intake.tls."), "{command}, {why}: {said}");
            assert!(!said.contains("BEGIN"), "P9: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_handshakes_that_do_not_come_give_their_descriptors_back() {
    let stub = StubBuyer::on_loopback(behaviours(&["/any=accept"]), 1).await.expect("a stub buyer");
    let (place, pair) = (Place::embedded(), Pair::new());
    let gateway = gateway(&place, &pair, &stub, &[("CAPGATE_INTAKE__HEADER_TIMEOUT_MS", "4000")]).await;
    let config = client_config(&[&pair], &[HTTP_2]);
    let http2 = tls::http2(gateway.intake, &config).await;
    assert_eq!(tls::post(&http2, "first", &lead(0)).await.expect("an answer").status, 200);
    let before = descriptors(&gateway);
    let mut silent = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(gateway.intake).await.expect("connects");
        // Nothing, half a hello, another protocol.
        let start: &[u8] =
            [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"][number % 3];
        stream.write_all(start).await.expect("sends");
        silent.push(stream);
    }
    let began = Instant::now();
    for number in 1..=20 {
        let answer = tls::post(&http2, &format!("k{number}"), &lead(number)).await.expect("an answer");
        assert!(answer.status == 200 && answer.took < PROMPT, "{answer:?}");
    }
    until("the descriptors came back", async || descriptors(&gateway) <= before + 5).await;
    println!("{before} descriptors again {:?} after 300 handshakes that did not come", began.elapsed());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_p7_streams_of_one_connection_are_leads_like_any_other() {
    let stub = StubBuyer::on_loopback(behaviours(&["/any=delay:100:accept"]), 1).await.expect("a stub buyer");
    let (place, pair) = (Place::embedded(), Pair::new());
    let gateway = gateway(&place, &pair, &stub, &[("CAPGATE_INTAKE__LEADS_IN_FLIGHT_MAX", "20")]).await;
    let config = client_config(&[&pair], &[HTTP_2]);
    let http2 = tls::http2(gateway.intake, &config).await;

    // Twins.
    let twins = (0..50).map(|_| {
        let http2 = http2.clone();
        tokio::spawn(async move { tls::post(&http2, "twin", &lead(1)).await.expect("an answer") })
    });
    let mut ids = Vec::new();
    for twin in twins.collect::<Vec<_>>() {
        let answer = twin.await.expect("it ends");
        assert_eq!(answer.status, 200, "{answer:?}");
        ids.push(answer.text("lead_id"));
    }
    ids.dedup();
    assert_eq!((ids.len(), stub.stats("/any").received), (1, 1), "P3: {ids:?}");

    // A flood of leads that differ: bounded by the leads in flight, as over HTTP/1.1.
    stub.set_behaviour("/any", "delay:1500:accept".parse().expect("a behaviour"));
    let flood = (0..60).map(|number| {
        let http2 = http2.clone();
        tokio::spawn(async move { tls::post(&http2, &format!("f{number}"), &lead(number)).await.expect("an answer") })
    });
    let mut statuses = Vec::new();
    for answer in flood.collect::<Vec<_>>() {
        statuses.push(answer.await.expect("it ends").status);
    }
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert!(statuses.iter().all(|status| [200, 503].contains(status)) && refused >= 20, "{statuses:?}");
    until("they are through", async || stub.stats("/any").accepted == 61 - refused as u64).await;
    stub.set_behaviour("/any", "accept".parse().expect("a behaviour"));

    // Streams that are dropped as soon as they were sent (CVE-2023-44487), until the connection is closed; what was taken of them
    // is finished, and others are served.
    let flooded = tls::http2(gateway.intake, &config).await;
    let dropping = tokio::spawn(async move {
        let mut dropped = 0_u32;
        while let Some((_, mut stream)) = tls::start(&flooded, &format!("d{dropped}"), &lead(dropped)).await {
            stream.send_reset(h2::Reason::CANCEL);
            dropped += 1;
            tokio::task::yield_now().await;
        }
        dropped
    });
    for number in 0..20 {
        let answer = tls::post(&http2, &format!("n{number}"), &lead(number)).await.expect("an answer");
        assert!([200, 503].contains(&answer.status) && answer.took < PROMPT, "{answer:?}");
    }
    let dropped =
        tokio::time::timeout(Duration::from_mins(1), dropping).await.expect("the flood goes on").expect("it ends");
    println!("the connection was closed after {dropped} dropped streams");
    let ledger = place.ledger().await;
    until("every lead has its verdict", async || {
        let totals = ledger.totals().await.expect("totals");
        leads(&totals, "pending") == 0 && leads(&totals, "sold") == stub.stats("/any").accepted
    })
    .await;
    assert_eq!(stub.stats("/any").duplicates, 0, "P4");
    ledger.shut_down().await;
}
