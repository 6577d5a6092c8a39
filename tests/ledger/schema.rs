//! Migrations.

use std::collections::{BTreeMap, BTreeSet};

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
        "attempt_details",
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

/// The files of `migrations/`, in their order: name and text.
fn migrations(database: &str) -> Vec<(String, String)> {
    let folder = format!("{}/migrations/{database}", env!("CARGO_MANIFEST_DIR"));
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("a text"))
    };
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<_> = files.map(|file| read(file.expect("a file").path())).collect();
    files.sort();
    files
}

/// Per column of a table or view: its type, and whether a row may be written without it.
async fn columns(books: &Books) -> BTreeMap<(String, String), (String, bool)> {
    let sql = if books.raw.is_mysql() {
        "SELECT CAST(CONCAT_WS('|', table_name, column_name, column_type, is_nullable = 'YES' OR column_default IS NOT NULL OR \
         extra LIKE '%auto_increment%') AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE()"
    } else {
        "SELECT m.name || '|' || c.name || '|' || c.type || '|' || (c.\"notnull\" = 0 OR c.dflt_value IS NOT NULL) \
         FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type IN ('table', 'view')"
    };
    let rows = books.raw.texts(sql).await;
    let column = |row: Option<String>| {
        let row = row.expect("a text");
        let parts: Vec<&str> = row.split('|').collect();
        ((parts[0].to_owned(), parts[1].to_owned()), (parts[2].to_owned(), parts[3] == "1"))
    };
    rows.into_iter().map(column).collect()
}

/// A gateway of the version before goes on reading and writing while the next one is put in place.
pub async fn f80_a_migration_only_adds(books: &Books) {
    let files = migrations(if books.raw.is_mysql() { "mysql" } else { "sqlite" });
    let twins = migrations(if books.raw.is_mysql() { "sqlite" } else { "mysql" });
    let names = |files: &[(String, String)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&files), names(&twins));
    start_over(books).await;
    let mut before = BTreeMap::new();
    for (name, text) in files {
        books.raw.run(&text).await;
        let after = columns(books).await;
        for (column, (kind, may_be_absent)) in &before {
            let (new_kind, may_be_absent_now) =
                after.get(column).unwrap_or_else(|| panic!("{name} takes {column:?} away"));
            assert_eq!(new_kind, kind, "{name} changes {column:?}");
            assert!(may_be_absent_now >= may_be_absent, "{name} asks for {column:?}");
        }
        let tables: BTreeSet<&String> = before.keys().map(|(table, _)| table).collect();
        for ((table, column), (_, may_be_absent)) in &after {
            let is_new = tables.contains(table) && !before.contains_key(&(table.clone(), column.clone()));
            assert!(!is_new || table.starts_with("v_") || *may_be_absent, "{name} asks for {table}.{column}");
        }
        before = after;
    }
    start_over(books).await;
    books.ledger.migrate().await.unwrap();
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
