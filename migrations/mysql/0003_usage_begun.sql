-- What a row of cap_usage held when it was made, for a cap that was new in mid-window: the past that no attempt names. With
-- it, every row of cap_usage can be added up again from the attempts.

CREATE TABLE IF NOT EXISTS cap_usage_begun (
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cap_id VARBINARY(1024) NOT NULL,
    window_start DATETIME(6) NOT NULL,
    begun BIGINT NOT NULL,
    PRIMARY KEY (buyer_id, cap_id, window_start)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
