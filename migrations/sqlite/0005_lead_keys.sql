-- Views by lead: `lead_key` is the id as it is stored, so that a look-up by it goes over the tables' keys:
-- WHERE lead_key = unhex(REPLACE('<id>', '-', '')). Only added: nothing that the version before reads is changed. Every
-- statement can run again.

DROP VIEW IF EXISTS v_leads;
CREATE VIEW v_leads AS
SELECT
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, currency, test, received_at,
    closed_at, payload, explanation, answer,
    lead_id AS lead_key
FROM leads;

DROP VIEW IF EXISTS v_attempts;
CREATE VIEW v_attempts AS
SELECT
    attempt_id,
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    buyer_id, publisher_id, campaign_id, ordinal, outcome, counted, http_status, reason, sent_at, duration_us, windows,
    price_micros, payout_micros, currency,
    lead_id AS lead_key
FROM attempts;

DROP VIEW IF EXISTS v_entries;
CREATE VIEW v_entries AS
SELECT
    entry_id,
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    buyer_id, account, amount_micros, currency, kind, booked_at,
    lead_id AS lead_key
FROM entries;
