-- What publishers are told about their leads' verdicts. A row is made in the transaction that settles the verdict, and any
-- gateway may send it.

CREATE TABLE postbacks (
    postback_id INTEGER PRIMARY KEY,
    lead_id BLOB NOT NULL,
    -- The verdict's place among those of its lead: a lead's postbacks are sent in this order.
    ordinal INTEGER NOT NULL,
    -- The verdict. With the lead's id it makes the message's id, which is the same on each try.
    status TEXT NOT NULL,
    publisher_id TEXT NOT NULL,
    -- The bytes to post.
    body TEXT NOT NULL,
    -- waiting | delivered | gone | dead | dropped
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    first_try_at TEXT,
    -- When it may be claimed: for its next try, or because a gateway that claimed it has died. Empty when it has ended.
    next_at TEXT,
    -- Who is sending it now.
    claim BLOB,
    ended_at TEXT,
    -- Of the last try.
    http_status INTEGER,
    error TEXT,
    UNIQUE (lead_id, ordinal)
) STRICT;
CREATE INDEX postbacks_due ON postbacks (publisher_id, next_at);
CREATE INDEX postbacks_state ON postbacks (state, created_at);
