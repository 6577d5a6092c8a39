-- The books. Every statement can run again: DDL commits by itself here, so an interrupted migration starts over.
--
-- Times are UTC with microseconds. Money is BIGINT micros beside a currency. Ids of publishers, buyers and campaigns hold
-- only A-Z a-z 0-9 . _ - and are compared byte for byte; cap ids are free text and therefore VARBINARY, because every
-- collation that MySQL and MariaDB share takes 'x' and 'x ' for the same key. No foreign keys: events of one lead arrive
-- from different partitions in any order.

CREATE TABLE IF NOT EXISTS leads (
    lead_id BINARY(16) NOT NULL,
    publisher_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    campaign_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason VARCHAR(255) NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    price_micros BIGINT NULL,
    payout_micros BIGINT NULL,
    currency CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NULL,
    test TINYINT NOT NULL,
    received_at DATETIME(6) NOT NULL,
    closed_at DATETIME(6) NULL,
    -- 0: only the verdict has come so far; received_at is then the time of the verdict.
    has_received TINYINT NOT NULL,
    has_payload TINYINT NOT NULL,
    payload LONGTEXT NULL,
    explanation LONGTEXT NULL,
    answer LONGTEXT NULL,
    key_hash BINARY(32) NULL,
    fingerprint BINARY(32) NULL,
    PRIMARY KEY (lead_id),
    UNIQUE KEY leads_key (key_hash, publisher_id),
    KEY leads_publisher (publisher_id, received_at),
    KEY leads_received (received_at),
    KEY leads_payload (has_payload, received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS attempts (
    attempt_id BIGINT NOT NULL AUTO_INCREMENT,
    lead_id BINARY(16) NOT NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    publisher_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    campaign_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ordinal INT NOT NULL,
    outcome VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    counted TINYINT NOT NULL,
    http_status INT NULL,
    reason VARCHAR(255) NULL,
    sent_at DATETIME(6) NOT NULL,
    duration_us BIGINT NOT NULL,
    windows LONGTEXT NOT NULL,
    price_micros BIGINT NOT NULL,
    payout_micros BIGINT NOT NULL,
    currency CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (lead_id, buyer_id),
    UNIQUE KEY attempts_id (attempt_id),
    KEY attempts_buyer (buyer_id, sent_at),
    -- Doubts that wait to be resolved are few among many attempts.
    KEY attempts_outcome (buyer_id, outcome, sent_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS entries (
    entry_id BIGINT NOT NULL AUTO_INCREMENT,
    lead_id BINARY(16) NOT NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    account VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    amount_micros BIGINT NOT NULL,
    currency CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    booked_at DATETIME(6) NOT NULL,
    PRIMARY KEY (entry_id),
    UNIQUE KEY entries_line (lead_id, buyer_id, account, kind),
    KEY entries_account (account, currency, booked_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS balances (
    account VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    currency CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    balance_micros BIGINT NOT NULL,
    PRIMARY KEY (account, currency)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS cap_usage (
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cap_id VARBINARY(1024) NOT NULL,
    window_start DATETIME(6) NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (buyer_id, cap_id, window_start),
    KEY cap_usage_start (window_start)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS settlement_marks (
    partition_id INT NOT NULL,
    life BIGINT NOT NULL,
    entry_ms BIGINT NOT NULL,
    entry_seq BIGINT NOT NULL,
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS dead_letters (
    dead_letter_id BIGINT NOT NULL AUTO_INCREMENT,
    partition_id INT NOT NULL,
    life BIGINT NOT NULL,
    entry_ms BIGINT NOT NULL,
    entry_seq BIGINT NOT NULL,
    reason VARCHAR(255) NOT NULL,
    -- The event as it stood in the journal; removed with the payloads, because it may hold personal data.
    event LONGBLOB NULL,
    at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (dead_letter_id),
    UNIQUE KEY dead_letters_place (partition_id, life, entry_ms, entry_seq),
    KEY dead_letters_at (at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS reconcile_differences (
    difference_id BIGINT NOT NULL AUTO_INCREMENT,
    at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cap_id VARBINARY(1024) NOT NULL,
    window_start DATETIME(6) NOT NULL,
    counter BIGINT NULL,
    expected BIGINT NOT NULL,
    action VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (difference_id),
    KEY reconcile_differences_at (at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS paused_buyers (
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    paused_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (buyer_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE OR REPLACE VIEW v_leads AS
SELECT
    LOWER(CONCAT_WS('-', SUBSTR(HEX(lead_id), 1, 8), SUBSTR(HEX(lead_id), 9, 4), SUBSTR(HEX(lead_id), 13, 4),
        SUBSTR(HEX(lead_id), 17, 4), SUBSTR(HEX(lead_id), 21, 12))) AS lead_id,
    publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, currency, test, received_at,
    closed_at, payload, explanation, answer
FROM leads;

CREATE OR REPLACE VIEW v_attempts AS
SELECT
    attempt_id,
    LOWER(CONCAT_WS('-', SUBSTR(HEX(lead_id), 1, 8), SUBSTR(HEX(lead_id), 9, 4), SUBSTR(HEX(lead_id), 13, 4),
        SUBSTR(HEX(lead_id), 17, 4), SUBSTR(HEX(lead_id), 21, 12))) AS lead_id,
    buyer_id, publisher_id, campaign_id, ordinal, outcome, counted, http_status, reason, sent_at, duration_us, windows,
    price_micros, payout_micros, currency
FROM attempts;

CREATE OR REPLACE VIEW v_entries AS
SELECT
    entry_id,
    LOWER(CONCAT_WS('-', SUBSTR(HEX(lead_id), 1, 8), SUBSTR(HEX(lead_id), 9, 4), SUBSTR(HEX(lead_id), 13, 4),
        SUBSTR(HEX(lead_id), 17, 4), SUBSTR(HEX(lead_id), 21, 12))) AS lead_id,
    buyer_id, account, amount_micros, currency, kind, booked_at
FROM entries;

CREATE OR REPLACE VIEW v_cap_usage AS
SELECT buyer_id, CONVERT(cap_id USING utf8mb4) AS cap_id, window_start, used FROM cap_usage;
