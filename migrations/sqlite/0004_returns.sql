-- Leads that their buyers gave back: one row per return, beside the entries of kind 'return' that reverse the sale. Nothing that
-- the version before reads or writes is changed.

CREATE TABLE returns (
    lead_id BLOB NOT NULL,
    buyer_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- 1: the sale no longer counts in its cap windows.
    frees_cap INTEGER NOT NULL,
    returned_at TEXT NOT NULL,
    PRIMARY KEY (lead_id, buyer_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX returns_buyer ON returns (buyer_id, returned_at);

CREATE VIEW v_returns AS
SELECT
    LOWER(SUBSTR(HEX(lead_id), 1, 8) || '-' || SUBSTR(HEX(lead_id), 9, 4) || '-' || SUBSTR(HEX(lead_id), 13, 4) || '-'
        || SUBSTR(HEX(lead_id), 17, 4) || '-' || SUBSTR(HEX(lead_id), 21, 12)) AS lead_id,
    buyer_id, reason, frees_cap, returned_at
FROM returns;
