-- The groups that read a topic. A message stays in the log until every group registered here has settled it.
CREATE TABLE IF NOT EXISTS queue_groups (
  consumer_group VARCHAR(255)    NOT NULL            COMMENT 'consumer group',
  topic          VARCHAR(255)    NOT NULL            COMMENT 'topic it reads',
  delivery_order VARCHAR(16)     NOT NULL            COMMENT 'strict, serial or concurrent, the same for every member; archive or replay: no subscribers',
  start_at       VARCHAR(32)     NOT NULL            COMMENT 'where it began: earliest, latest or an instant in UTC; used at registration only. Of an archive: which one',
  paused_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when an operator paused it, epoch milliseconds UTC; 0: it runs',
  paused_by      VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who paused it',
  pause_reason   VARCHAR(1024)   NOT NULL DEFAULT '' COMMENT 'why it was paused',
  lane_pauses    BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'grows with every pause and resume of one of its lanes: who follows it knows when to look which are paused',
  retention_ms   BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'messages stay at least this long after they were inserted; the longest of all groups counts',
  history_ms     BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'rows of queue_history are kept so long; 0: it writes none',
  dead_letter_ms BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'its dead letters are kept so long; 0: for ever',
  created_at     BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it was registered, epoch milliseconds UTC',
  dead_letter_topic VARCHAR(255) NULL            COMMENT 'where its dead letters go; empty: it keeps none; NULL: it has not said, as before version 3',
  PRIMARY KEY (consumer_group, topic)
    COMMENT 'register and check one group; is it paused',
  KEY by_topic (topic)
    COMMENT 'collection: all groups of a topic'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: registered consumer groups';
