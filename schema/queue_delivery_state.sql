-- Exceptions only: messages that were settled out of order, wait for another attempt, or have one in flight. A message
-- that succeeds at once and in order never has a row here.
CREATE TABLE IF NOT EXISTS queue_delivery_state (
  consumer_group   VARCHAR(255)     NOT NULL           COMMENT 'consumer group; empty: a dead letter that was redriven or deleted, for every group',
  topic            VARCHAR(255)     NOT NULL           COMMENT 'topic of the lane',
  partition_key    VARCHAR(255)     NOT NULL           COMMENT 'key of the lane',
  message_offset   BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'first offset of the run of messages that the row is about',
  through_offset   BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'last offset of the run; message_offset unless the run is acked',
  acked            TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: the run is settled, ahead of the watermark',
  invisible_until  BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'not delivered before, epoch milliseconds UTC',
  retry_count      INT UNSIGNED     NOT NULL DEFAULT 0 COMMENT 'attempts started so far; a postponed message starts again from 0',
  postponed        INT UNSIGNED     NOT NULL DEFAULT 0 COMMENT 'how often a handler postponed the message',
  crashed          TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: an earlier attempt ended with its process',
  alone            TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: the attempt in flight runs with no other message in its process; if none is in flight: the last one died so',
  released         TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: an operator took the last attempt away while it ran; it is delivered again, whatever caps the deliveries',
  lease_epoch      BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'fencing token of the delivery in flight; 0: none is',
  first_attempt_at BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'when the first attempt started, epoch milliseconds UTC',
  last_attempt_at  BIGINT UNSIGNED  NOT NULL DEFAULT 0 COMMENT 'when the last attempt started, epoch milliseconds UTC',
  last_error       TEXT             NULL               COMMENT 'how the last attempt failed',
  PRIMARY KEY (consumer_group, topic, partition_key, message_offset)
    COMMENT 'load: the exceptions of the lanes just acquired; flush: insert, change and delete them by exact key'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: deliveries that did not simply succeed in order';
