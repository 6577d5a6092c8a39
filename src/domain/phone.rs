//! Phone numbers: one form for every way of writing one. The original stays in the lead's fields, untouched.

use std::str::FromStr as _;

use phonenumber::PhoneNumber;
use phonenumber::country::Id;

/// Canonical field name of the phone.
pub const PHONE: &str = "phone";

/// Longest text that is looked at: fifteen digits with whatever stands between them, and an extension. Reading takes time by
/// length.
const PHONE_BYTES_MAX: usize = 64;

/// Shortest national number that one with a country code in front of it is recognised by.
const NATIONAL_DIGITS_MIN: usize = 8;

/// The number in E.164 (`+12015550123`), without its extension. `country` is the ISO 3166 alpha-2 code of the numbering plan
/// that a number without a country code belongs to. `None` for what is no number in use in its country.
#[must_use]
pub fn e164(text: &str, country: &str) -> Option<String> {
    read(text, country).filter(phonenumber::is_valid).map(|number| written(&number))
}

/// The form in which every way of writing one number is equal, for keys: E.164 where the text can be read as a number, whether
/// or not such a number is in use, else its digits.
#[must_use]
pub fn comparable(text: &str, country: &str) -> String {
    read(text, country).map_or_else(|| digits(text), |number| written(&number))
}

/// Is it one number in two ways of writing, whatever the country? The digits decide; one of the two may lack the country code
/// and have a 0 in its place.
#[must_use]
pub fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (digits(one), digits(other));
    let (long, short) = if one.len() >= other.len() { (&one, &other) } else { (&other, &one) };
    if short.is_empty() || long == short {
        return long == short && !long.is_empty();
    }
    let national = short.strip_prefix('0').unwrap_or(short);
    let code = long.strip_suffix(national);
    national.len() >= NATIONAL_DIGITS_MIN && code.is_some_and(|code| code.len() <= 3 && !code.starts_with('0'))
}

/// Reads one number of the country, so that the first lead does not wait for tables to be made.
pub fn warm_up(country: &str) {
    let _ = e164("2015550123", country);
}

fn read(text: &str, country: &str) -> Option<PhoneNumber> {
    let text = text.trim();
    if text.len() > PHONE_BYTES_MAX {
        return None;
    }
    // A number with a country code of its own is read by that country's plan, in which the campaign's has no part.
    let own = phonenumber::parse(None, text).ok();
    own.or_else(|| phonenumber::parse(Some(Id::from_str(country).ok()?), text).ok())
}

fn written(number: &PhoneNumber) -> String {
    number.format().mode(phonenumber::Mode::E164).to_string()
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_e164_by_the_plan_of_their_country() {
        for (text, country, expected) in [
            ("(201) 555-0123", "US", Some("+12015550123")),
            ("1-201-555-0123", "US", Some("+12015550123")),
            (" +1 201 555 0123 ", "US", Some("+12015550123")),
            ("201.555.0123 ext. 7", "US", Some("+12015550123")),
            ("tel:+1-201-555-0123", "US", Some("+12015550123")),
            ("011 44 20 7946 0958", "US", Some("+442079460958")),
            ("+44 (0)20 7946 0958", "US", Some("+442079460958")),
            ("020 7946 0958", "GB", Some("+442079460958")),
            ("030 123456", "DE", Some("+4930123456")),
            // The zero belongs to the number in Italy.
            ("02 1234 5678", "IT", Some("+390212345678")),
            ("8 (495) 123-45-67", "RU", Some("+74951234567")),
            ("020 7946 0958", "US", None),
            ("555 010 2030", "US", None),
            ("12", "US", None),
            ("+", "US", None),
            ("call me", "US", None),
            ("", "US", None),
            ("2015550123", "XX", None),
            ("+1 201 555 0123", "XX", Some("+12015550123")),
            ("+49 (0)30 123456", "US", Some("+4930123456")),
        ] {
            assert_eq!(e164(text, country).as_deref(), expected, "{text:?} in {country}");
        }
        assert_eq!(e164(&format!("201555{}0123", " ".repeat(60)), "US"), None, "longer than any number");
    }

    #[test]
    fn every_way_of_writing_a_number_compares_equal_and_others_do_not() {
        let same = ["5550102030", "(555) 010-2030", "+1 555 010 2030", "1-555-010-2030", "555.010.2030 x9"];
        for text in same {
            assert_eq!(comparable(text, "US"), "+15550102030", "{text:?}");
        }
        assert_eq!(comparable("020 7946 0958", "GB"), comparable("+44 20 7946 0958", "US"));
        assert_ne!(comparable("020 7946 0958", "GB"), comparable("020 7946 0958", "US"));
        assert_eq!(comparable("12", "US"), "12", "what is no number is its digits");
        assert_eq!(comparable("2015550123", "XX"), "2015550123");
        assert_eq!(comparable("none", "US"), "");
        let long = format!("9{}", "1".repeat(100));
        assert_eq!(comparable(&long, "US"), long);
    }

    #[test]
    fn rules_know_a_number_with_and_without_its_country_code() {
        for (one, other, is_one) in [
            ("+1 (201) 555-0123", "2015550123", true),
            ("201-555-0123", "12015550123", true),
            ("+44 20 7946 0958", "020 7946 0958", true),
            ("2015550123", "2015550124", false),
            ("+1 201 555 0123", "+1 202 555 0123", false),
            ("2015550123", "5550123", false),
            ("120", "20", false),
            ("002015550123", "2015550123", false),
            ("", "", false),
            ("x", "y", false),
            ("2015550123", "", false),
        ] {
            assert_eq!(is_same(one, other), is_one, "{one:?} {other:?}");
            assert_eq!(is_same(other, one), is_one, "{other:?} {one:?}");
        }
    }
}
