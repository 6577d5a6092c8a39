-- What publishers are told about their leads' verdicts. A row is made in the transaction that settles the verdict, and any
-- gateway may send it. Every statement can run again.

CREATE TABLE IF NOT EXISTS postbacks (
    postback_id BIGINT NOT NULL AUTO_INCREMENT,
    lead_id BINARY(16) NOT NULL,
    -- The verdict's place among those of its lead: a lead's postbacks are sent in this order.
    ordinal INT NOT NULL,
    -- The verdict. With the lead's id it makes the message's id, which is the same on each try.
    status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    publisher_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The bytes to post.
    body LONGTEXT NOT NULL,
    -- waiting | delivered | gone | dead | dropped
    state VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tries INT NOT NULL,
    created_at DATETIME(6) NOT NULL,
    first_try_at DATETIME(6) NULL,
    -- When it may be claimed: for its next try, or because a gateway that claimed it has died. Empty when it has ended.
    next_at DATETIME(6) NULL,
    -- Who is sending it now.
    claim BINARY(16) NULL,
    ended_at DATETIME(6) NULL,
    -- Of the last try.
    http_status INT NULL,
    error VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    PRIMARY KEY (postback_id),
    UNIQUE KEY postbacks_verdict (lead_id, ordinal),
    KEY postbacks_due (publisher_id, next_at),
    KEY postbacks_state (state, created_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
