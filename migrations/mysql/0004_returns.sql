-- Leads that their buyers gave back: one row per return, beside the entries of kind 'return' that reverse the sale. Nothing that
-- the version before reads or writes is changed. Every statement can run again.

CREATE TABLE IF NOT EXISTS returns (
    lead_id BINARY(16) NOT NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason VARCHAR(255) NOT NULL,
    -- 1: the sale no longer counts in its cap windows.
    frees_cap TINYINT NOT NULL,
    returned_at DATETIME(6) NOT NULL,
    PRIMARY KEY (lead_id, buyer_id),
    KEY returns_buyer (buyer_id, returned_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE OR REPLACE VIEW v_returns AS
SELECT
    LOWER(CONCAT_WS('-', SUBSTR(HEX(lead_id), 1, 8), SUBSTR(HEX(lead_id), 9, 4), SUBSTR(HEX(lead_id), 13, 4),
        SUBSTR(HEX(lead_id), 17, 4), SUBSTR(HEX(lead_id), 21, 12))) AS lead_id,
    buyer_id, reason, frees_cap, returned_at
FROM returns;
