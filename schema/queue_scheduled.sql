-- Messages that are not due yet. They wait outside the log, and so hold back no watermark and no key. A process that
-- finds one due moves it to the end of its lane.
CREATE TABLE IF NOT EXISTS queue_scheduled (
  topic         VARCHAR(255)    NOT NULL            COMMENT 'topic the message is published to',
  partition_key VARCHAR(255)    NOT NULL            COMMENT 'key the message is published under',
  id            VARCHAR(255)    NOT NULL            COMMENT 'the publisher''s name for the message, unique in its lane: here and in the log',
  payload       LONGBLOB        NOT NULL            COMMENT 'the message itself, bytes',
  payload_bytes INT UNSIGNED    NOT NULL            COMMENT 'size of payload, so that a move is bounded before it reads payloads',
  metadata      JSON            NULL                COMMENT 'object of strings, or NULL for none',
  created_at    BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when this row was inserted, epoch milliseconds UTC',
  published_at  BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the message was published, epoch milliseconds UTC; the log keeps it',
  deliver_at    BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it is due, epoch milliseconds UTC',
  ttl_ms        BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'for how long it may be delivered from the moment it is due; 0: for ever',
  target_group  VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'the only group it is meant for; empty: every group',
  seq           BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'order within created_at: the microsecond times a million, and the place in its publish call',
  PRIMARY KEY (topic, partition_key, id)
    COMMENT 'publish: an id is scheduled once; move and cancel: exact rows; list the messages of a topic or lane',
  KEY by_due (deliver_at, created_at, seq)
    COMMENT 'what is due, in the order in which it goes into the log; when the next one is'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: messages that are not due yet';
