-- Lives of the store's partitions, and the gateways that are alive.

-- Beside a partition's mark: the server that its life was begun on, and how far it has come.
CREATE TABLE lives (
    partition_id INTEGER NOT NULL PRIMARY KEY,
    life INTEGER NOT NULL,
    server TEXT NOT NULL,
    -- raised: decided here. begun: written down in the store. open: everything is restated and settled.
    stage TEXT NOT NULL
) STRICT;

-- One row per process, written every second. Removed at a clean end, or when it is long stale.
CREATE TABLE gateways (
    gateway_id BLOB NOT NULL PRIMARY KEY,
    beat_at TEXT NOT NULL,
    -- Per partition, in their order and joined by commas: the life that the gateway has restated what it holds under.
    restated TEXT NOT NULL
) STRICT;
