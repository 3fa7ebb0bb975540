-- The owner of a lane for a group. No row is renewed: a lease is valid while its owner's heartbeat is. A row changes
-- when the owner changes, and when a seek or a release raises the epoch.
CREATE TABLE IF NOT EXISTS queue_partition_leases (
  consumer_group VARCHAR(255)    NOT NULL           COMMENT 'consumer group',
  topic          VARCHAR(255)    NOT NULL           COMMENT 'topic of the lane',
  partition_key  VARCHAR(255)    NOT NULL           COMMENT 'key of the lane; empty: the whole topic, held by an archive or a replay',
  leased_by      VARCHAR(255)    NOT NULL           COMMENT 'owner, a subscriber_name of queue_subscriber_heartbeats; empty: nobody',
  lease_epoch    BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'fencing token: grows with every change of owner, seek and release; never reused',
  leased_at      BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'when the owner got it, epoch milliseconds UTC',
  PRIMARY KEY (consumer_group, topic, partition_key)
    COMMENT 'acquire and release: the lanes of a group; flush: is this lane still ours',
  KEY by_owner (consumer_group, topic, leased_by)
    COMMENT 'keeper: read back what this owner holds; look: join owned lanes with their heads'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: owner of every lane, per group';
