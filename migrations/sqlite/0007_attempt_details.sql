-- What some attempts have beside their row: whom they were about, where the buyer wants nobody twice, and the buyer's own name
-- for the lead. In a table of its own, so that attempts without either cost nothing, and that no large table is rebuilt. Nothing
-- that the version before reads or writes is changed; its views get a column.

CREATE TABLE attempt_details (
    lead_id BLOB NOT NULL,
    buyer_id TEXT NOT NULL,
    -- A digest of the buyer's own, never a value. Removed when its time is over.
    person BLOB,
    person_until TEXT,
    -- The buyer's words.
    reference TEXT CHECK (LENGTH(reference) <= 128),
    PRIMARY KEY (lead_id, buyer_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_details_person ON attempt_details (buyer_id, person, lead_id);
CREATE INDEX attempt_details_until ON attempt_details (person_until);

DROP VIEW IF EXISTS v_attempts;
CREATE VIEW v_attempts AS
SELECT
    a.attempt_id,
    LOWER(SUBSTR(HEX(a.lead_id), 1, 8) || '-' || SUBSTR(HEX(a.lead_id), 9, 4) || '-' || SUBSTR(HEX(a.lead_id), 13, 4)
        || '-' || SUBSTR(HEX(a.lead_id), 17, 4) || '-' || SUBSTR(HEX(a.lead_id), 21, 12)) AS lead_id,
    a.buyer_id, a.publisher_id, a.campaign_id, a.ordinal, a.outcome, a.counted, a.http_status, a.reason, a.sent_at,
    a.duration_us, a.windows, a.price_micros, a.payout_micros, a.currency,
    a.lead_id AS lead_key,
    d.reference
FROM attempts a LEFT JOIN attempt_details d ON d.lead_id = a.lead_id AND d.buyer_id = a.buyer_id;
