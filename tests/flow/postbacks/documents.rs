//! Postbacks are what the documents say.

#[cfg(feature = "server-tests")]
use {
    super::{Rig, receiver::SECRET},
    crate::support::Place,
    capgate::ledger::PostbackState,
    std::collections::HashMap,
};

/// The body of a postback in the OpenAPI document.
pub fn body() -> jsonschema::Validator {
    let document: serde_json::Value = serde_json::from_str(capgate::openapi::DOCUMENT).expect("JSON");
    let mut schema = document["components"]["schemas"]["Postback"].clone();
    assert!(schema.is_object());
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    assert!(!validator.is_valid(&serde_json::json!({ "event": "lead.closed" })));
    validator
}

/// The example of docs/publishers.md, run on posts as they came.
#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_check_of_a_signature_works() {
    let text = include_str!("../../../docs/publishers.md");
    let (_, rest) = text.split_once("```python\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let rig = Rig::new(Place::embedded(), "/p").await;
    rig.posted(1).await;
    rig.until_rows(PostbackState::Delivered, 1).await;
    let post = rig.receiver.posts("/p").remove(0);
    let is_genuine = async |secret: &str, headers: &HashMap<String, String>, body: &[u8]| {
        let call = format!(
            "{example}\nimport json, sys\nprint(is_genuine(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))"
        );
        let headers = serde_json::to_string(headers).expect("JSON");
        let body = std::str::from_utf8(body).expect("text");
        let output = tokio::process::Command::new("python3").args(["-c", &call, secret, &headers, body]).output().await;
        let output = output.expect("this test runs the example in docs/publishers.md: install python3");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").trim() == "True"
    };
    assert!(is_genuine(SECRET, &post.headers, &post.bytes).await);
    assert!(!is_genuine("whsec_YW5vdGhlciBzZWNyZXQgb2Ygb3Vycw==", &post.headers, &post.bytes).await);
    let changed = String::from_utf8(post.bytes.clone()).expect("text").replace("7.00", "9.00");
    assert_ne!(changed.as_bytes(), post.bytes);
    assert!(!is_genuine(SECRET, &post.headers, changed.as_bytes()).await);
    let mut old = post.headers.clone();
    old.insert("webhook-timestamp".to_owned(), (post.unix_s() - 3600).to_string());
    assert!(!is_genuine(SECRET, &old, &post.bytes).await);
    rig.end().await;
}
