//! When a value in a lead is the value in a rule: one meaning for caps and filters, so that a buyer's filter and the cap
//! that guards it never disagree about a lead.

use super::routing::ZipPattern;
use super::{phone, place};

/// Is `given`, the lead's value of `field`, the `wanted` value of a rule?
///
/// Outer spaces and case never matter. States and countries match by code or name, a ZIP+4 matches its zip, phones match
/// however they are written (as by [`phone::is_same`]), and plain
/// decimals match as numbers (`42`, `42.0`), digit by digit, so that long ids are never rounded into each other. A number
/// with leading zeros is text: `007` is not `7`.
#[must_use]
pub fn is_value(field: &str, wanted: &str, given: &str) -> bool {
    let (wanted, given) = (wanted.trim(), given.trim());
    if equals_without_case(wanted, given) {
        return true;
    }
    if field.eq_ignore_ascii_case(place::STATE) {
        place::state(wanted) == place::state(given)
    } else if field.eq_ignore_ascii_case(place::COUNTRY) {
        place::country(wanted) == place::country(given)
    } else if field.eq_ignore_ascii_case(place::ZIP) {
        place::Zip::new(given).matches(&ZipPattern::Exact(wanted.to_owned()))
    } else if field.eq_ignore_ascii_case(phone::PHONE) {
        phone::is_same(wanted, given)
    } else {
        decimal(wanted).is_some_and(|wanted| decimal(given) == Some(wanted))
    }
}

/// The number behind a text, for `min` and `max`; `None` for what is no finite number.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite())
}

fn equals_without_case(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || (!(a.is_ascii() && b.is_ascii()) && a.to_lowercase() == b.to_lowercase())
}

/// Sign, whole digits and decimals without trailing zeros of a plain decimal.
fn decimal(text: &str) -> Option<(bool, &str, &str)> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(decimals) || (whole.len() > 1 && whole.starts_with('0')) {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    let is_zero = whole == "0" && decimals.is_empty();
    Some((is_negative && !is_zero, whole, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_match_without_case_as_numbers_and_as_places() {
        for (field, wanted, given, is_match) in [
            ("homeowner", "yes", " YES ", true),
            ("homeowner", "yes", "no", false),
            ("name", "JOSÉ", "josé", true),
            ("rooms", "42", "42", true),
            ("rooms", "42", " 42.0 ", true),
            ("rooms", "0.50", "0.5", true),
            ("rooms", "-0", "0", true),
            ("rooms", "-1", "1", false),
            ("rooms", "1", "10", false),
            ("rooms", "1", "1.", false),
            ("code", "007", "7", false),
            ("code", "007", "007", true),
            ("id", "12345678901234567890", "12345678901234567891", false),
            ("id", "12345678901234567890", "12345678901234567890.0", true),
            ("state", "TX", "Texas", true),
            ("State", "texas", "tx", true),
            ("state", "TX", "NY", false),
            ("country", "US", "U.S.A.", true),
            ("zip", "07030", "07030-1234", true),
            ("phone", "+1 201 555 0123", "(201) 555-0123", true),
            ("phone", "2015550123", "2015550124", false),
            ("fax", "+1 201 555 0123", "(201) 555-0123", false),
            ("city", "TX", "Texas", false),
        ] {
            assert_eq!(is_value(field, wanted, given), is_match, "{field}: {wanted:?} {given:?}");
        }
    }

    #[test]
    fn f62_only_finite_numbers_are_numbers() {
        for (text, expected) in [("42", Some(42.0)), (" 17.5 ", Some(17.5)), ("-3", Some(-3.0)), ("1e3", Some(1000.0))]
        {
            assert_eq!(number(text), expected);
        }
        for text in ["", "nan", "inf", "-infinity", "1e400", "18 years", "0x10", "1,000"] {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
