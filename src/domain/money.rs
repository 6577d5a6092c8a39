//! Money as integer micros beside a currency. No float ever touches it (P6).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Micros in one unit of a currency.
pub const MICROS_PER_UNIT: i64 = 1_000_000;

/// An amount in millionths of a currency unit; may be negative in the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub i64);

/// Text that is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount: use a decimal like \"25.00\" with at most six decimals")]
pub struct InvalidAmount(pub String);

impl Micros {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Reads a decimal without sign or exponent, at most six decimals: `"25"`, `"25.00"`, `"0.000001"`.
    ///
    /// # Errors
    /// [`InvalidAmount`] for anything else, and for amounts beyond 9,000,000,000,000 units.
    pub fn parse(text: &str) -> Result<Self, InvalidAmount> {
        let bad = || InvalidAmount(text.chars().take(40).collect());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        let dot_without_decimals = text.contains('.') && decimals.is_empty();
        if whole.is_empty() || decimals.len() > 6 || dot_without_decimals || !digits(whole) || !digits(decimals) {
            return Err(bad());
        }
        let units: i64 = whole.parse().map_err(|_| bad())?;
        let micros: i64 = format!("{decimals:0<6}").parse().map_err(|_| bad())?;
        if units > 9_000_000_000_000 - 1 {
            return Err(bad());
        }
        units.checked_mul(MICROS_PER_UNIT).and_then(|u| u.checked_add(micros)).map(Self).ok_or_else(bad)
    }

    /// Reads a number as others write it: decimals as long as they like, rounded down to the micro, exponents, and more than
    /// fits becomes the most there is. `None` for what is negative or not a number.
    #[must_use]
    pub fn read_number(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if !is_digits(whole) || !is_digits(decimals) || !is_digits(unsigned) {
            return None;
        }
        // Only too many digits can fail here, and an exponent that long leaves nothing, or all there is, of any number.
        let size: i64 = unsigned.parse().unwrap_or(i64::MAX / 2);
        let exponent = if exponent.starts_with('-') { -size } else { size };
        let digits = [whole, decimals].concat();
        let decimals = i64::try_from(decimals.len()).unwrap_or(i64::MAX);
        // So many of the digits count whole micros; where there are fewer, zeros follow them.
        let kept =
            i64::try_from(digits.len()).unwrap_or(i64::MAX).saturating_sub(decimals).saturating_add(exponent) + 6;
        let zeros = digits.bytes().take_while(|b| *b == b'0').count();
        let most = i64::try_from(zeros).unwrap_or(i64::MAX).saturating_add(19);
        if zeros == digits.len() || kept <= 0 {
            return Some(Self::ZERO);
        }
        if kept > most {
            return Some(Self(i64::MAX));
        }
        // Cannot fail because `kept` is positive and at most `most`.
        let kept = usize::try_from(kept).unwrap_or(0);
        let micros = digits
            .bytes()
            .chain(std::iter::repeat(b'0'))
            .take(kept)
            .try_fold(0_i64, |sum, digit| sum.checked_mul(10)?.checked_add(i64::from(digit - b'0')));
        Some(Self(micros.unwrap_or(i64::MAX)))
    }
}

/// At least two and at most six decimals: `17.50`, `0.000001`, `-3.125`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = self.0.unsigned_abs();
        let (units, micros) = (magnitude / 1_000_000, magnitude % 1_000_000);
        let decimals = format!("{micros:06}");
        let kept = decimals.trim_end_matches('0').len().max(2);
        write!(f, "{sign}{units}.{}", &decimals[..kept])
    }
}

/// An ISO 4217 code: three upper-case letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

impl Currency {
    /// Reads a code such as `USD`; `None` when it is not three upper-case letters.
    #[must_use]
    pub fn new(code: &str) -> Option<Self> {
        let bytes: [u8; 3] = code.as_bytes().try_into().ok()?;
        bytes.iter().all(u8::is_ascii_uppercase).then_some(Self(bytes))
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Cannot fail because `new` let only ASCII letters in.
        std::str::from_utf8(&self.0).unwrap_or("???")
    }
}

impl TryFrom<String> for Currency {
    type Error = String;
    fn try_from(code: String) -> Result<Self, String> {
        Self::new(&code).ok_or_else(|| format!("{code:?} is not a currency code"))
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.as_str().to_owned()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a publisher earns of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payout {
    /// Millionths of the price: `"70"` percent is 700,000.
    Share {
        /// 0 to 1,000,000.
        millionths: u32,
    },
    /// The same amount for each sale.
    Flat(Micros),
}

impl Payout {
    /// The publisher's part of `price`, rounded down to the micro. A flat payout may exceed the price: then the margin
    /// is negative, as the operator agreed with the publisher.
    #[must_use]
    pub fn of(self, price: Micros) -> Micros {
        match self {
            Self::Flat(amount) => amount,
            Self::Share { millionths } => {
                let share = i128::from(price.0) * i128::from(millionths) / 1_000_000;
                // Cannot fail because the share is at most the price, which is an i64.
                Micros(i64::try_from(share).unwrap_or(price.0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_amounts_read_and_print_to_the_micro() {
        for (text, micros, printed) in [
            ("25.00", 25_000_000, "25.00"),
            ("25", 25_000_000, "25.00"),
            ("0.1", 100_000, "0.10"),
            ("0.000001", 1, "0.000001"),
            ("17.125", 17_125_000, "17.125"),
        ] {
            assert_eq!(Micros::parse(text), Ok(Micros(micros)));
            assert_eq!(Micros(micros).to_string(), printed);
        }
        assert_eq!(Micros(-3_125_000).to_string(), "-3.125");
        for bad in ["", ".", "1.", ".5", "-1", "+1", "1e3", "1.0000001", "nan", "99999999999999999999", "1,5"] {
            assert!(Micros::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn p6_numbers_of_others_are_read_without_a_float() {
        let long = format!("{}1", "0".repeat(5_000));
        for (text, micros) in [
            ("12.5", Some(12_500_000)),
            ("0012.50", Some(12_500_000)),
            ("1e3", Some(1_000_000_000)),
            ("1.5E+1", Some(15_000_000)),
            ("250e-1", Some(25_000_000)),
            ("0.0000019", Some(1)),
            ("0.1234567", Some(123_456)),
            ("1e-7", Some(0)),
            ("0", Some(0)),
            ("0e999999999999999999999", Some(0)),
            ("1e-999999999999999999999", Some(0)),
            ("1e999999999999999999999", Some(i64::MAX)),
            ("99999999999999999999", Some(i64::MAX)),
            ("9223372036854.775807", Some(i64::MAX)),
            ("9223372036854.775806", Some(i64::MAX - 1)),
            (long.as_str(), Some(1_000_000)),
            ("-1", None),
            ("+1", None),
            ("1e", None),
            (".5", None),
            ("5.", None),
            ("e5", None),
            ("0x10", None),
            ("NaN", None),
            ("1,5", None),
            ("", None),
        ] {
            assert_eq!(Micros::read_number(text), micros.map(Micros), "{text}");
        }
    }

    #[test]
    fn p6_percent_payout_rounds_down() {
        let third = Payout::Share { millionths: 333_333 };
        assert_eq!(third.of(Micros(10_000_000)), Micros(3_333_330));
        assert_eq!(third.of(Micros(1)), Micros(0));
        assert_eq!(Payout::Share { millionths: 1_000_000 }.of(Micros(i64::MAX)), Micros(i64::MAX));
        assert_eq!(Payout::Share { millionths: 700_000 }.of(Micros(25_000_000)), Micros(17_500_000));
    }
}
