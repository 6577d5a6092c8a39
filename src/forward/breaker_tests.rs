//! The breaker's states, by hand and by chance.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const RULE: BreakerRule = BreakerRule { failures: 3, rest: Duration::from_secs(10) };
const PROBE: Duration = Duration::from_secs(2);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn go(breaker: &mut Breaker, second: i64) -> (u64, bool) {
    match breaker.ask(at(second), PROBE) {
        Says::Go { generation, is_probe } => (generation, is_probe),
        Says::Rest(left) => panic!("it rests for {left:?}"),
    }
}

fn rests(breaker: &mut Breaker, second: i64) -> i64 {
    match breaker.ask(at(second), PROBE) {
        Says::Rest(left) => left.as_secs(),
        Says::Go { .. } => panic!("it lets a lead go"),
    }
}

/// Opened at second 0, so that it rests until second 10.
fn opened() -> Breaker {
    let mut breaker = Breaker::default();
    for _ in 0..3 {
        let (generation, is_probe) = go(&mut breaker, 0);
        assert!(!is_probe);
        breaker.hear(at(0), generation, Health::Bad, RULE);
    }
    breaker
}

#[test]
fn f54_it_opens_after_failures_in_a_row_and_an_answer_starts_the_count_again() {
    let mut breaker = Breaker::default();
    for health in [Health::Bad, Health::Bad, Health::Good, Health::Bad, Health::Neutral, Health::Bad] {
        let (generation, _) = go(&mut breaker, 0);
        breaker.hear(at(0), generation, health, RULE);
        assert_eq!(breaker.resting(at(0)), None);
    }
    let (generation, _) = go(&mut breaker, 0);
    breaker.hear(at(0), generation, Health::Bad, RULE);
    assert_eq!(rests(&mut breaker, 0), 10);
    assert_eq!(rests(&mut breaker, 9), 1);
    let mut off = Breaker::default();
    for _ in 0..1000 {
        let (generation, _) = go(&mut off, 0);
        off.hear(at(0), generation, Health::Bad, BreakerRule { failures: 0, ..RULE });
    }
    assert_eq!(off.resting(at(0)), None, "0 switches it off");
}

#[test]
fn f54_one_probe_at_a_time_and_its_word_decides() {
    for (health, after) in [(Health::Good, None), (Health::Bad, Some(10)), (Health::Neutral, None)] {
        let mut breaker = opened();
        let (generation, is_probe) = go(&mut breaker, 10);
        assert!(is_probe);
        for _ in 0..200 {
            assert_eq!(rests(&mut breaker, 10), 2);
        }
        breaker.hear(at(11), generation, health, RULE);
        assert_eq!(breaker.resting(at(11)).map(|left| left.as_secs()), after, "{health:?}");
        if after.is_none() {
            // After a neutral word the next lead is a probe again, after a good one nobody is.
            assert_eq!(go(&mut breaker, 11).1, health == Health::Neutral);
        }
    }
}

#[test]
fn f54_a_probe_that_is_never_heard_of_gives_its_place_up() {
    let mut breaker = opened();
    let (lost, _) = go(&mut breaker, 10);
    assert_eq!(rests(&mut breaker, 11), 1);
    let (next, is_probe) = go(&mut breaker, 12);
    assert!(is_probe);
    // The lost one wakes up: it is of an older state.
    breaker.hear(at(13), lost, Health::Bad, RULE);
    assert_eq!(rests(&mut breaker, 13), 1);
    breaker.hear(at(13), next, Health::Good, RULE);
    breaker.hear(at(13), lost, Health::Bad, RULE);
    assert_eq!(breaker.state, State::Closed { failures: 0 });
}

#[test]
fn f54_late_results_of_an_older_state_change_nothing() {
    let mut breaker = Breaker::default();
    let (old, _) = go(&mut breaker, 0);
    for _ in 0..3 {
        let (generation, _) = go(&mut breaker, 0);
        breaker.hear(at(0), generation, Health::Bad, RULE);
    }
    let open = breaker;
    for health in [Health::Good, Health::Bad, Health::Neutral] {
        breaker.hear(at(1), old, health, RULE);
        assert_eq!(breaker, open);
    }
    let (probe, _) = go(&mut breaker, 10);
    breaker.hear(at(10), probe, Health::Good, RULE);
    for _ in 0..10 {
        breaker.hear(at(11), old, Health::Bad, RULE);
    }
    assert_eq!(breaker.state, State::Closed { failures: 0 });
}

/// Whatever comes in whatever order: while it rests nobody goes, one probe at most goes between two changes, the failures that
/// open it are never fewer than the rule says, and some lead always goes in the end.
#[test]
fn f54_no_order_of_events_lets_a_crowd_through_or_locks_a_buyer_out() {
    let seed = std::env::var("CAPGATE_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("CAPGATE_TEST_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    for _ in 0..200 {
        let (mut breaker, mut now, mut out) = (Breaker::default(), 0_i64, Vec::<(u64, bool)>::new());
        let mut bad_in_a_row = 0;
        for _ in 0..300 {
            match dice.random_range(0..4) {
                0 => now += dice.random_range(0..4),
                1 if !out.is_empty() => {
                    let (generation, is_probe) = out.swap_remove(dice.random_range(0..out.len()));
                    let health = [Health::Good, Health::Bad, Health::Neutral][dice.random_range(0..3)];
                    let before = breaker;
                    breaker.hear(at(now), generation, health, RULE);
                    if generation != before.generation {
                        assert_eq!(breaker, before, "of an older state");
                    } else if !is_probe {
                        match health {
                            Health::Bad => bad_in_a_row += 1,
                            Health::Good => bad_in_a_row = 0,
                            Health::Neutral => {}
                        }
                        let is_open = matches!(breaker.state, State::Open { .. });
                        assert_eq!(is_open, bad_in_a_row >= RULE.failures, "{breaker:?}");
                    }
                    if breaker.generation != before.generation {
                        bad_in_a_row = 0;
                    }
                }
                _ => {
                    let before = breaker;
                    match breaker.ask(at(now), PROBE) {
                        Says::Rest(left) => {
                            assert!(left > SignedDuration::ZERO && left.as_secs() <= 10);
                            assert_eq!(breaker, before);
                        }
                        Says::Go { generation, is_probe } => {
                            assert_eq!(before.resting(at(now)), None);
                            assert_eq!(is_probe, !matches!(before.state, State::Closed { .. }));
                            assert!(!is_probe || out.iter().all(|(of, _)| *of != generation), "two probes at once");
                            out.push((generation, is_probe));
                        }
                    }
                }
            }
        }
        assert!(matches!(breaker.ask(at(now + 10), PROBE), Says::Go { .. }), "locked out: {breaker:?}");
    }
}

#[test]
fn an_answer_is_no_failure_and_what_we_did_not_send_says_nothing() {
    let declined = |http_status| Outcome::Declined {
        http_status,
        reason: String::new(),
        is_duplicate: http_status == 409,
        rest_s: None,
    };
    let unsent = |reason| Outcome::Unsent { reason };
    let doubt = |reason| Outcome::InDoubt { reason, http_status: None };
    for (outcome, health) in [
        (Outcome::Accepted(crate::domain::outcome::Acceptance::default()), Health::Good),
        (declined(200), Health::Good),
        (declined(409), Health::Good),
        (declined(429), Health::Neutral),
        (declined(500), Health::Bad),
        (declined(503), Health::Bad),
        (doubt("timeout"), Health::Bad),
        (doubt("broken"), Health::Bad),
        (unsent("connect"), Health::Bad),
        (unsent("dns"), Health::Bad),
        (unsent("illegal_body"), Health::Neutral),
        (unsent("address_refused"), Health::Neutral),
    ] {
        assert_eq!(Health::of(&outcome), health, "{outcome:?}");
    }
}

#[test]
fn f54_a_turn_that_is_dropped_frees_the_probes_place() {
    let clock = crate::clock::ManualClock::new(at(0));
    let breakers = Arc::new(Breakers::new(clock.clone()));
    let mut buyer = crate::intake::tests::support::buyer("sunco", 1);
    buyer.breaker = RULE;
    for _ in 0..3 {
        breakers.ask(&buyer).expect("it is closed").ends(Health::Bad);
    }
    assert_eq!(breakers.ask(&buyer).unwrap_err(), Duration::from_secs(10));
    clock.advance(SignedDuration::from_secs(10));
    let probe = breakers.ask(&buyer).expect("a probe");
    assert!(breakers.ask(&buyer).is_err() && breakers.resting(&buyer.id).is_some());
    drop(probe);
    let mut probe = breakers.ask(&buyer).expect("the next one");
    probe.ends(Health::Good);
    probe.ends(Health::Bad);
    drop(probe);
    assert!(breakers.ask(&buyer).is_ok() && breakers.ask(&buyer).is_ok());
}
