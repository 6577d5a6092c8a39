//! Migrations: bringing the schema up to date, and saying what is wrong with it.

use std::borrow::Cow;
use std::collections::HashMap;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};

use super::session::{Database, DbError, Kind};
use crate::ledger::{LedgerError, MigrationStep};

/// A migration compiled in.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Rises by one.
    pub version: i64,
    /// Its name.
    pub description: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

/// As the migrator wants them.
pub fn migrations(sources: &[Source]) -> Vec<Migration> {
    let migration = |source: &Source| {
        let description = Cow::Borrowed(source.description);
        Migration::new(source.version, description, MigrationType::Simple, Cow::Borrowed(source.sql), false)
    };
    sources.iter().map(migration).collect()
}

/// Applies what is missing. The caller has made sure that it is alone.
pub async fn apply<C: Migrate + Send>(
    connection: &mut C,
    migrations: Vec<Migration>,
    classify: fn(&sqlx::Error) -> DbError,
) -> Result<Vec<MigrationStep>, LedgerError> {
    let wrong = |error: MigrateError| explain(&error, classify);
    connection.ensure_migrations_table().await.map_err(wrong)?;
    let applied = connection.list_applied_migrations().await.map_err(wrong)?;
    for one in &applied {
        match migrations.iter().find(|needed| needed.version == one.version) {
            None => return Err(LedgerError::Schema(newer(one.version))),
            Some(needed) if needed.checksum != one.checksum => {
                return Err(LedgerError::Schema(changed(needed, &one.checksum)));
            }
            Some(_) => {}
        }
    }
    let before: Vec<i64> = applied.iter().map(|applied| applied.version).collect();
    let migrator = Migrator { migrations: migrations.into(), locking: false, ..Migrator::DEFAULT };
    migrator.run_direct(connection).await.map_err(wrong)?;
    let step = |migration: &Migration| MigrationStep {
        version: migration.version,
        description: migration.description.to_string(),
        was_applied_now: !before.contains(&migration.version),
    };
    Ok(migrator.iter().map(step).collect())
}

/// What a failed migration means and what to do.
pub fn explain(error: &MigrateError, classify: fn(&sqlx::Error) -> DbError) -> LedgerError {
    match error {
        MigrateError::Execute(error) => classify(error).into(),
        MigrateError::ExecuteMigration(error, version) => match classify(error) {
            DbError::Away(text) | DbError::Broken(text) | DbError::Conflict(text) => {
                LedgerError::NotDone(format!("migration {version}: {text}"))
            }
            other => LedgerError::Schema(format!("migration {version} failed: {}", LedgerError::from(other))),
        },
        MigrateError::VersionMissing(version) => LedgerError::Schema(newer(*version)),
        MigrateError::Dirty(version) => LedgerError::Schema(unfinished(*version)),
        _ => LedgerError::Schema("the migrations do not fit together".to_owned()),
    }
}

fn newer(version: i64) -> String {
    format!(
        "it has migration {version} of a newer version of capgate: run that version, this one would damage the books"
    )
}

/// A migration in force is not the one of this version.
fn changed(needed: &Migration, applied: &[u8]) -> String {
    let file = file_name(needed);
    let hex = |sum: &[u8]| -> String {
        let halves = sum.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves.filter_map(|half| char::from_digit(half.into(), 16)).collect()
    };
    format!(
        "migration {file} was applied in another form than this version knows, so the books were made by another build. \
         SHA-384 as applied: {}; of the file in this version: {}",
        hex(applied),
        hex(&needed.checksum)
    )
}

/// As it is called under `migrations/`.
fn file_name(migration: &Migration) -> String {
    format!("{:04}_{}.sql", migration.version, migration.description.replace(' ', "_"))
}

fn unfinished(version: i64) -> String {
    format!("migration {version} was interrupted: run `capgate migrate` again")
}

/// Compares what was applied with what this version needs.
pub async fn check(database: &dyn Database) -> Result<(), LedgerError> {
    let mut session = database.reader().await?;
    let kinds = [Kind::Int, Kind::Int, Kind::Bytes];
    let sql = "SELECT version, success, checksum FROM _sqlx_migrations ORDER BY version";
    let rows = session.fetch(sql.into(), Vec::new(), &kinds).await.map_err(|error| match error {
        DbError::Schema(_) => LedgerError::Schema("it has no tables yet: run `capgate migrate`".to_owned()),
        other => other.into(),
    })?;
    session.release();
    let mut applied = HashMap::new();
    for mut row in rows {
        let (version, is_done) = (row.int()?, row.int()? != 0);
        applied.insert(version, (is_done, row.opt_bytes()?.unwrap_or_default()));
    }
    for needed in database.migrations() {
        match applied.remove(&needed.version) {
            None => {
                let text = format!("migration {} is missing: run `capgate migrate`", file_name(&needed));
                return Err(LedgerError::Schema(text));
            }
            Some((false, _)) => return Err(LedgerError::Schema(unfinished(needed.version))),
            Some((true, checksum)) if checksum[..] != needed.checksum[..] => {
                return Err(LedgerError::Schema(changed(&needed, &checksum)));
            }
            Some((true, _)) => {}
        }
    }
    match applied.keys().max() {
        Some(version) => Err(LedgerError::Schema(newer(*version))),
        None => Ok(()),
    }
}
