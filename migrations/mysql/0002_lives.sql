-- Lives of the store's partitions, and the gateways that are alive. Every statement can run again.

-- Beside a partition's mark: the server that its life was begun on, and how far it has come.
CREATE TABLE IF NOT EXISTS lives (
    partition_id INT NOT NULL,
    life BIGINT NOT NULL,
    server VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- raised: decided here. begun: written down in the store. open: everything is restated and settled.
    stage VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per process, written every second. Removed at a clean end, or when it is long stale.
CREATE TABLE IF NOT EXISTS gateways (
    gateway_id BINARY(16) NOT NULL,
    beat_at DATETIME(6) NOT NULL,
    -- Per partition, in their order and joined by commas: the life that the gateway has restated what it holds under.
    restated LONGTEXT NOT NULL,
    PRIMARY KEY (gateway_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
