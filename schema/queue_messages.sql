-- The log. Rows are inserted, and deleted once every group has settled them. No statement updates a row.
CREATE TABLE IF NOT EXISTS queue_messages (
  topic           VARCHAR(255)    NOT NULL            COMMENT 'topic the message was published to',
  partition_key   VARCHAR(255)    NOT NULL            COMMENT 'key the message was published under',
  `offset`        BIGINT UNSIGNED NOT NULL            COMMENT 'place in the lane: dense, in commit order, never reused',
  id              VARCHAR(255)    NOT NULL            COMMENT 'the publisher''s name for the message, unique in its lane while it is stored',
  payload         LONGBLOB        NOT NULL            COMMENT 'the message itself, bytes',
  payload_bytes   INT UNSIGNED    NOT NULL            COMMENT 'size of payload, so that a fetch is bounded before it reads payloads',
  metadata        JSON            NULL                COMMENT 'object of strings, or NULL for none',
  created_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when this row was inserted, epoch milliseconds UTC; never falls within a lane',
  published_at    BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the message was first published, epoch milliseconds UTC; a copy keeps it',
  expires_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'epoch milliseconds UTC after which it is not delivered any more; 0: never',
  failed_at       BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'dead letter: when its group gave it up, epoch milliseconds UTC; otherwise 0',
  failure_count   INT UNSIGNED    NOT NULL DEFAULT 0  COMMENT 'dead letter: how many attempts failed',
  last_error      TEXT            NULL                COMMENT 'dead letter: how the last attempt failed',
  original_topic  VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'dead letter: topic it was published to',
  original_offset BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'dead letter: its offset there, in the lane of the same key',
  failed_group    VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'dead letter: group that gave it up',
  target_group    VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'the only group it is meant for; empty: every group',
  PRIMARY KEY (topic, partition_key, `offset`)
    COMMENT 'fetch: the next messages of a lane; collection: delete what every group is past',
  UNIQUE KEY by_id (topic, partition_key, id)
    COMMENT 'publish: a message published again under the same id takes no offset'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: the message log';
