//! Names of places, so that `tx`, `Texas` and `TX` are one state on both sides of a comparison: in the routing file and in
//! the lead (contract: matching).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use smallvec::SmallVec;

use super::routing::ZipPattern;

/// Canonical field name of the state.
pub const STATE: &str = "state";
/// Canonical field name of the country.
pub const COUNTRY: &str = "country";
/// Canonical field name of the postal code.
pub const ZIP: &str = "zip";

/// The two-letter code of a US state, DC, a US territory or a Canadian province, from its code or its name, without case,
/// spaces and dots (`NY`, `new  york`, `N.Y.`, `US-NY`). Any other text comes back trimmed and in upper case, so that
/// unknown places still match themselves.
#[must_use]
pub fn state(text: &str) -> Cow<'_, str> {
    known_or_upper(&STATES, text)
}

/// The ISO 3166 alpha-2 code of a country, from its alpha-2 or alpha-3 code or its English name, without case, spaces and
/// dots (`US`, `usa`, `U.S.`, `United States`). Any other text comes back trimmed and in upper case.
#[must_use]
pub fn country(text: &str) -> Cow<'_, str> {
    known_or_upper(&COUNTRIES, text)
}

/// A postal code as it is compared: upper case, without spaces and hyphens (`k1a 0b1` is `K1A0B1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zip<'a>(Cow<'a, str>);

impl<'a> Zip<'a> {
    /// Reads a postal code; any text is one.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let trimmed = text.trim();
        let is_clean = trimmed.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        if is_clean {
            return Self(Cow::Borrowed(trimmed));
        }
        let kept = trimmed.chars().filter(|c| !c.is_whitespace() && *c != '-');
        Self(Cow::Owned(kept.flat_map(char::to_uppercase).collect()))
    }

    /// The whole code.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The five-digit zip inside a ZIP+4 (`07030-1234`, `070301234`).
    #[must_use]
    pub fn five(&self) -> Option<&str> {
        let is_plus_four = self.0.len() == 9 && self.0.bytes().all(|b| b.is_ascii_digit());
        if is_plus_four { self.0.get(..5) } else { None }
    }

    /// Is it this code (or a ZIP+4 of it), or does it start with this prefix? An empty code matches nothing.
    #[must_use]
    pub fn matches(&self, pattern: &ZipPattern) -> bool {
        if self.0.is_empty() {
            return false;
        }
        match pattern {
            ZipPattern::Exact(code) => {
                let code = Zip::new(code);
                self.as_str() == code.as_str() || self.five() == Some(code.as_str())
            }
            ZipPattern::Prefix(prefix) => self.as_str().starts_with(Zip::new(prefix).as_str()),
        }
    }
}

/// Squeezed code or name -> code.
type Names = HashMap<Box<[u8]>, &'static str>;

/// Longest text that can be a known place; the longest names have some fifty letters.
const PLACE_BYTES_MAX: usize = 96;

/// Lines of `<country> <code> <name>|<name>...`
static STATES: LazyLock<Names> = LazyLock::new(|| {
    let mut names = Names::new();
    for (country, rest) in include_str!("place/states.txt").lines().filter_map(|line| line.split_once(' ')) {
        let Some((code, spellings)) = rest.split_once(' ') else { continue };
        for spelling in spellings.split('|').chain([code, &format!("{country}{code}")]) {
            names.insert(squeeze(spelling).as_slice().into(), code);
        }
    }
    names
});

/// Lines of `<alpha-2> <alpha-3> <name>|<name>...`
static COUNTRIES: LazyLock<Names> = LazyLock::new(|| {
    let mut names = Names::new();
    for (code, rest) in include_str!("place/countries.txt").lines().filter_map(|line| line.split_once(' ')) {
        let Some((alpha3, spellings)) = rest.split_once(' ') else { continue };
        for spelling in spellings.split('|').chain([code, alpha3]) {
            names.insert(squeeze(spelling).as_slice().into(), code);
        }
    }
    names
});

fn known_or_upper<'a>(names: &Names, text: &'a str) -> Cow<'a, str> {
    let trimmed = text.trim();
    if trimmed.len() <= PLACE_BYTES_MAX
        && let Some(code) = names.get(squeeze(trimmed).as_slice())
    {
        return Cow::Borrowed(*code);
    }
    if trimmed.bytes().all(|b| b.is_ascii() && !b.is_ascii_lowercase()) {
        Cow::Borrowed(trimmed)
    } else {
        Cow::Owned(trimmed.to_uppercase())
    }
}

/// Letters and digits only, in upper case.
fn squeeze(text: &str) -> SmallVec<[u8; 32]> {
    let mut key = SmallVec::new();
    for letter in text.chars().filter(|c| c.is_alphanumeric()) {
        if letter.is_ascii() {
            // Cannot lose anything because the letter is ASCII.
            key.push(letter.to_ascii_uppercase() as u8);
        } else {
            for upper in letter.to_uppercase() {
                key.extend_from_slice(upper.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn states_match_by_code_or_name_without_case() {
        for (text, code) in [
            ("NY", "NY"),
            ("ny", "NY"),
            (" New  York ", "NY"),
            ("N.Y.", "NY"),
            ("US-NY", "NY"),
            ("NEWYORK", "NY"),
            ("texas", "TX"),
            ("D.C.", "DC"),
            ("District of Columbia", "DC"),
            ("Washington", "WA"),
            ("Washington, D.C.", "DC"),
            ("puerto rico", "PR"),
            ("Ontario", "ON"),
            ("québec", "QC"),
            ("Bavaria ", "BAVARIA"),
            ("ÎLE-DE-FRANCE", "ÎLE-DE-FRANCE"),
            ("île-de-france", "ÎLE-DE-FRANCE"),
            ("", ""),
            ("  ", ""),
            ("AE", "AE"),
        ] {
            assert_eq!(state(text), code, "{text:?}");
        }
    }

    #[test]
    fn countries_match_by_code_or_name_without_case() {
        for (text, code) in [
            ("US", "US"),
            ("us", "US"),
            ("USA", "US"),
            ("U.S.", "US"),
            ("U.S.A.", "US"),
            ("united states", "US"),
            ("United States of America", "US"),
            ("UK", "GB"),
            ("Great Britain", "GB"),
            ("gbr", "GB"),
            ("United  Kingdom", "GB"),
            ("Georgia", "GE"),
            ("CA", "CA"),
            ("Canada", "CA"),
            ("deu", "DE"),
            ("Côte d'Ivoire", "CI"),
            ("Narnia", "NARNIA"),
            ("", ""),
        ] {
            assert_eq!(country(text), code, "{text:?}");
        }
    }

    #[test]
    fn every_line_of_the_tables_is_read_and_no_name_stands_for_two_places() {
        for (table, names, codes) in
            [(include_str!("place/states.txt"), &*STATES, 70), (include_str!("place/countries.txt"), &*COUNTRIES, 249)]
        {
            let mut seen: HashMap<Vec<u8>, &str> = HashMap::new();
            assert_eq!(table.lines().count(), codes);
            for line in table.lines() {
                let mut parts = line.splitn(3, ' ');
                let (first, second, spellings) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
                let code = if codes == 249 { first } else { second };
                for spelling in spellings.split('|') {
                    assert!(spelling.len() <= PLACE_BYTES_MAX);
                    let other = seen.insert(squeeze(spelling).to_vec(), code);
                    assert!(other.is_none_or(|other| other == code), "{spelling} is {code} and {other:?}");
                    assert_eq!(names[squeeze(spelling).as_slice()], code);
                }
                assert_eq!(names[code.as_bytes()], code);
            }
        }
    }

    #[test]
    fn zips_ignore_case_spaces_and_plus_four() {
        let exact = |code: &str| ZipPattern::Exact(code.into());
        let prefix = |code: &str| ZipPattern::Prefix(code.into());
        for (zip, pattern, is_match) in [
            ("07030", exact("07030"), true),
            (" 07030 ", exact("07030"), true),
            ("07030-1234", exact("07030"), true),
            ("070301234", exact("07030"), true),
            ("07030 1234", exact("07030"), true),
            ("07030", exact("07030-1234"), false),
            ("07030-1234", exact("07030-1234"), true),
            ("07031", exact("07030"), false),
            ("7030", exact("07030"), false),
            ("10012", prefix("100"), true),
            ("10112", prefix("100"), false),
            ("10", prefix("100"), false),
            ("k1a 0b1", exact("K1A0B1"), true),
            ("K1A0B1", exact("k1a 0b1"), true),
            ("sw1a 1aa", prefix("SW1A"), true),
            ("", prefix(""), false),
            ("1", prefix(""), true),
            ("", exact(""), false),
        ] {
            assert_eq!(Zip::new(zip).matches(&pattern), is_match, "{zip:?} {pattern:?}");
        }
    }

    proptest! {
        /// The configuration may make a text canonical before the filter does it once more.
        #[test]
        fn canonical_texts_stay_as_they_are(text in "\\PC{0,12}|[A-Za-z .-]{1,20}") {
            let once = state(&text).into_owned();
            prop_assert_eq!(state(&once), once.as_str());
            let once = country(&text).into_owned();
            prop_assert_eq!(country(&once), once.as_str());
            let once = Zip::new(&text).as_str().to_owned();
            let twice = Zip::new(&once).as_str().to_owned();
            prop_assert_eq!(twice, once);
        }
    }
}
