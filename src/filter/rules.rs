//! Rules about one field of a lead.

use crate::domain::lead::{FieldValue, Lead};
use crate::domain::matching::{is_value, number};
use crate::domain::routing::FieldRule;

/// The first rule that does not hold.
pub(super) fn first_broken<'a>(rules: &'a [FieldRule], lead: &Lead) -> Option<&'a FieldRule> {
    rules.iter().find(|rule| !holds(rule, lead.fields.get(&rule.field)))
}

/// Do all parts of the rule that are given hold? A field that is missing, null, blank or nested has no value: it is
/// neither in a range nor one of a list. A nested value is there, though.
fn holds(rule: &FieldRule, value: Option<&FieldValue>) -> bool {
    if rule.is_present.is_some_and(|wanted| wanted != is_present(value)) {
        return false;
    }
    let text = value.and_then(FieldValue::as_text).map(str::trim).filter(|text| !text.is_empty());
    let in_range = (rule.min.is_none() && rule.max.is_none())
        || text
            .and_then(number)
            .is_some_and(|number| rule.min.is_none_or(|min| number >= min) && rule.max.is_none_or(|max| number <= max));
    in_range
        && rule.one_of.as_ref().is_none_or(|values| {
            text.is_some_and(|given| values.iter().any(|wanted| is_value(&rule.field, wanted, given)))
        })
}

fn is_present(value: Option<&FieldValue>) -> bool {
    match value {
        None | Some(FieldValue::Null) => false,
        Some(FieldValue::Text(text)) => !text.trim().is_empty(),
        Some(FieldValue::Number(_) | FieldValue::Bool(_) | FieldValue::Nested(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn rule() -> FieldRule {
        FieldRule { field: Arc::from("x"), min: None, max: None, one_of: None, is_present: None }
    }

    fn text(text: &str) -> FieldValue {
        FieldValue::Text(text.into())
    }

    fn digits(digits: &str) -> FieldValue {
        FieldValue::Number(digits.into())
    }

    #[test]
    fn numbers_in_text_count_as_numbers() {
        let adult = FieldRule { min: Some(18.0), max: Some(65.0), ..rule() };
        for (value, is_held) in [
            (Some(digits("18")), true),
            (Some(text("18")), true),
            (Some(text(" 65.0 ")), true),
            (Some(digits("65.1")), false),
            (Some(text("17")), false),
            (Some(text("eighteen")), false),
            (Some(text("NaN")), false),
            (Some(text("inf")), false),
            (Some(text("")), false),
            (Some(FieldValue::Bool(true)), false),
            (Some(FieldValue::Null), false),
            (Some(FieldValue::Nested("[20]".into())), false),
            (None, false),
        ] {
            assert_eq!(holds(&adult, value.as_ref()), is_held, "{value:?}");
        }
        assert!(holds(&FieldRule { min: Some(-1.0), ..rule() }, Some(&digits("1e300"))));
        assert!(!holds(&FieldRule { max: Some(-1.0), ..rule() }, Some(&digits("-0.5"))));
    }

    #[test]
    fn lists_compare_without_case_and_presence_means_not_blank() {
        let yes = FieldRule { one_of: Some(vec!["yes".into(), "1".into(), "true".into()]), ..rule() };
        for (value, is_held) in [
            (Some(text(" YES")), true),
            (Some(digits("1")), true),
            (Some(text("1.0")), true),
            (Some(FieldValue::Bool(true)), true),
            (Some(FieldValue::Bool(false)), false),
            (Some(text("y")), false),
            (None, false),
        ] {
            assert_eq!(holds(&yes, value.as_ref()), is_held, "{value:?}");
        }
        assert!(!holds(&FieldRule { one_of: Some(vec![]), ..rule() }, Some(&text("yes"))));
        assert!(!holds(&FieldRule { one_of: Some(vec![String::new()]), ..rule() }, Some(&text(""))));

        let there = FieldRule { is_present: Some(true), ..rule() };
        let absent = FieldRule { is_present: Some(false), ..rule() };
        for (value, is_there) in [
            (Some(text("a")), true),
            (Some(digits("0")), true),
            (Some(FieldValue::Bool(false)), true),
            (Some(FieldValue::Nested("{}".into())), true),
            (Some(text("  ")), false),
            (Some(FieldValue::Null), false),
            (None, false),
        ] {
            assert_eq!(holds(&there, value.as_ref()), is_there, "{value:?}");
            assert_eq!(holds(&absent, value.as_ref()), !is_there, "{value:?}");
        }
        let both = FieldRule { is_present: Some(false), min: Some(1.0), ..rule() };
        assert!(!holds(&both, None) && !holds(&both, Some(&digits("2"))), "parts of a rule are joined by and");
    }
}
