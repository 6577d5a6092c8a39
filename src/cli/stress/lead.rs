//! Leads that look like leads. The same seed and number make the same lead.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const FIRST_NAMES: [&str; 12] =
    ["Ada", "Ben", "Carla", "Dmitri", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jun", "Kofi", "Lucía"];
const LAST_NAMES: [&str; 12] =
    ["Adams", "Baker", "Cruz", "Diaz", "Evans", "Fischer", "Garcia", "Hughes", "Ivanov", "Jones", "Kim", "O'Neill"];
/// State, a city in it, and how its zips begin.
const PLACES: [(&str, &str, &str); 10] = [
    ("NY", "Albany", "122"),
    ("CA", "Fresno", "937"),
    ("TX", "Austin", "787"),
    ("FL", "Tampa", "336"),
    ("IL", "Peoria", "616"),
    ("OH", "Dayton", "454"),
    ("GA", "Macon", "312"),
    ("WA", "Tacoma", "984"),
    ("AZ", "Mesa", "852"),
    ("NJ", "Newark", "071"),
];

/// The body of lead `index`: one JSON object. Phone and e-mail differ from lead to lead, so that no buyer's rule against
/// duplicates is met by chance. `fixed` fields replace or add to the random ones.
pub fn body(seed: u64, index: u64, fixed: &[(String, String)]) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index);
    let (state, city, zip) = PLACES[rng.random_range(0..PLACES.len())];
    let mut fields = serde_json::Map::new();
    let mut put = |name: &str, value: String| {
        fields.insert(name.to_owned(), serde_json::Value::String(value));
    };
    put("first_name", FIRST_NAMES[rng.random_range(0..FIRST_NAMES.len())].to_owned());
    put("last_name", LAST_NAMES[rng.random_range(0..LAST_NAMES.len())].to_owned());
    put("email", format!("lead{index}.{seed}@example.com"));
    put("phone", format!("{}555{:04}", 200 + index / 10_000 % 800, index % 10_000));
    put("address", format!("{} Main St", rng.random_range(1..9_999)));
    put("city", city.to_owned());
    put("state", state.to_owned());
    put("zip", format!("{zip}{:02}", rng.random_range(0..100)));
    for (name, value) in fixed {
        put(name, value.clone());
    }
    serde_json::Value::Object(fields).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn leads_repeat_with_their_seed_and_no_two_share_a_phone() {
        assert_eq!(body(1, 5, &[]), body(1, 5, &[]));
        assert_ne!(body(1, 5, &[]), body(2, 5, &[]));
        let phones: HashSet<String> = (0..30_000)
            .map(|index| {
                let lead: serde_json::Value = serde_json::from_slice(&body(1, index, &[])).unwrap();
                let phone = lead["phone"].as_str().unwrap().to_owned();
                assert_eq!(phone.len(), 10);
                phone
            })
            .collect();
        assert_eq!(phones.len(), 30_000);
        let fixed = [("state".to_owned(), "AK".to_owned()), ("homeowner".to_owned(), "yes".to_owned())];
        let lead: serde_json::Value = serde_json::from_slice(&body(1, 0, &fixed)).unwrap();
        assert_eq!((&lead["state"], &lead["homeowner"]), (&"AK".into(), &"yes".into()));
    }
}
