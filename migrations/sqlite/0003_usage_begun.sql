-- What a row of cap_usage held when it was made, for a cap that was new in mid-window: the past that no attempt names. With
-- it, every row of cap_usage can be added up again from the attempts.

CREATE TABLE cap_usage_begun (
    buyer_id TEXT NOT NULL,
    cap_id TEXT NOT NULL CHECK (LENGTH(CAST(cap_id AS BLOB)) <= 1024),
    window_start TEXT NOT NULL,
    begun INTEGER NOT NULL,
    PRIMARY KEY (buyer_id, cap_id, window_start)
) STRICT, WITHOUT ROWID;
