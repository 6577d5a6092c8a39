use super::*;
use crate::intake::tests::support::{buyer, campaign, publisher, routing_of_all};

fn series(page: &str) -> usize {
    page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count()
}

fn known() -> (Telemetry, Routing) {
    let telemetry = Telemetry::new();
    let routing = routing_of_all(
        3,
        vec![publisher("acme", None)],
        vec![buyer("sunco", 500), buyer("moonco", 7)],
        vec![campaign("solar")],
    );
    telemetry.know(&routing);
    (telemetry, routing)
}

#[test]
fn known_series_start_at_zero_with_help_and_type() {
    let (telemetry, _) = known();
    let page = telemetry.render();
    for line in [
        r#"capgate_leads_received_total{campaign="solar",publisher="acme"} 0"#,
        r#"capgate_leads_closed_total{campaign="solar",publisher="acme",status="unsold",reason="capped"} 0"#,
        r#"capgate_leads_closed_total{campaign="solar",publisher="acme",status="sold",reason=""} 0"#,
        r#"capgate_intake_refused_total{code="throttled"} 0"#,
        r#"capgate_filter_skipped_total{check="hours"} 0"#,
        r#"capgate_lease_total{buyer="sunco",result="full"} 0"#,
        r#"capgate_cap_limit{buyer="sunco",cap="day"} 500"#,
        r#"capgate_cap_used{buyer="sunco",cap="day"} 0"#,
        r#"capgate_cap_overshoot_total{buyer="sunco"} 0"#,
        r#"capgate_forward_total{buyer="moonco",outcome="accepted"} 0"#,
        r#"capgate_settle_rows_total{table="entries"} 0"#,
        r#"capgate_recovered_total{kind="doubt"} 0"#,
        r#"capgate_postbacks_total{publisher="other",result="dropped"} 0"#,
        "capgate_postbacks_waiting 0",
        r#"capgate_config_reload_total{result="refused"} 0"#,
        "capgate_routing_version 3",
        r#"capgate_store_setup_warning{kind="eviction"} 0"#,
        concat!("capgate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not on the page:\n{page}");
    }
    for metric in names::ALL {
        assert!(page.contains(&format!("# HELP {} ", metric.name)), "{} has no help", metric.name);
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Seconds(_) => "histogram",
        };
        assert!(page.contains(&format!("# TYPE {} {kind}\n", metric.name)), "{} is no {kind}", metric.name);
    }
}

#[test]
fn metrics_are_named_as_prometheus_asks() {
    for metric in names::ALL {
        assert!(metric.name.starts_with("capgate_"), "{}", metric.name);
        assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        if let Kind::Seconds(buckets) = metric.kind {
            assert!(metric.name.ends_with("_seconds"), "{}", metric.name);
            assert!(buckets.is_sorted() && !buckets.is_empty(), "{}", metric.name);
        }
    }
}

#[test]
fn f88_ids_that_are_not_in_the_routing_add_no_series() {
    let (telemetry, routing) = known();
    let before = series(&telemetry.render());
    for n in 0..100_000 {
        let id = format!("id-{n}");
        telemetry.buyer(&BuyerId::new(&id).unwrap()).late_accepted.increment(1);
        telemetry.leads(&CampaignId::new(&id).unwrap(), &PublisherId::new(&id).unwrap()).received.increment(1);
    }
    telemetry.intake.refused("no such code");
    telemetry.know(&routing);
    let page = telemetry.render();
    assert_eq!(series(&page), before);
    assert!(page.contains("capgate_late_accepted_total{buyer=\"other\"} 100000"));
    assert!(page.contains(r#"capgate_leads_received_total{campaign="other",publisher="other"} 100000"#));
}

#[test]
fn f88_a_removed_buyer_is_other_and_its_gauges_fall() {
    let (telemetry, _) = known();
    let sunco = BuyerId::new("sunco").unwrap();
    telemetry.buyer(&sunco).breaker_open.set(1.0);
    telemetry.know(&routing_of_all(
        4,
        vec![publisher("acme", None)],
        vec![buyer("moonco", 9)],
        vec![campaign("solar")],
    ));
    telemetry.buyer(&sunco).late_accepted.increment(1);
    let page = telemetry.render();
    assert!(page.contains("capgate_breaker_open{buyer=\"sunco\"} 0"));
    assert!(page.contains(r#"capgate_cap_limit{buyer="sunco",cap="day"} 0"#));
    assert!(page.contains(r#"capgate_cap_limit{buyer="moonco",cap="day"} 9"#));
    assert!(page.contains("capgate_late_accepted_total{buyer=\"other\"} 1"));
}

#[test]
fn many_pairs_start_with_their_first_lead() {
    let telemetry = Telemetry::new();
    let publishers = (0..60).map(|n| publisher(&format!("p{n}"), None)).collect();
    let campaigns = (0..60).map(|n| campaign(&format!("c{n}"))).collect();
    telemetry.know(&routing_of_all(1, publishers, vec![], campaigns));
    assert!(series(&telemetry.render()) < 1_000);
    telemetry.leads(&CampaignId::new("c7").unwrap(), &PublisherId::new("p7").unwrap()).received.increment(1);
    assert!(telemetry.render().contains(r#"capgate_leads_received_total{campaign="c7",publisher="p7"} 1"#));
}

/// Memory of this process, in pages.
#[cfg(target_os = "linux")]
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn f89_histograms_have_buckets_and_samples_do_not_pile_up() {
    let (telemetry, _) = known();
    let telemetry = Arc::new(telemetry);
    let stop = CancellationToken::new();
    let upkeep = {
        let (telemetry, stop) = (Arc::clone(&telemetry), stop.clone());
        tokio::spawn(async move { telemetry.keep_up(stop).await })
    };
    let before = resident_pages();
    for _ in 0..100 {
        for _ in 0..50_000 {
            telemetry.intake.answered(Duration::from_millis(7));
        }
        tokio::time::sleep(UPKEEP_EVERY).await;
    }
    // Five million samples that nobody took away would be 40 MB at least.
    let grown = resident_pages().saturating_sub(before) * 4_096;
    assert!(grown < 20_000_000, "samples piled up: {grown} bytes");
    let page = telemetry.render();
    assert!(page.contains("capgate_answer_duration_seconds_bucket{le=\"0.005\"} 0"), "{page}");
    assert!(page.contains("capgate_answer_duration_seconds_bucket{le=\"0.01\"} 5000000"), "{page}");
    assert!(page.contains("capgate_answer_duration_seconds_count 5000000"), "{page}");
    assert!(!page.contains("quantile"), "a histogram came out as a summary");
    stop.cancel();
    upkeep.await.unwrap();
}

#[test]
fn money_caps_show_currency_units() {
    let ten = Limit::Spend(crate::domain::money::Micros(10_000_000));
    assert!((cap_value(ten, 2_500_000) - 2.5).abs() < 1e-9);
    assert!((cap_value(Limit::Leads(10), 3) - 3.0).abs() < 1e-9);
}
