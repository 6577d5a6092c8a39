-- The books; the twin of migrations/mysql. Times are UTC text with microseconds ('2026-03-08 05:00:00.000000'), which
-- sorts as time and reads as MySQL prints it. STRICT tables refuse what does not fit instead of bending it.

CREATE TABLE leads (
    lead_id BLOB NOT NULL PRIMARY KEY,
    publisher_id TEXT NOT NULL,
    campaign_id TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    buyer_id TEXT,
    price_micros INTEGER,
    payout_micros INTEGER,
    currency TEXT,
    test INTEGER NOT NULL,
    received_at TEXT NOT NULL,
    closed_at TEXT,
    -- 0: only the verdict has come so far; received_at is then the time of the verdict.
    has_received INTEGER NOT NULL,
    has_payload INTEGER NOT NULL,
    payload TEXT,
    explanation TEXT,
    answer TEXT,
    key_hash BLOB,
    fingerprint BLOB
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX leads_key ON leads (key_hash, publisher_id);
CREATE INDEX leads_publisher ON leads (publisher_id, received_at);
CREATE INDEX leads_received ON leads (received_at);
CREATE INDEX leads_payload ON leads (has_payload, received_at);

CREATE TABLE attempts (
    attempt_id INTEGER PRIMARY KEY,
    lead_id BLOB NOT NULL,
    buyer_id TEXT NOT NULL,
    publisher_id TEXT NOT NULL,
    campaign_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    counted INTEGER NOT NULL,
    http_status INTEGER,
    reason TEXT,
    sent_at TEXT NOT NULL,
    duration_us INTEGER NOT NULL,
    windows TEXT NOT NULL,
    price_micros INTEGER NOT NULL,
    payout_micros INTEGER NOT NULL,
    currency TEXT NOT NULL,
    UNIQUE (lead_id, buyer_id)
) STRICT;
CREATE INDEX attempts_buyer ON attempts (buyer_id, sent_at);
-- Doubts that wait to be resolved are few among many attempts.
CREATE INDEX attempts_outcome ON attempts (buyer_id, outcome, sent_at);

CREATE TABLE entries (
    entry_id INTEGER PRIMARY KEY,
    lead_id BLOB NOT NULL,
    buyer_id TEXT NOT NULL,
    account TEXT NOT NULL,
    amount_micros INTEGER NOT NULL,
    currency TEXT NOT NULL,
    kind TEXT NOT NULL,
    booked_at TEXT NOT NULL,
    UNIQUE (lead_id, buyer_id, account, kind)
) STRICT;
CREATE INDEX entries_account ON entries (account, currency, booked_at);

CREATE TABLE balances (
    account TEXT NOT NULL,
    currency TEXT NOT NULL,
    balance_micros INTEGER NOT NULL,
    PRIMARY KEY (account, currency)
) STRICT, WITHOUT ROWID;

CREATE TABLE cap_usage (
    buyer_id TEXT NOT NULL,
    cap_id TEXT NOT NULL CHECK (LENGTH(CAST(cap_id AS BLOB)) <= 1024),
    window_start TEXT NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (buyer_id, cap_id, window_start)
) STRICT, WITHOUT ROWID;
CREATE INDEX cap_usage_start ON cap_usage (window_start);

CREATE TABLE settlement_marks (
    partition_id INTEGER PRIMARY KEY,
    life INTEGER NOT NULL,
    entry_ms INTEGER NOT NULL,
    entry_seq INTEGER NOT NULL
) STRICT;

CREATE TABLE dead_letters (
    dead_letter_id INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    life INTEGER NOT NULL,
    entry_ms INTEGER NOT NULL,
    entry_seq INTEGER NOT NULL,
    reason TEXT NOT NULL,
    -- The event as it stood in the journal; removed with the payloads, because it may hold personal data.
    event BLOB,
    at TEXT NOT NULL DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    UNIQUE (partition_id, life, entry_ms, entry_seq)
) STRICT;
CREATE INDEX dead_letters_at ON dead_letters (at);

CREATE TABLE reconcile_differences (
    difference_id INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    buyer_id TEXT NOT NULL,
    cap_id TEXT NOT NULL,
    window_start TEXT NOT NULL,
    counter INTEGER,
    expected INTEGER NOT NULL,
    action TEXT NOT NULL
) STRICT;
CREATE INDEX reconcile_differences_at ON reconcile_differences (at);

CREATE TABLE paused_buyers (
    buyer_id TEXT NOT NULL PRIMARY KEY,
    paused_at TEXT NOT NULL DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'now') || '000')
) STRICT;

CREATE VIEW v_leads AS
SELECT
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, currency, test, received_at,
    closed_at, payload, explanation, answer
FROM leads;

CREATE VIEW v_attempts AS
SELECT
    attempt_id,
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    buyer_id, publisher_id, campaign_id, ordinal, outcome, counted, http_status, reason, sent_at, duration_us, windows,
    price_micros, payout_micros, currency
FROM attempts;

CREATE VIEW v_entries AS
SELECT
    entry_id,
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    buyer_id, account, amount_micros, currency, kind, booked_at
FROM entries;

CREATE VIEW v_cap_usage AS
SELECT buyer_id, cap_id, window_start, used FROM cap_usage;
