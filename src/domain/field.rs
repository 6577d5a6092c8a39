//! Names that people give the same field. Matching ignores case, spaces, hyphens and underscores.

use std::sync::Arc;

/// Canonical names and what else they are called, squeezed (lower case, letters and digits only).
const ALIASES: &[(&str, &[&str])] = &[
    ("first_name", &["firstname", "fname", "givenname", "first"]),
    ("last_name", &["lastname", "lname", "surname", "familyname", "last"]),
    ("email", &["email", "emailaddress", "mail"]),
    (
        "phone",
        &["phone", "phonenumber", "phone1", "primaryphone", "mobile", "mobilephone", "cellphone", "telephone", "tel"],
    ),
    ("address", &["address", "address1", "addressline1", "street", "streetaddress"]),
    ("city", &["city", "town"]),
    ("state", &["state", "statecode", "province", "region"]),
    ("zip", &["zip", "zipcode", "postalcode", "postcode", "zippostalcode"]),
    ("country", &["country", "countrycode"]),
];

/// All canonical names.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALIASES.iter().map(|(canonical, _)| *canonical)
}

/// The canonical name behind a name as sent, if it is one that people use for the same thing.
#[must_use]
pub fn known(name: &str) -> Option<&'static str> {
    // The longest alias has 14 letters; anything much longer is not one of them.
    if name.len() > 32 {
        return None;
    }
    let squeezed: String =
        name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect();
    ALIASES.iter().find(|(_, aliases)| aliases.contains(&squeezed.as_str())).map(|(canonical, _)| *canonical)
}

/// Does a field of this canonical name say who or where exactly a person is? Its value is for the payload alone (P9).
#[must_use]
pub fn is_personal(canonical: &str) -> bool {
    ["first_name", "last_name", "email", "phone", "address"].iter().any(|name| name.eq_ignore_ascii_case(canonical))
}

/// The canonical name, or the name itself where none is known.
#[must_use]
pub fn canonical(name: &str) -> Arc<str> {
    known(name).map_or_else(|| Arc::from(name), Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_meet_in_one_name() {
        for name in ["zip", "ZIP", "zip_code", "ZipCode", "postal_code", "Postal Code", "post-code"] {
            assert_eq!(known(name), Some("zip"), "{name}");
        }
        assert_eq!(known("phone_number"), Some("phone"));
        assert_eq!(known("FirstName"), Some("first_name"));
        assert_eq!(known("homeowner"), None);
        assert_eq!(&*canonical("Homeowner"), "Homeowner");
    }
}
