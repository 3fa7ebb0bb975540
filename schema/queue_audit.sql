-- What operators did: one row per transaction of a verb of administration, written by that transaction.
CREATE TABLE IF NOT EXISTS queue_audit (
  acted_at       BIGINT UNSIGNED NOT NULL            COMMENT 'when the transaction wrote this row, epoch milliseconds UTC',
  id             CHAR(32)        NOT NULL            COMMENT 'the call of the verb, random: a call may take several transactions',
  part           INT UNSIGNED    NOT NULL            COMMENT 'number of the transaction in the call; attempts that failed are counted, too',
  verb           VARCHAR(64)     NOT NULL            COMMENT 'the method of administration, such as skip',
  topic          VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'topic; a schedule: the one that it publishes to',
  consumer_group VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'consumer group; empty: none',
  partition_key  VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'key of the lane; empty: none, or all of them',
  choice         VARCHAR(2048)   NOT NULL DEFAULT '' COMMENT 'what was chosen, such as an offset or a schedule',
  messages       BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'messages that this transaction passed, deleted or redrove',
  acted_by       VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who did it, as the caller said',
  reason         VARCHAR(2048)   NOT NULL DEFAULT '' COMMENT 'why, as the caller said',
  account        VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'account at the server',
  host           VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'machine of the process',
  pid            INT UNSIGNED    NOT NULL DEFAULT 0  COMMENT 'process on that machine',
  PRIMARY KEY (acted_at, id, part)
    COMMENT 'verbs: one row each, and the oldest to delete; administration: the latest',
  KEY by_topic (topic, acted_at)
    COMMENT 'administration: the latest of a topic'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: what operators did';
