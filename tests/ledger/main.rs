//! One list of behaviours, run on every ledger; and the settler above it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected should stop there")]
#![allow(clippy::print_stdout, reason = "seeds are printed for the day a random test fails")]

mod auditing;
mod events;
mod journal;
mod lives;
mod postbacks;
mod reading;
mod reconciling;
mod returning;
mod schema;
mod settler;
mod settling;
mod sharing;
mod support;
mod trouble;

#[cfg(feature = "server-tests")]
#[path = "../support/mariadb.rs"]
mod mariadb;
#[cfg(feature = "server-tests")]
mod mysql;
#[cfg(feature = "server-tests")]
mod outages;
mod sqlite;

/// Makes one test of each behaviour for the kind of books that `$open` opens.
macro_rules! behaviours {
    ($open:path: $($module:ident { $($name:ident),+ $(,)? })+) => { $(
        mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::support::run($open().await, |books| async move { $crate::$module::$name(&books).await }).await;
            }
        )+ }
    )+ };
}

/// The whole list.
macro_rules! all_behaviours {
    ($open:path) => {
        $crate::behaviours! { $open:
            settling {
                p10_a_parked_lead_is_told_of_and_a_late_decision_is_only_noted,
                p5_a_lead_and_its_verdict_become_one_row_in_any_order,
                p6_sales_sum_to_zero_and_balances_follow,
                p2_usage_counts_exactly_what_counts,
                a_contested_yes_is_booked_when_it_is_resolved,
                a_closing_event_books_a_late_yes_once,
                test_leads_are_rows_without_money_or_caps,
                f72_every_event_five_times_in_different_batches,
                f78_any_order_gives_the_same_books,
                f42_keys_and_ids_differ_by_their_bytes,
                a_second_lead_under_a_used_key_is_kept_without_it,
                batches_are_bounded_and_shared_between_partitions,
            }
            trouble {
                f75_only_the_culprit_becomes_a_dead_letter,
                f75_a_dead_letter_is_replayed_when_its_cause_is_gone,
                f73_an_overflowing_balance_is_refused_and_not_altered,
                f74_large_batches_and_large_payloads,
                f80_an_unknown_version_stops_its_partition_only,
                f71_a_cancelled_settlement_leaves_no_transaction_behind,
                a_journal_that_cannot_be_read_holds_up_nobody_else,
                f90_refusals_never_quote_values,
            }
            sharing {
                two_settlers_at_once_settle_everything_once,
                p2_usage_and_mark_are_of_one_instant,
                a_new_life_starts_with_an_empty_mark,
                the_number_of_partitions_is_written_down,
                two_gateways_start_at_once_with_different_numbers,
            }
            reading {
                views_are_readable,
                usage_is_read_with_its_mark,
                leads_are_found_by_key,
                a_lead_is_told_with_attempts_and_entries,
                counted_attempts_carry_what_a_new_cap_needs,
                doubts_are_listed_from_the_oldest_on_page_by_page,
                paused_buyers_are_remembered,
                payloads_are_removed_and_rows_stay,
                a_backlog_of_payloads_is_removed_by_several_gateways_at_once,
                totals_find_books_that_do_not_balance,
                the_named_queries_of_the_page_go_over_an_index,
            }
            lives {
                f23_a_life_is_raised_for_one_server,
                stages_belong_to_their_life,
                p1_gateways_that_are_alive_are_known_to_each_other,
                f40_leads_are_told_again_in_order_page_by_page,
                attempts_are_found_by_lead_and_buyer,
            }
            reconciling {
                p2_usage_begins_once_and_settlement_adds_to_it,
                p2_usage_begins_beside_settlement,
                f33_the_newest_window_that_something_counts_in_is_known,
                f84_differences_are_written_down,
                f84_dead_letters_are_counted_by_partition_and_time,
            }
            returning {
                p6_a_return_is_the_sale_the_other_way_round,
                f72_a_return_is_booked_once_in_whatever_batches,
                p6_a_sale_and_its_return_in_one_batch,
                p6_nothing_is_reversed_that_was_never_booked,
                p6_an_audit_finds_a_return_that_is_not_its_sale,
            }
            auditing {
                p6_an_audit_of_good_books_finds_nothing,
                p6_an_audit_finds_each_row_that_was_changed_by_hand,
                p2_a_caps_past_is_part_of_its_usage,
                an_audit_goes_page_by_page,
            }
            postbacks {
                f72_a_verdict_is_told_once_however_often_it_is_settled,
                each_verdict_of_a_lead_is_told_in_order,
                a_postback_is_one_senders_until_its_claim_ends,
                p7_a_publishers_backlog_takes_nobody_elses_turn,
                postbacks_that_ended_are_listed_and_start_over,
                postbacks_without_an_address_are_dropped_and_old_ones_removed,
            }
            schema {
                migrations_run_from_several_gateways_at_once,
                a_wrong_schema_says_what_to_do,
                f80_a_migration_only_adds,
            }
        }
    };
}

pub(crate) use {all_behaviours, behaviours};
