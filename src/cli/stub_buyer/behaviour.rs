//! What a stub buyer does with a lead, and how that is written on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::{Rng, RngExt};

/// Longest delay that can be asked for.
const DELAY_MAX_MS: u64 = 3_600_000;
/// Behaviours that `random` may choose from.
const CHOICES_MAX: usize = 16;

/// What a path of the stub does with each lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behaviour {
    /// Says yes.
    Accept,
    /// Says no: not interested.
    Decline,
    /// Says no: has this person already.
    Duplicate,
    /// Says that it decides later: 202, `pending`. The decision is the caller's of the stub to post.
    Pending,
    /// Answers with this status and no verdict.
    Error(u16),
    /// Reads the lead and never answers.
    Hang,
    /// Says yes, one byte of it at a time.
    Drip {
        /// Between two bytes.
        pause: Duration,
    },
    /// Reads the lead and closes the connection.
    Close,
    /// Answers 200 and what nobody can read.
    Garbage,
    /// Answers with a status and a text of the caller's choice; counts as neither yes nor no.
    Say {
        /// 200 to 599.
        status: u16,
        /// The body.
        text: String,
    },
    /// Sends the caller elsewhere.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// Where to.
        location: String,
    },
    /// Does something, but later. The delay runs on when the caller has left.
    Delay(Duration, Box<Behaviour>),
    /// Does one of these, each as often as its weight says.
    Random(Vec<(u32, Behaviour)>),
}

/// Text that names no behaviour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a behaviour: use accept, decline, duplicate, pending, error[:STATUS], hang, late:MS, drip[:MS], close, garbage, \
     say:STATUS:TEXT, redirect[:STATUS[:LOCATION]], delay:MS:BEHAVIOUR or random:BEHAVIOUR=WEIGHT,..."
)]
pub struct UnknownBehaviour(String);

impl Behaviour {
    /// The behaviour for one lead: follows `random` to a choice and adds delays up.
    pub fn choose(&self, rng: &mut impl Rng) -> (Duration, Self) {
        match self {
            Self::Delay(by, then) => {
                let (more, what) = then.choose(rng);
                (by.saturating_add(more), what)
            }
            Self::Random(choices) => {
                let total: u64 = choices.iter().map(|(weight, _)| u64::from(*weight)).sum();
                let mut left = rng.random_range(0..total.max(1));
                for (weight, choice) in choices {
                    match left.checked_sub(u64::from(*weight)) {
                        Some(rest) => left = rest,
                        None => return choice.choose(rng),
                    }
                }
                (Duration::ZERO, Self::Accept)
            }
            other => (Duration::ZERO, other.clone()),
        }
    }
}

impl FromStr for Behaviour {
    type Err = UnknownBehaviour;

    fn from_str(text: &str) -> Result<Self, UnknownBehaviour> {
        parse(text).ok_or_else(|| UnknownBehaviour(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Behaviour> {
    let (word, rest) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
    match (word, rest) {
        ("accept", None) => Some(Behaviour::Accept),
        ("decline", None) => Some(Behaviour::Decline),
        ("duplicate", None) => Some(Behaviour::Duplicate),
        ("pending", None) => Some(Behaviour::Pending),
        ("hang", None) => Some(Behaviour::Hang),
        ("close", None) => Some(Behaviour::Close),
        ("garbage", None) => Some(Behaviour::Garbage),
        ("error", status) => Some(Behaviour::Error(status_within(status.unwrap_or("500"), 400..=599)?)),
        ("say", Some(rest)) => {
            let (status, text) = rest.split_once(':')?;
            Some(Behaviour::Say { status: status_within(status, 200..=599)?, text: text.to_owned() })
        }
        ("drip", pause) => Some(Behaviour::Drip { pause: millis(pause.unwrap_or("200"))? }),
        ("late", Some(ms)) => Some(Behaviour::Delay(millis(ms)?, Box::new(Behaviour::Accept))),
        ("delay", Some(rest)) => {
            let (ms, then) = rest.split_once(':')?;
            // One delay is enough, and keeps text from nesting without end.
            let then = parse(then).filter(|then| !matches!(then, Behaviour::Delay(..)))?;
            Some(Behaviour::Delay(millis(ms)?, Box::new(then)))
        }
        ("redirect", rest) => {
            let (status, location) = rest.unwrap_or("302").split_once(':').unwrap_or((rest.unwrap_or("302"), "/moved"));
            let location = http::HeaderValue::from_str(location).ok()?.to_str().ok()?.to_owned();
            Some(Behaviour::Redirect { status: status_within(status, 301..=308)?, location })
        }
        ("random", Some(list)) => {
            let choices = list.split(',').map(choice).collect::<Option<Vec<_>>>()?;
            let is_chosen_from = choices.len() <= CHOICES_MAX && choices.iter().any(|(weight, _)| *weight > 0);
            is_chosen_from.then_some(Behaviour::Random(choices))
        }
        _ => None,
    }
}

fn choice(text: &str) -> Option<(u32, Behaviour)> {
    let (what, weight) = text.rsplit_once('=')?;
    let what = parse(what).filter(|what| !matches!(what, Behaviour::Random(_)))?;
    Some((weight.parse().ok()?, what))
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|ms| *ms <= DELAY_MAX_MS).map(Duration::from_millis)
}

fn status_within(text: &str, range: std::ops::RangeInclusive<u16>) -> Option<u16> {
    text.parse().ok().filter(|status| range.contains(status))
}

/// One `--path PATH=BEHAVIOUR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathBehaviour {
    /// Starts with a slash.
    pub path: String,
    /// What happens there.
    pub behaviour: Behaviour,
}

impl FromStr for PathBehaviour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, behaviour) = text.split_once('=').ok_or("use PATH=BEHAVIOUR, such as /a=accept")?;
        if !path.starts_with('/') || path == super::STATS_PATH {
            return Err(format!("{path:?} is not a path for leads: it starts with / and is not /_stats"));
        }
        let behaviour = behaviour.parse().map_err(|error: UnknownBehaviour| error.to_string())?;
        Ok(Self { path: path.to_owned(), behaviour })
    }
}

impl fmt::Display for PathBehaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.path, self.behaviour)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn behaviours_are_read_from_text() {
        let ms = Duration::from_millis;
        let delay = |by, then| Behaviour::Delay(by, Box::new(then));
        for (text, expected) in [
            ("accept", Behaviour::Accept),
            ("pending", Behaviour::Pending),
            ("error", Behaviour::Error(500)),
            ("error:503", Behaviour::Error(503)),
            ("late:250", delay(ms(250), Behaviour::Accept)),
            ("delay:250:decline", delay(ms(250), Behaviour::Decline)),
            ("say:422:<a:b/>", Behaviour::Say { status: 422, text: "<a:b/>".into() }),
            ("drip", Behaviour::Drip { pause: ms(200) }),
            ("drip:5", Behaviour::Drip { pause: ms(5) }),
            ("redirect", Behaviour::Redirect { status: 302, location: "/moved".into() }),
            ("redirect:307", Behaviour::Redirect { status: 307, location: "/moved".into() }),
            (
                "redirect:308:http://127.0.0.1:1/x",
                Behaviour::Redirect { status: 308, location: "http://127.0.0.1:1/x".into() },
            ),
            (
                "random:accept=50,error:503=10,delay:20:hang=0",
                Behaviour::Random(vec![
                    (50, Behaviour::Accept),
                    (10, Behaviour::Error(503)),
                    (0, delay(ms(20), Behaviour::Hang)),
                ]),
            ),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "yes",
            "accept:1",
            "error:200",
            "error:x",
            "say:200",
            "say:100:x",
            "late",
            "late:-1",
            "late:99999999999",
            "delay:5",
            "delay:5:delay:5:accept",
            "redirect:200",
            "random:",
            "random:accept",
            "random:accept=0",
            "random:random:accept=1=1",
        ] {
            assert!(bad.parse::<Behaviour>().is_err(), "{bad} was taken");
        }
        assert!("/a=accept".parse::<PathBehaviour>().is_ok());
        for bad in ["a=accept", "/a", "/_stats=accept", "/a=no"] {
            assert!(bad.parse::<PathBehaviour>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn random_keeps_to_its_weights_and_repeats_with_its_seed() {
        let behaviour: Behaviour = "random:accept=50,decline=30,hang=20".parse().unwrap();
        let run = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..10_000).map(|_| behaviour.choose(&mut rng).1).collect::<Vec<_>>()
        };
        let chosen = run(7);
        assert_eq!(chosen, run(7));
        assert_ne!(chosen, run(8));
        for (what, share) in [(Behaviour::Accept, 5_000), (Behaviour::Decline, 3_000), (Behaviour::Hang, 2_000)] {
            let count = chosen.iter().filter(|c| **c == what).count();
            assert!(count.abs_diff(share) < 250, "{what:?}: {count}");
        }
    }
}
