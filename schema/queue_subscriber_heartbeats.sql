-- One row per subscription of a process to a topic. Only its owner writes it, one row at a time. Rows of stopped
-- subscriptions are deleted later. A row with an empty name marks a group that was deleted while it had members.
-- Of an owner that others found dead, liveness_lock is 'dead by ' and the name of who found it.
CREATE TABLE IF NOT EXISTS queue_subscriber_heartbeats (
  consumer_group    VARCHAR(255)    NOT NULL            COMMENT 'consumer group',
  topic             VARCHAR(255)    NOT NULL            COMMENT 'topic the subscription reads',
  subscriber_name   VARCHAR(255)    NOT NULL            COMMENT 'owner: name of the subscription and a random incarnation',
  heartbeat_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'last sign of life, epoch milliseconds UTC',
  expires_at        BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when its leases may be taken, epoch milliseconds UTC',
  deregistered_at   BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it stopped, epoch milliseconds UTC; 0: active',
  liveness_lock     VARCHAR(64)     NOT NULL DEFAULT '' COMMENT 'name of the server lock that its session holds and a dead process does not',
  server_started_at BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'start of the server that granted the lock, epoch milliseconds UTC: a restart frees every lock',
  incarnation       VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'incarnation of the server that granted the lock: its start, identity, host, port and data directory; empty: not known',
  wake_host         VARCHAR(64)     NOT NULL DEFAULT '' COMMENT 'boot and network namespace of the process, as a hash: publishers with the same one reach its socket',
  wake_address      VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'where hints of new messages are sent to; empty: nowhere',
  wake_token        BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'random number that a hint must carry',
  workload          TEXT            NULL                COMMENT 'what the workers did at the last heartbeat, as JSON: how many are busy, since when none has ended, and where the longest stand; NULL: not known',
  PRIMARY KEY (consumer_group, topic, subscriber_name)
    COMMENT 'heartbeat: renew one row; plan: the members of a group'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: signs of life of subscribers';
