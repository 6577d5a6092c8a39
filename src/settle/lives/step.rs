//! What the books and the data of a partition say together. Pure.

use crate::domain::event::Life;
use crate::ledger::{LifeRow, Stage};
use crate::store::Standing;

/// What to do about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The data is the one that the books know, and open.
    Work,
    /// It is the one that the books know, and closed.
    Rebuild,
    /// The books have a new life for this server that the store has not heard of.
    Begin,
    /// The data proves nothing, or is newer than the books: the books get this life.
    Raise(Life),
    /// The data is sound but of a life that is over: another server has the newer one.
    Elsewhere,
}

pub(super) fn decide(row: &LifeRow, standing: &Standing) -> Step {
    let (life, is_for_us) = (row.mark.life, row.server == standing.server);
    let next = |stored: Option<Life>| Step::Raise(Life(stored.unwrap_or_default().max(life).0 + 1));
    match standing.life {
        Some(stored) if standing.is_here && stored == life => {
            // A journal that ends before the mark has lost what the mark counts (F22, F28).
            if standing.tip < row.mark.entry || !is_for_us {
                next(Some(stored))
            } else if standing.is_open {
                Step::Work
            } else {
                Step::Rebuild
            }
        }
        // The books are older than the store (a restored backup): they take over its life, and its journal is settled from
        // its beginning.
        Some(stored) if standing.is_here && stored > life => Step::Raise(stored),
        Some(_) if standing.is_here && !is_for_us => Step::Elsewhere,
        // Begun once and gone since: what was restated under it is gone, too.
        stored if !is_for_us || row.stage != Stage::Raised => next(stored),
        _ => Step::Begin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::{EntryId, Mark};
    use crate::domain::id::Partition;
    use crate::store::ReadBack;

    fn row(life: u64, entry_ms: u64, server: &str, stage: Stage) -> LifeRow {
        let mark = Mark { partition: Partition(0), life: Life(life), entry: EntryId { ms: entry_ms, seq: 0 } };
        LifeRow { mark, server: server.into(), stage }
    }

    fn data(life: Option<u64>, is_here: bool, tip_ms: u64) -> Standing {
        Standing {
            life: life.map(Life),
            is_here,
            is_open: true,
            server: "a".into(),
            tip: EntryId { ms: tip_ms, seq: 0 },
            newest: EntryId::default(),
            read_back: ReadBack::Done,
        }
    }

    #[test]
    fn sound_data_is_worked_with() {
        assert_eq!(decide(&row(3, 50, "a", Stage::Open), &data(Some(3), true, 50)), Step::Work);
        let closed = Standing { is_open: false, ..data(Some(3), true, 50) };
        assert_eq!(decide(&row(3, 0, "a", Stage::Begun), &closed), Step::Rebuild);
    }

    #[test]
    fn f21_f22_f23_data_that_proves_nothing_gets_a_new_life() {
        let books = row(3, 50, "a", Stage::Open);
        assert_eq!(decide(&books, &data(None, false, 0)), Step::Raise(Life(4)), "empty");
        assert_eq!(decide(&books, &data(Some(3), false, 60)), Step::Raise(Life(4)), "loaded again");
        assert_eq!(decide(&books, &data(Some(2), false, 60)), Step::Raise(Life(4)), "older");
        assert_eq!(decide(&books, &data(Some(3), true, 49)), Step::Raise(Life(4)), "its journal ends before the mark");
        let elsewhere = row(3, 0, "b", Stage::Open);
        assert_eq!(decide(&elsewhere, &data(Some(3), false, 60)), Step::Raise(Life(4)), "promoted");
        assert_eq!(
            decide(&elsewhere, &data(Some(7), false, 60)),
            Step::Raise(Life(8)),
            "newer than the books, and a copy"
        );
        assert_eq!(
            decide(&row(0, 0, "", Stage::Begun), &data(None, false, 0)),
            Step::Raise(Life(1)),
            "the first start"
        );
    }

    #[test]
    fn a_life_that_was_raised_is_begun_once() {
        let raised = row(4, 0, "a", Stage::Raised);
        assert_eq!(decide(&raised, &data(None, false, 0)), Step::Begin);
        assert_eq!(decide(&raised, &data(Some(3), true, 60)), Step::Begin);
        // What was restated under it went with the data.
        assert_eq!(decide(&row(4, 0, "a", Stage::Begun), &data(None, false, 0)), Step::Raise(Life(5)));
        assert_eq!(decide(&row(4, 0, "b", Stage::Raised), &data(None, false, 0)), Step::Raise(Life(5)));
    }

    #[test]
    fn f23_an_old_primary_is_left_and_never_raised() {
        for stage in [Stage::Raised, Stage::Begun, Stage::Open] {
            assert_eq!(decide(&row(4, 0, "b", stage), &data(Some(3), true, 60)), Step::Elsewhere);
        }
    }

    #[test]
    fn books_from_a_backup_take_over_the_life_of_sound_data() {
        assert_eq!(decide(&row(3, 50, "a", Stage::Open), &data(Some(5), true, 60)), Step::Raise(Life(5)));
    }
}
