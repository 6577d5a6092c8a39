-- What some attempts have beside their row: whom they were about, where the buyer wants nobody twice, and the buyer's own name
-- for the lead. In a table of its own, so that attempts without either cost nothing, and that no large table is rebuilt. Nothing
-- that the version before reads or writes is changed; its views get a column. Every statement can run again.

CREATE TABLE IF NOT EXISTS attempt_details (
    lead_id BINARY(16) NOT NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- A digest of the buyer's own, never a value. Removed when its time is over.
    person BINARY(16) NULL,
    person_until DATETIME(6) NULL,
    -- The buyer's words.
    reference VARCHAR(128) NULL,
    PRIMARY KEY (lead_id, buyer_id),
    KEY attempt_details_person (buyer_id, person, lead_id),
    KEY attempt_details_until (person_until)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE OR REPLACE VIEW v_attempts AS
SELECT
    a.attempt_id,
    LOWER(CONCAT_WS('-', SUBSTR(HEX(a.lead_id), 1, 8), SUBSTR(HEX(a.lead_id), 9, 4), SUBSTR(HEX(a.lead_id), 13, 4),
        SUBSTR(HEX(a.lead_id), 17, 4), SUBSTR(HEX(a.lead_id), 21, 12))) AS lead_id,
    a.buyer_id, a.publisher_id, a.campaign_id, a.ordinal, a.outcome, a.counted, a.http_status, a.reason, a.sent_at,
    a.duration_us, a.windows, a.price_micros, a.payout_micros, a.currency,
    a.lead_id AS lead_key,
    d.reference
FROM attempts a LEFT JOIN attempt_details d ON d.lead_id = a.lead_id AND d.buyer_id = a.buyer_id;
