use clap::Parser as _;

use super::*;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: StressArgs,
}

fn plan(more: &[&str]) -> Result<StressPlan, InvalidPlan> {
    let base = ["stress", "--target", "http://127.0.0.1:8080", "--campaign", "solar", "--key", "k"];
    Command::try_parse_from(base.iter().chain(more)).unwrap().args.plan()
}

#[test]
fn rates_and_spreads_are_the_same_thing() {
    assert_eq!(plan(&[]).unwrap().pace, Pace::Burst);
    assert_eq!(plan(&["--rate", "200"]).unwrap().pace, Pace::Every(Duration::from_millis(5)));
    let spread = plan(&["--leads", "1000", "--spread-over", "5"]).unwrap();
    assert_eq!(spread.pace, Pace::Every(Duration::from_millis(5)));
    for bad in ["0", "NaN", "0.000000000000000000000001"] {
        assert_eq!(plan(&["--rate", bad]).map(|plan| plan.pace), Err(InvalidPlan::Pace), "{bad}");
    }
    assert!(plan(&["--spread-over=-1"]).is_err());
}

#[tokio::test]
async fn only_a_plain_http_address_is_a_target() {
    for bad in ["https://127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080/v1", "/x"] {
        let mut plan = plan(&[]).unwrap();
        plan.target = bad.parse().unwrap();
        assert_eq!(run(plan).await, Err(InvalidPlan::Target), "{bad}");
    }
}

#[test]
fn answers_are_counted_by_their_words() {
    for (status, body, id, word) in [
        (200, r#"{"lead_id":"1","status":"sold","price":"1.00"}"#, Some("1"), "sold"),
        (200, r#"{"lead_id":"1","status":"unsold","reason":"capped"}"#, Some("1"), "unsold/capped"),
        (429, r#"{"status":429,"code":"throttled"}"#, None, "429/throttled"),
        (502, "<html>", None, "502"),
        (200, "", None, "200"),
    ] {
        let status = http::StatusCode::from_u16(status).unwrap();
        assert_eq!(Answer::read(status, body.as_bytes()), (id.map(str::to_owned), word.to_owned()), "{body}");
    }
}
