-- How messages left the groups that keep history: one row per message and group, written by the transaction that
-- settled the message.
CREATE TABLE IF NOT EXISTS queue_history (
  consumer_group     VARCHAR(255)    NOT NULL            COMMENT 'consumer group that the message left',
  topic              VARCHAR(255)    NOT NULL            COMMENT 'topic of the lane',
  partition_key      VARCHAR(255)    NOT NULL            COMMENT 'key of the lane',
  message_offset     BIGINT UNSIGNED NOT NULL            COMMENT 'offset of the message in its lane',
  id                 VARCHAR(255)    NOT NULL            COMMENT 'the message''s id',
  outcome            VARCHAR(16)     NOT NULL            COMMENT 'success, rejected, failed, lock_expired, expired or skipped',
  attempts           INT UNSIGNED    NOT NULL DEFAULT 0  COMMENT 'attempts started since it was published or last postponed',
  published_at       BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the message was first published, epoch milliseconds UTC',
  first_delivered_at BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the first of these attempts started, epoch milliseconds UTC; 0: none did',
  finished_at        BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it left, epoch milliseconds UTC',
  owner              VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who settled it, a subscriber_name; skipped: who had the lane; empty: nobody',
  last_error         TEXT            NULL                COMMENT 'how the last failed attempt ended, or why it was skipped',
  PRIMARY KEY (consumer_group, topic, partition_key, message_offset)
    COMMENT 'flush: one row per message, written again after an unknown commit or a seek; administration: one lane',
  KEY by_finished (consumer_group, topic, finished_at)
    COMMENT 'janitor: the oldest of a group; administration: the latest; which groups have any'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: how messages left the groups that keep history';
