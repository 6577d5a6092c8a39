//! What every store does, once: `store_contract!` runs the list on a store.
//!
//! The tests use the store's own clock and windows around it, because a real server's clock cannot be moved.

use std::sync::Arc;

use async_trait::async_trait;
use capgate::store::Store;

pub use super::behaviours::*;

/// Starts one store for one test.
#[async_trait]
pub trait Harness: Sized + Send + Sync + 'static {
    /// A store that nobody has used, with room for `journal_entries_max` entries in all partitions.
    async fn start_with(journal_entries_max: u64) -> Self;

    /// A store that nobody has used.
    async fn start() -> Self {
        Self::start_with(1_000_000).await
    }

    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Removes what the test made.
    async fn stop(self);
}

/// A store whose counters can be lost one by one, as a deleted key is.
#[cfg(feature = "server-tests")]
#[async_trait]
pub trait LosesCounters: Harness {
    /// Deletes a counter behind the store's back.
    async fn lose_counter(
        &self,
        buyer: &capgate::domain::id::BuyerId,
        cap: &str,
        window: capgate::domain::window::Window,
    );
}

/// Runs the whole list on a harness, one test per behaviour.
#[macro_export]
macro_rules! store_contract {
    ($harness:ty) => {
        $crate::store_contract!($harness:
            admit_answers_new_once_and_running_after,
            admit_of_a_finished_key_answers_the_same_bytes,
            f39_key_with_another_body_is_refused,
            f39_keys_of_two_publishers_are_strangers,
            admit_without_a_key_is_named_by_its_lead,
            admit_after_its_time_changes_nothing,
            f37_twins_get_one_lead,
            f76_full_journal_admits_nothing_until_trimmed,
            p3_close_is_won_by_the_first,
            p3_close_race_has_one_winner,
            close_of_an_unknown_lead_is_kept,
            lead_state_tells_what_is_remembered,
            a_person_is_taken_once_and_freed_by_a_refusal_alone,
            a_duplicate_touches_no_cap_and_the_next_buyer_gets_the_lead,
            p1_twins_of_one_person_get_one_lease,
            p8_an_unknown_person_waits_for_the_books,
            what_the_books_tell_of_persons_gives_way_to_what_the_store_knows,
            take_takes_the_first_with_room,
            f06_all_caps_or_none,
            f12_limit_is_an_argument_of_each_take,
            f14_zero_is_closed_and_no_cap_is_open,
            money_caps_never_pass_their_limit_by_a_fraction,
            f15_large_numbers_stay_exact,
            caps_with_odd_names_stay_apart,
            f30_crossed_ids_stay_apart,
            f08_window_that_is_not_now_is_refused,
            unseeded_counter_is_closed_until_seeded,
            seed_never_touches_a_counter_that_is_there,
            seed_beyond_a_trimmed_mark_is_stale,
            new_window_of_a_known_cap_starts_at_zero,
            f33_a_window_that_overlaps_the_running_one_adds_no_room,
            f86_older_routing_is_stale,
            f20_repeat_of_a_take_is_the_same_lease,
            f20_repeat_finds_its_lease_when_an_earlier_buyer_has_room_again,
            p4_take_after_an_end_is_refused,
            p4_a_lease_belongs_to_the_walk_that_took_it,
            take_after_its_time_changes_nothing,
            admit_and_take_takes_only_for_a_new_lead,
            ends_of_a_lease_in_every_state,
            f20_ends_repeated_change_nothing,
            f02_double_refund_lowers_once,
            f02_racing_ends_have_one_winner,
            f01_refund_after_the_window_leaves_nothing_negative,
            money_is_corrected_at_the_commit,
            late_commit_after_a_doubt_is_not_counted_twice,
            p1_an_owner_that_wakes_up_cannot_expire_a_doubt,
            p1_confirm_never_counts_a_unit_that_has_gone_back,
            p1_doubts_resolved_both_ways_at_once_never_oversell,
            late_commit_after_a_refund_counts_above_the_limit,
            f46_late_yeses_at_once_each_learn_their_own_count,
            commit_and_close_closes_only_what_it_committed,
            p2_a_lease_whose_mark_expired_ends_as_the_books_remember_it,
            p3_a_recorded_verdict_leaves_the_answer_alone,
            p2_a_return_gives_units_back_once_and_only_where_it_is_told_to,
            f01_a_return_makes_no_counter_and_takes_none_below_zero,
            a_return_after_its_time_changes_nothing,
            f02_racing_returns_give_back_one_unit,
            p8_a_return_waits_for_its_partition,
            p1_last_unit_race_never_oversells,
            p2_conservation,
            p2_conservation_under_concurrency,
            p2_reconcile_counts_settled_usage_tail_and_leases,
            f82_only_the_named_difference_is_taken_out,
            f82_two_reconcilers_with_takes_between_repair_once,
            f81_reconcile_finds_nothing_under_load,
            f81_reconcile_beyond_a_trimmed_mark_is_stale,
            p8_reconcile_of_another_life_or_partition_changes_nothing,
            reconcile_never_creates_a_counter,
            p7_reconcile_reads_no_endless_tail,
            overdue_leases_are_listed_oldest_first,
            f09_two_leads_of_a_moment_hold_two_leases,
            give_back_is_remembered,
            overdue_leads_are_claimed_once,
            overdue_leads_wait_for_the_grace,
            p4_a_parked_lead_is_taken_over_only_when_its_wait_is_over,
            journal_is_read_in_order_and_trimmed_by_the_mark,
            f66_events_stand_in_the_journal_when_the_call_answers,
            p8_nothing_is_granted_before_a_life,
            p8_older_life_than_the_stores_grants_nothing,
            p3_keys_that_were_forgotten_come_back_from_the_books,
            appended_wakes_the_settler,
            health_counts_the_journal,
        );
    };
    ($harness:ty: $($behaviour:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $behaviour() {
                $crate::store::$behaviour::<$harness>().await;
            }
        )+
    };
}
