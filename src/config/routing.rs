//! `routing.toml` -> [`Routing`]: every publisher, buyer and campaign, then what only shows when they are seen together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::ForwardConfig;
use super::buyer;
use super::campaign;
use super::env::Environment;
use super::item::{Desk, Reader};
use super::problem::{Problem, Problems};
use super::publisher;
use super::tree::{self, Place, Source};
use crate::domain::cap::Limit;
use crate::domain::id::{BuyerId, CampaignId, PublisherId};
use crate::domain::place;
use crate::domain::routing::{Buyer, Campaign, KeyHash, Publisher, Routing};

/// Largest version: what every store and every JSON reader counts exactly.
const VERSION_MAX: u64 = 9_007_199_254_740_991;

/// A checked routing and what it was read from.
pub(super) struct Loaded {
    pub routing: Routing,
    pub warnings: Vec<Problem>,
    /// SHA-256 of the file.
    pub content: [u8; 32],
}

/// A table of the file with what it describes; the table is kept open for the checks that need the whole file.
pub(super) struct Described<'a, T> {
    pub reader: Reader<'a>,
    pub described: Option<T>,
}

/// What publishers, buyers and campaigns may refer to: every id in the file, also of those that have problems of their own.
pub(super) struct Known {
    pub publishers: HashSet<PublisherId>,
    pub campaigns: HashSet<CampaignId>,
}

pub(super) fn load(path: &Path, forward: &ForwardConfig, env: &dyn Environment) -> Result<Loaded, Problems> {
    let source = Source::file(path);
    let (text, modified_ms) = read_whole(path, &source).map_err(|problem| *problem)?;
    let table = tree::parse(&text, &source)?;
    if table.entries.is_empty() {
        // An editor or a copy that was caught half-way must not remove every buyer (F87).
        let right = "at least one [[campaign]], [[buyer]] or [[publisher]]";
        return Err(source.problem(None, "holds nothing".to_owned(), right).into());
    }
    let desk = Desk::new(env);
    let root = Reader::new(&desk, &table, Place { source, line: None }, "");
    let version = root.integer("version", (1, VERSION_MAX), modified_ms);
    let routing = read(&root, version, forward);
    root.finish();
    let warnings = desk.into_problems().into_warnings()?;
    Ok(Loaded { routing, warnings, content: Sha256::digest(text.as_bytes()).into() })
}

/// The text and the modification time it belongs to. A file that changes while it is read is refused: its pieces may be of
/// two versions (F87).
fn read_whole(path: &Path, source: &Source) -> Result<(String, u64), Box<Problem>> {
    let stamp = || super::reload::stamp(path);
    let before = stamp();
    let text = tree::read_file(path)?;
    match before {
        Some(before) if stamp() == Some(before) => Ok((text, before.modified_ms)),
        _ => {
            let right = "a file that is replaced in one step";
            Err(Box::new(source.problem(None, "changed while it was read".to_owned(), right)))
        }
    }
}

fn read(root: &Reader<'_>, version: u64, forward: &ForwardConfig) -> Routing {
    let publishers = root.tables("publisher");
    let buyers = root.tables("buyer");
    let campaigns = root.tables("campaign");
    let known = Known {
        publishers: publishers.iter().filter_map(|reader| id_of(reader, PublisherId::new)).collect(),
        campaigns: campaigns.iter().filter_map(|reader| id_of(reader, CampaignId::new)).collect(),
    };
    let publishers =
        one_each("publisher", publishers, PublisherId::new, |id, reader| publisher::read(id, reader, forward, &known));
    let buyers = one_each("buyer", buyers, BuyerId::new, |id, reader| buyer::read(id, reader, forward, &known));
    let known_buyers: HashMap<BuyerId, Option<Arc<Buyer>>> =
        buyers.iter().map(|(id, buyer)| (id.clone(), buyer.described.clone())).collect();
    let campaigns =
        one_each("campaign", campaigns, CampaignId::new, |id, reader| campaign::read(id, reader, &known_buyers));

    keys_belong_to_one("publisher", &publishers, |publisher: &Publisher| &publisher.keys);
    keys_belong_to_one("buyer", &buyers, |buyer: &Buyer| &buyer.keys);
    buyers_are_offered_in_one_currency(&buyers, &campaigns);
    Routing { version, publishers: close(publishers), buyers: close(buyers), campaigns: close(campaigns) }
}

/// The id without a word about it when it is bad: that is said when the table is read.
fn id_of<Id, E>(reader: &Reader<'_>, new: impl Fn(&str) -> Result<Id, E>) -> Option<Id> {
    reader.peek_text("id").and_then(|text| new(text).ok())
}

/// Reads each table under its own id; a second table with the same id is an error.
fn one_each<'a, Id: Clone + Ord + std::fmt::Display, E, T>(
    what: &str,
    readers: Vec<Reader<'a>>,
    new: impl Fn(&str) -> Result<Id, E>,
    read: impl Fn(&Id, &Reader<'a>) -> Option<T>,
) -> BTreeMap<Id, Described<'a, T>> {
    let mut all = BTreeMap::new();
    for mut reader in readers {
        let id = reader.required("id", "1 to 64 of A-Z a-z 0-9 . _ -").and_then(|item| {
            let id = new(item.text()?).ok();
            if id.is_none() {
                item.fail("is not an id", "1 to 64 of A-Z a-z 0-9 . _ -");
            }
            id
        });
        // Without an id the rest is still read, for its problems.
        let Some(id) = id else {
            if let Ok(stand_in) = new("unnamed") {
                read(&stand_in, &reader);
            }
            reader.finish();
            continue;
        };
        reader.rename(format!("{what}[{id}]"));
        let described = read(&id, &reader);
        match all.entry(id) {
            Entry::Vacant(place) => {
                place.insert(Described { reader, described });
            }
            Entry::Occupied(first) => {
                reader.fail("id", format!("there is another {what} {}", first.key()), "an id of its own");
                reader.finish();
            }
        }
    }
    all
}

/// Ends the reading: what nobody asked for is unknown. What had errors is left out; the routing is then refused anyway.
fn close<Id: std::hash::Hash + Eq, T>(all: BTreeMap<Id, Described<'_, T>>) -> HashMap<Id, T> {
    let end = |(id, Described { reader, described })| {
        let reader: Reader<'_> = reader;
        reader.finish();
        described.map(|described| (id, described))
    };
    all.into_iter().filter_map(end).collect()
}

/// A key names its owner; two owners would make what comes with it anybody's.
fn keys_belong_to_one<Id: Ord + std::fmt::Display, T>(
    what: &str,
    all: &BTreeMap<Id, Described<'_, Arc<T>>>,
    keys: impl Fn(&T) -> &[KeyHash],
) {
    let mut owners: HashMap<KeyHash, &Id> = HashMap::new();
    for (id, one) in all {
        for key in one.described.iter().flat_map(|described| keys(described)) {
            match owners.insert(*key, id) {
                None => {}
                Some(owner) if owner == id => {
                    one.reader.fail("keys_sha256", "lists a key twice", "each key once");
                }
                Some(owner) => {
                    let wrong = format!("shares a key with {what} {owner}");
                    one.reader.fail("keys_sha256", wrong, format!("keys that no other {what} has"));
                }
            }
        }
    }
}

/// A money cap adds up prices; prices of two currencies have no sum (F79).
fn buyers_are_offered_in_one_currency(
    buyers: &BTreeMap<BuyerId, Described<'_, Arc<Buyer>>>,
    campaigns: &BTreeMap<CampaignId, Described<'_, Arc<Campaign>>>,
) {
    let mut currencies: HashMap<&BuyerId, BTreeMap<&str, &CampaignId>> = HashMap::new();
    for (id, campaign) in campaigns {
        let Some(campaign) = &campaign.described else { continue };
        for offer in &campaign.offers {
            currencies.entry(&offer.buyer.id).or_default().entry(campaign.currency.as_str()).or_insert(id);
        }
    }
    for (id, buyer) in buyers {
        let Some(described) = &buyer.described else { continue };
        let offered = currencies.get(id);
        if offered.is_none() {
            buyer.reader.warn("", "is in no campaign's offers", "an offer, or no such buyer");
        }
        let has_money_cap = described.caps.iter().any(|cap| matches!(cap.limit, Limit::Spend(_)));
        if let Some(offered) = offered.filter(|offered| has_money_cap && offered.len() > 1) {
            let list: Vec<String> = offered.iter().map(|(currency, in_)| format!("{currency} in {in_}")).collect();
            buyer.reader.fail(
                "cap",
                format!("has a spend cap, and the buyer is offered in {}", list.join(", ")),
                "campaigns of one currency for this buyer, or caps on leads",
            );
        }
    }
}

/// Where text of a state is brought into its canonical form.
pub(super) fn canonical_state(text: &str) -> String {
    place::state(text).into_owned()
}

/// Where text of a country is brought into its canonical form.
pub(super) fn canonical_country(text: &str) -> String {
    place::country(text).into_owned()
}
