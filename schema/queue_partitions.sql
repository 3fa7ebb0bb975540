-- One head row per lane, that is per (topic, key). A publisher locks it before it inserts and holds the lock until it
-- commits, so that offset n + 1 of a lane is never visible before offset n. The row with the empty key is the topic
-- row.
CREATE TABLE IF NOT EXISTS queue_partitions (
  topic              VARCHAR(255)     NOT NULL           COMMENT 'topic of the lane',
  partition_key      VARCHAR(255)     NOT NULL           COMMENT 'key of the lane; empty: the topic row',
  head_offset        BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'highest offset given out in the lane; topic row: highest offset that a purge removed',
  max_epoch          BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'topic row: highest fencing token that a purge or a deleted group removed; 0 in a lane',
  holds_dead_letters TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'topic row: 1 when the topic holds dead letters, which only their own retention removes',
  created_at         BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'when the row was created, epoch milliseconds UTC',
  open_lanes         INT UNSIGNED     NOT NULL DEFAULT 64 COMMENT 'topic row: over how many lanes messages without a key are spread; without meaning in a lane',
  PRIMARY KEY (topic, partition_key)
    COMMENT 'publish: lock and advance the heads of a few keys; look: heads of the lanes owned',
  KEY new_lanes (topic, created_at)
    COMMENT 'discover: the lanes of a topic created since the last look'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: head row of every lane';
