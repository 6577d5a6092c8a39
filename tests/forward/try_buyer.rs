//! `capgate try-buyer`, as an operator runs it.

use std::path::Path;

use capgate::cli::stub_buyer::{PathBehaviour, StubBuyer};
use serde_json::Value;
use tokio::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn stub(behaviour: &str) -> StubBuyer {
    StubBuyer::on_loopback(vec![format!("/in={behaviour}").parse::<PathBehaviour>().unwrap()], 1).await.unwrap()
}

fn write(folder: &Path, url: &str, buyer: &str) {
    let routing = format!(
        "[[buyer]]\nid = \"sunco\"\nurl = \"{url}\"\ntimezone = \"UTC\"\n{buyer}\n[[campaign]]\nid = \"solar\"\n\
         currency = \"EUR\"\n[[campaign.offer]]\nbuyer = \"sunco\"\nprice = \"25.50\"\n"
    );
    std::fs::write(folder.join("routing.toml"), routing).unwrap();
    let config =
        "[forward]\nallow_private_addresses = true\nlate_answer_ms = 1000\n[routing]\nfile = \"routing.toml\"\n";
    std::fs::write(folder.join("capgate.toml"), config).unwrap();
}

async fn try_buyer(folder: &Path, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_capgate"))
        .arg("try-buyer")
        .args(args)
        .arg("--config")
        .arg(folder.join("capgate.toml"))
        .env("CAPGATE_TRY_KEY", "hunter2")
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

const XML: &str = r#"timeout_ms = 30000
[buyer.request]
format = "query"
query = { key = "env:CAPGATE_TRY_KEY" }
headers = { X-Api-Key = "env:CAPGATE_TRY_KEY" }
fields = { zip = "zip", test = "$test", price = "$price", in = "$currency" }
[buyer.answer]
accepted = { path = "/response/status", in = ["Matched"] }
duplicate = { path = "/response/error", matches = "(?i)duplicate" }
price = "/response/price"
reason = "/response/error"
"#;

#[tokio::test]
async fn p9_a_try_shows_everything_but_the_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let yes = stub("say:200:<response><status>matched</status><price>12.5</price></response>").await;
    write(folder.path(), &yes.url("/in"), XML);
    let ran = try_buyer(folder.path(), &["sunco"]).await;
    assert_eq!(ran.code, Some(0), "{} {}", ran.out, ran.err);
    for line in [
        "A real request is sent to sunco".to_owned(),
        format!("> GET {}?key=***&zip=07030&test=1&price=25.50&in=EUR", yes.url("/in")),
        "> x-api-key: ***".to_owned(),
        "< 200 after ".to_owned(),
        "<response><status>matched</status><price>12.5</price></response>".to_owned(),
        "Outcome: accepted".to_owned(),
        "Read as: XML".to_owned(),
        "Why: answer.accepted matched: \"/response/status\" is \"matched\", wanted one of [\"Matched\"]".to_owned(),
        "answer.price: \"12.5\", taken as 12.50".to_owned(),
        "answer.reason: nothing there".to_owned(),
    ] {
        assert!(ran.out.contains(&line), "{line}\n---\n{}", ran.out);
    }
    assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"), "{} {}", ran.out, ran.err);
    assert_eq!(yes.stats("/in").received, 1);
    // Nothing of a gateway was made: no journal, no books.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_try_ends_with_1_for_everything_but_a_sale() {
    let folder = tempfile::tempdir().unwrap();
    for (behaviour, outcome, reason, rule) in [
        ("say:200:<response><status>Unmatched</status></response>", "declined", "declined", Value::Null),
        ("say:200:<response><error>Duplicate</error></response>", "duplicate", "Duplicate", "duplicate".into()),
        ("error:500", "declined", "http_500", Value::Null),
        ("close", "in_doubt", "broken", Value::Null),
    ] {
        let buyer = stub(behaviour).await;
        write(folder.path(), &buyer.url("/in"), XML);
        let ran = try_buyer(folder.path(), &["sunco", "--json"]).await;
        let told: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{} {}", ran.out, ran.err));
        assert_eq!(ran.code, Some(1), "{told}");
        assert_eq!(
            (&told["outcome"], &told["reason"], &told["rule"]),
            (&outcome.into(), &reason.into(), &rule),
            "{told}"
        );
        assert!(!ran.out.contains("hunter2"));
    }
    // The answer that comes after the time-out is waited for and told, and it is still no sale in time.
    let late = stub("delay:600:accept").await;
    write(folder.path(), &late.url("/in"), "timeout_ms = 200");
    let ran = try_buyer(folder.path(), &["sunco"]).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("Outcome: in_doubt (timeout)\nAfter the time-out of 200 ms: accepted"), "{}", ran.out);
}

#[tokio::test]
async fn a_try_sends_the_lead_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let buyer = stub("accept").await;
    write(folder.path(), &buyer.url("/in"), "timeout_ms = 30000");
    let lead = folder.path().join("lead.json");
    std::fs::write(&lead, r#"{"Postal Code":"10001","amount":100.10}"#).unwrap();
    let ran = try_buyer(folder.path(), &["sunco", "--json", "--lead", lead.to_str().unwrap()]).await;
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    let body = format!(r#"{{"zip":"10001","amount":100.10,"lead_id":{}}}"#, told["lead_id"]);
    assert_eq!((ran.code, told["request"]["body"].as_str()), (Some(0), Some(body.as_str())), "{told}");

    for (args, code, says) in [
        (&["suncoo"][..], 64, "there are: sunco"),
        (&["sunco", "--lead", "/nowhere.json"], 64, "/nowhere.json"),
        (&["sunco", "--campaign", "roofing"], 64, "no campaign"),
        (&["sunco", "--publisher", "acme"], 64, "no publisher"),
    ] {
        let ran = try_buyer(folder.path(), args).await;
        assert!(ran.code == Some(code) && ran.err.contains(says), "{args:?}: {:?} {}", ran.code, ran.err);
    }
    std::fs::write(&lead, "[1]").unwrap();
    let ran = try_buyer(folder.path(), &["sunco", "--lead", lead.to_str().unwrap()]).await;
    assert!(ran.code == Some(64) && ran.err.contains("the lead is refused"), "{}", ran.err);
    write(folder.path(), "ftp://b.example/", "speed = 1");
    let ran = try_buyer(folder.path(), &["sunco"]).await;
    assert!(ran.code == Some(78) && ran.err.contains("buyer[sunco].url") && ran.err.contains("speed"), "{}", ran.err);
    assert_eq!(buyer.stats("/in").received, 1, "a bad call sends nothing");
}
