//! Migrations.

use capgate::ledger::LedgerError;

use crate::support::Books;

async fn start_over(books: &Books) {
    for view in ["v_leads", "v_attempts", "v_entries", "v_cap_usage", "v_returns"] {
        books.raw.run(&format!("DROP VIEW IF EXISTS {view}")).await;
    }
    for table in [
        "_sqlx_migrations",
        "leads",
        "attempts",
        "entries",
        "balances",
        "cap_usage",
        "settlement_marks",
        "dead_letters",
        "reconcile_differences",
        "paused_buyers",
        "cap_usage_begun",
        "lives",
        "gateways",
        "postbacks",
        "returns",
    ] {
        books.raw.run(&format!("DROP TABLE IF EXISTS {table}")).await;
    }
}

pub async fn migrations_run_from_several_gateways_at_once(books: &Books) {
    let others = [books.open_again().await, books.open_again().await];
    for _ in 0..3 {
        start_over(books).await;
        let (first, second, third) = tokio::join!(books.ledger.migrate(), others[0].migrate(), others[1].migrate());
        let steps = [first.unwrap(), second.unwrap(), third.unwrap()];
        let applied = steps.iter().flatten().filter(|step| step.was_applied_now).count();
        assert_eq!(applied, steps[0].len(), "each migration is applied once: {steps:?}");
        books.ledger.check_schema().await.unwrap();
    }
    let again = books.ledger.migrate().await.unwrap();
    assert!(again.iter().all(|step| !step.was_applied_now));
    assert_eq!((again[0].version, again[0].description.as_str()), (1, "books"));
    for other in others {
        other.shut_down().await;
    }
}

pub async fn a_wrong_schema_says_what_to_do(books: &Books) {
    let complaint = async || match books.ledger.check_schema().await {
        Err(LedgerError::Schema(text)) => text,
        other => panic!("{other:?}"),
    };
    books.ledger.check_schema().await.unwrap();
    let row = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
               VALUES (99, 'later', TRUE, x'000000000000000000000000000000000000000000000000000000000000000000000000\
               000000000000000000000000', 0)";
    books.raw.run(row).await;
    assert!(complaint().await.contains("newer version"));
    assert!(matches!(books.ledger.migrate().await, Err(LedgerError::Schema(text)) if text.contains("newer version")));
    books.raw.run("DELETE FROM _sqlx_migrations WHERE version = 99").await;

    books.raw.run("UPDATE _sqlx_migrations SET success = FALSE").await;
    assert!(complaint().await.contains("interrupted"));
    if books.raw.is_mysql() {
        // Interrupted half way: the next run starts it over.
        books.raw.run("DROP TABLE paused_buyers").await;
        books.ledger.migrate().await.unwrap();
        books.ledger.check_schema().await.unwrap();
        assert_eq!(books.ledger.paused_buyers().await.unwrap(), []);
    }

    // Whoever has to find out which build made the books needs the file and both sums.
    let sum =
        books.raw.texts("SELECT LOWER(HEX(checksum)) FROM _sqlx_migrations WHERE version = 3").await.swap_remove(0);
    books.raw.run("UPDATE _sqlx_migrations SET success = TRUE").await;
    books.raw.run("UPDATE _sqlx_migrations SET checksum = x'00c0ffee' WHERE version = 3").await;
    for text in [
        complaint().await,
        match books.ledger.migrate().await {
            Err(LedgerError::Schema(text)) => text,
            other => panic!("{other:?}"),
        },
    ] {
        assert!(text.contains("0003_usage_begun.sql was applied in another form"), "{text}");
        assert!(text.contains("00c0ffee;") && text.ends_with(&sum.clone().unwrap()), "{text}");
    }

    books.raw.run("DELETE FROM _sqlx_migrations").await;
    assert!(complaint().await.contains("capgate migrate"));

    start_over(books).await;
    assert!(complaint().await.contains("no tables yet"));
    books.ledger.migrate().await.unwrap();
    books.ledger.check_schema().await.unwrap();
}
