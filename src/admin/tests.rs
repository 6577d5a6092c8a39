use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const LEAD: &str = "0195a0c2-7d3e-7c4b-8a1f-0242ac120002";

#[derive(Default)]
struct Desk {
    did: Mutex<Vec<String>>,
    checks: Mutex<Vec<ReadyCheck>>,
    problems: Mutex<Vec<ReloadProblem>>,
}

impl Desk {
    fn note(&self, what: String) {
        self.did.lock().push(what);
    }

    fn buyer(buyer: &BuyerId) -> Result<(), AdminError> {
        match buyer.as_str() {
            "sunco" => Ok(()),
            "busy" => Err(AdminError::Conflict("it is not in doubt".into())),
            "away" => Err(AdminError::Unavailable("the ledger is away".into())),
            "later" => Err(AdminError::NotAvailableYet),
            _ => Err(AdminError::NotFound(Missing::Buyer)),
        }
    }
}

#[async_trait]
impl AdminDesk for Desk {
    async fn readiness(&self) -> Vec<ReadyCheck> {
        self.checks.lock().clone()
    }
    fn metrics(&self) -> String {
        "capgate_build_info 1\n".to_owned()
    }
    async fn caps(&self, buyer: Option<BuyerId>) -> Result<Value, AdminError> {
        buyer.as_ref().map_or(Ok(()), Self::buyer)?;
        Ok(json!({ "caps": [buyer.map(|id| id.as_str().to_owned())] }))
    }
    async fn cap_leads(&self, buyer: BuyerId, cap: CapId, after: Option<AttemptPlace>) -> Result<Value, AdminError> {
        Self::buyer(&buyer)?;
        Ok(json!({ "cap": cap.as_str(), "next": after.map(|place| write_place(&place)) }))
    }
    async fn lead(&self, lead: LeadId) -> Result<Option<Value>, AdminError> {
        Ok((lead.to_string() == LEAD).then(|| json!({ "lead_id": LEAD })))
    }
    async fn set_paused(&self, buyer: BuyerId, is_paused: bool) -> Result<(), AdminError> {
        Self::buyer(&buyer)?;
        self.note(format!("{buyer} {is_paused}"));
        Ok(())
    }
    async fn reload(&self) -> Result<(), Vec<ReloadProblem>> {
        let problems = self.problems.lock().clone();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
    async fn doubts(&self, buyer: BuyerId, after: Option<AttemptPlace>) -> Result<Value, AdminError> {
        Self::buyer(&buyer)?;
        Ok(json!({ "doubts": [], "next": after.map(|place| write_place(&place)) }))
    }
    async fn resolve(&self, lead: LeadId, buyer: BuyerId, is_accepted: bool) -> Result<Value, AdminError> {
        Self::buyer(&buyer)?;
        self.note(format!("{lead} {buyer} {is_accepted}"));
        Ok(json!({ "resolved": true }))
    }
    async fn reconcile(&self, is_dry_run: bool) -> Result<Value, AdminError> {
        self.note(format!("reconcile {is_dry_run}"));
        Ok(json!({ "differences": [] }))
    }
}

struct Admin {
    desk: Arc<Desk>,
    address: SocketAddr,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl Admin {
    async fn start(token: Option<&str>) -> Self {
        let desk = Arc::new(Desk::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(
            listener,
            Arc::clone(&desk) as Arc<dyn AdminDesk>,
            token.map(Secret::new),
            stop.clone(),
        ));
        Self { desk, address, stop, served }
    }

    /// Status and whole text of the answer.
    async fn ask(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        (answer[9..12].parse().unwrap(), answer)
    }
}

const TOKEN: &str = "authorization: Bearer s3cret\r\n";

#[tokio::test]
async fn probes_are_open_and_all_else_needs_the_token() {
    let admin = Admin::start(Some("s3cret")).await;
    let (status, answer) = admin.ask("GET /healthz", "", "").await;
    assert_eq!(status, 200);
    assert!(answer.ends_with("\r\n\r\nok"));
    assert_eq!(admin.ask("GET /readyz", "", "").await.0, 503);
    for line in ["GET /metrics", "GET /v1/caps", "POST /v1/reload", "GET /v1/nothing", "GET /", "DELETE /metrics"] {
        for headers in
            ["", "authorization: Bearer s3cre\r\n", "authorization: Basic s3cret\r\n", "x-api-key: s3cret\r\n"]
        {
            let (status, answer) = admin.ask(line, headers, "").await;
            assert_eq!(status, 401, "{line} {headers}");
            assert!(answer.contains("application/problem+json") && answer.contains("\"code\":\"unauthorized\""));
        }
        let doubled = format!("{TOKEN}{TOKEN}");
        assert_eq!(admin.ask(line, &doubled, "").await.0, 401, "{line}");
        assert_ne!(admin.ask(line, TOKEN, "").await.0, 401, "{line}");
    }
    assert!(admin.desk.did.lock().is_empty());
    assert_eq!(admin.ask("GET /metrics", &format!("{TOKEN}origin: https://evil.example\r\n"), "").await.0, 403);
    let (_, page) = admin.ask("GET /metrics", TOKEN, "").await;
    assert!(page.contains("content-type: text/plain; version=0.0.4\r\n"));
    assert!(page.ends_with("\r\n\r\ncapgate_build_info 1\n"));
}

#[tokio::test]
async fn f91_ready_means_that_every_check_holds() {
    let admin = Admin::start(None).await;
    let check = |name, ok| ReadyCheck { name, ok, detail: "measured".into(), decides: true };
    assert_eq!(admin.ask("GET /readyz", "", "").await.0, 503, "no check proves nothing");
    *admin.desk.checks.lock() = vec![check("store", true), check("life", true)];
    let (status, answer) = admin.ask("GET /readyz", "", "").await;
    assert_eq!(status, 200);
    assert!(answer.contains(r#"{"ready":true,"checks":[{"name":"store","ok":true,"detail":"measured"},"#), "{answer}");
    admin.desk.checks.lock().push(check("journal", false));
    let (status, answer) = admin.ask("GET /readyz", "", "").await;
    assert_eq!(status, 503);
    assert!(answer.contains(r#"{"ready":false,"#), "{answer}");
}

#[tokio::test]
async fn what_operators_ask_and_do() {
    let admin = Admin::start(None).await;
    for (line, body, status, part) in [
        ("GET /v1/caps", "", 200, r#"{"caps":[null]}"#),
        ("GET /v1/caps?buyer=sunco", "", 200, r#"{"caps":["sunco"]}"#),
        ("GET /v1/caps?buyer=nobody", "", 404, "not_found"),
        ("GET /v1/caps?buyer=a%3Ab", "", 404, "not_found"),
        ("POST /v1/caps", "", 405, "allow: GET"),
        ("GET /v1/leads/0195a0c2-7d3e-7c4b-8a1f-0242ac120002", "", 200, LEAD),
        ("GET /v1/leads/0195a0c2-7d3e-7c4b-8a1f-0242ac120003", "", 404, "not_found"),
        ("GET /v1/leads/x", "", 404, "not_found"),
        ("POST /v1/buyers/sunco/pause", "", 200, r#"{"buyer":"sunco","paused":true}"#),
        ("POST /v1/buyers/sunco/resume", "{}", 200, r#"{"buyer":"sunco","paused":false}"#),
        ("GET /v1/buyers/sunco/pause", "", 405, "allow: POST"),
        ("POST /v1/buyers/nobody/pause", "", 404, "not_found"),
        ("POST /v1/buyers/away/pause", "", 503, "retry-after: 1"),
        ("POST /v1/buyers/later/pause", "", 501, "not_available"),
        ("GET /v1/buyers/sunco/doubts", "", 200, r#"{"doubts":[],"next":null}"#),
        (
            "GET /v1/buyers/sunco/doubts?after=17_0195a0c2-7d3e-7c4b-8a1f-0242ac120002",
            "",
            200,
            r#""next":"17_0195a0c2-"#,
        ),
        ("GET /v1/buyers/sunco/doubts?after=17", "", 400, "malformed"),
        ("GET /v1/buyers/nobody/doubts", "", 404, "not_found"),
        ("POST /v1/buyers/sunco/doubts", "", 405, "allow: GET"),
        ("POST /v1/reload", "", 200, r#"{"reloaded":true}"#),
        ("POST /v1/reconcile", "", 200, r#"{"differences":[]}"#),
        ("POST /v1/reconcile?dry_run=1", "", 200, r#"{"differences":[]}"#),
        ("POST /v1/reconcile?dry_run=yes", "", 400, "malformed"),
        ("GET /v1/leads/x/y/z", "", 404, "not_found"),
        ("GET /v1/buyers/sunco/pause/now", "", 404, "not_found"),
    ] {
        let (got, answer) = admin.ask(line, "", body).await;
        assert_eq!(got, status, "{line}");
        assert!(answer.contains(part), "{line}: {answer}");
    }
    let did = admin.desk.did.lock().clone();
    assert_eq!(did, ["sunco true", "sunco false", "reconcile false", "reconcile true"]);
}

#[tokio::test]
async fn a_doubt_is_resolved_by_a_strict_body() {
    let admin = Admin::start(None).await;
    let line = format!("POST /v1/leads/{LEAD}/resolve");
    for (body, status) in [
        (r#"{"buyer":"sunco","outcome":"accepted"}"#, 200),
        (r#" {"outcome":"declined","buyer":"sunco"}"#, 200),
        (r#"{"buyer":"busy","outcome":"accepted"}"#, 409),
        (r#"{"buyer":"nobody","outcome":"accepted"}"#, 404),
        (r#"["sunco","accepted"]"#, 400),
        (r#"{"buyer":"sunco","outcome":"maybe"}"#, 400),
        (r#"{"buyer":"a b","outcome":"accepted"}"#, 400),
        (r#"{"buyer":"sunco","outcome":"accepted","x":1}"#, 400),
        ("", 400),
    ] {
        assert_eq!(admin.ask(&line, "", body).await.0, status, "{body}");
    }
    assert_eq!(admin.ask(&line, "", &" ".repeat(5_000)).await.0, 413);
    let did = admin.desk.did.lock().clone();
    assert_eq!(did, [format!("{LEAD} sunco true"), format!("{LEAD} sunco false")]);
}

#[tokio::test]
async fn a_refused_routing_lists_its_problems() {
    let admin = Admin::start(None).await;
    let problem = |part, line: &str| ReloadProblem { part, line: line.to_owned() };
    *admin.desk.problems.lock() = vec![problem("routing", "buyer sunco: cap is negative"), problem("tls", "no key")];
    let (status, answer) = admin.ask("POST /v1/reload", "", "").await;
    assert_eq!(status, 422);
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["code"], "invalid_routing");
    assert_eq!(body["errors"][0]["problem"], "buyer sunco: cap is negative");
    assert_eq!(body["errors"][1]["field"], "tls");
}

#[tokio::test]
async fn f85_admin_stops_at_once_with_idle_clients() {
    let admin = Admin::start(None).await;
    let mut idle = TcpStream::connect(admin.address).await.unwrap();
    assert_eq!(admin.ask("GET /healthz", "", "").await.0, 200);
    admin.stop.cancel();
    tokio::time::timeout(Duration::from_millis(1_500), admin.served).await.expect("an idle client held it").unwrap();
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap_or(0), 0);
}
