//! Other people's words, kept without what they repeat of a lead (P9, F90): a buyer that refuses a lead likes to say which phone
//! number it did not like, and its words go into the books, explanations and lists.

use serde_json::Value;

use super::lead::{FieldValue, Fields};

/// Shorter values are no person's: `NJ`, `yes`, `42`.
const VALUE_CHARS_MIN: usize = 4;
/// Fewer digits in a row are no phone number.
const DIGITS_MIN: usize = 7;
/// Stands for what was taken out.
const MASK: &str = "***";

/// `words` without the values of the lead's fields. Letters are compared without case, numbers by their digits, however they are
/// grouped.
#[must_use]
pub fn without_values(words: &str, fields: &Fields) -> String {
    let mut values = Vec::new();
    for (_, value) in fields.iter() {
        match value {
            FieldValue::Text(text) | FieldValue::Number(text) => values.push(text.to_string()),
            // What cannot be read has no value to be found.
            FieldValue::Nested(json) => collect(&serde_json::from_str(json).unwrap_or_default(), &mut values),
            FieldValue::Bool(_) | FieldValue::Null => {}
        }
    }
    // A value may be a part of another one: whoever masks the part first leaves the rest of the whole.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    let mut words = words.to_owned();
    for value in values {
        mask_text(&mut words, value.trim());
        mask_digits(&mut words, &value);
    }
    words
}

/// Texts and numbers inside; the depth of a lead's values is bounded by intake.
fn collect(value: &Value, values: &mut Vec<String>) {
    match value {
        Value::String(text) => values.push(text.clone()),
        Value::Number(number) => values.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, values)),
        Value::Object(members) => members.values().for_each(|item| collect(item, values)),
        Value::Bool(_) | Value::Null => {}
    }
}

fn mask_text(words: &mut String, value: &str) {
    if value.chars().count() < VALUE_CHARS_MIN {
        return;
    }
    let wanted: Vec<char> = value.chars().flat_map(char::to_lowercase).collect();
    let mut from = 0;
    while let Some((start, end)) = find(words, from, &wanted) {
        words.replace_range(start..end, MASK);
        from = start + MASK.len();
    }
}

/// Where `wanted`, which is lower case, stands in `words`, in bytes.
fn find(words: &str, from: usize, wanted: &[char]) -> Option<(usize, usize)> {
    let mut starts = words.get(from..)?.char_indices().map(|(at, _)| from + at);
    starts.find_map(|start| Some((start, match_at(words, start, wanted)?)))
}

fn match_at(words: &str, start: usize, wanted: &[char]) -> Option<usize> {
    let mut left = wanted.iter();
    for (at, char) in words.get(start..)?.char_indices() {
        for lower in char.to_lowercase() {
            if left.next() != Some(&lower) {
                return None;
            }
        }
        if left.as_slice().is_empty() {
            return Some(start + at + char.len_utf8());
        }
    }
    None
}

/// A number with the same digits, with anything a phone number is written with between them. A country code in front of it
/// does not hide it.
fn mask_digits(words: &mut String, value: &str) {
    let is_number = value.chars().all(|char| char.is_ascii_digit() || "+-.()/ ".contains(char));
    let digits: Vec<char> = value.chars().filter(char::is_ascii_digit).collect();
    if !is_number || digits.len() < DIGITS_MIN {
        return;
    }
    // Whoever writes it with a country code leaves out the 0 in its place.
    let national = match digits[..] {
        ['1', ref national @ ..] if national.len() == 10 => national,
        ['0', ref national @ ..] if national.len() >= DIGITS_MIN => national,
        _ => &digits[..],
    };
    let mut from = 0;
    while let Some(start) = words.get(from..).and_then(|rest| rest.find(national[0])).map(|at| from + at) {
        match number_at(words, start, national) {
            Some(end) => {
                words.replace_range(start..end, MASK);
                from = start + MASK.len();
            }
            None => from = start + 1,
        }
    }
}

fn number_at(words: &str, start: usize, digits: &[char]) -> Option<usize> {
    let mut left = digits.iter();
    for (at, char) in words.get(start..)?.char_indices() {
        if char.is_ascii_digit() {
            if left.next() != Some(&char) {
                return None;
            }
            if left.as_slice().is_empty() {
                return Some(start + at + 1);
            }
        } else if !"-.()/ ".contains(char) {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn fields() -> Fields {
        let field = |name: &str, value: FieldValue| (Arc::from(name), value);
        Fields::new(vec![
            field("first_name", FieldValue::Text("Zoë".into())),
            field("last_name", FieldValue::Text(" Müller ".into())),
            field("email", FieldValue::Text("Zoe.M@example.com".into())),
            field("phone", FieldValue::Text("+1 (201) 555-0142".into())),
            field("other_phone", FieldValue::Text("020 7946 0958".into())),
            field("ssn", FieldValue::Number("123456789".into())),
            field("state", FieldValue::Text("NJ".into())),
            field("home", FieldValue::Nested(r#"{"street":"12 Long Lane","rooms":[4,5]}"#.into())),
            field("owner", FieldValue::Bool(true)),
        ])
    }

    #[test]
    fn f90_a_buyers_words_are_kept_without_what_they_repeat_of_the_lead() {
        for (words, kept) in [
            ("quota reached in NJ", "quota reached in NJ"),
            ("MÜLLER is a customer, müller!", "*** is a customer, ***!"),
            ("bad mail zoe.m@EXAMPLE.com.", "bad mail ***."),
            ("201.555.0142 is no number", "*** is no number"),
            ("phone 12015550142 twice: 1-201-555-0142", "phone 1*** twice: 1-***"),
            ("call +1 (201) 555-0142", "call ***"),
            ("no match for 123-45-6789", "no match for ***"),
            ("12 long lane is out of our area", "*** is out of our area"),
            ("the street of 12 long lane", "the street of ***"),
            ("201 555 014", "201 555 014"),
            ("+442079460958 is known", "+44*** is known"),
            ("020-7946-0958 is known", "0*** is known"),
            ("", ""),
        ] {
            assert_eq!(without_values(words, &fields()), kept);
        }
        // A value that is the mask, or part of it, ends.
        let odd = Fields::new(vec![(Arc::from("x"), FieldValue::Text("****".into()))]);
        assert_eq!(without_values("a **** b", &odd), "a *** b");
    }
}
