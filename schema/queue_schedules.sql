-- Recurring messages: for each row, one message is published at every time of its cron expression.
CREATE TABLE IF NOT EXISTS queue_schedules (
  name           VARCHAR(200)    NOT NULL            COMMENT 'the schedule''s name; with the time it makes the id of each message',
  expression     VARCHAR(255)    NOT NULL            COMMENT 'cron expression: five fields, or six with the second first',
  timezone       VARCHAR(64)     NOT NULL            COMMENT 'IANA time zone that the expression is read in',
  topic          VARCHAR(255)    NOT NULL            COMMENT 'topic that the messages are published to',
  partition_key  VARCHAR(255)    NOT NULL            COMMENT 'key that they are published under',
  payload        LONGBLOB        NOT NULL            COMMENT 'payload of each message, bytes',
  payload_bytes  INT UNSIGNED    NOT NULL            COMMENT 'size of payload, so that a pass is bounded before it reads payloads',
  metadata       JSON            NULL                COMMENT 'object of strings that each message gets besides schedule and fire time, or NULL for none',
  ttl_ms         BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'milliseconds after which a message is not delivered any more; 0: never',
  catch_up       VARCHAR(16)     NOT NULL            COMMENT 'what to publish of what was missed: latest, all or none',
  next_fire_at   BIGINT UNSIGNED NOT NULL            COMMENT 'the earliest time that is not fired yet, epoch milliseconds UTC',
  expression_at  BIGINT UNSIGNED NOT NULL            COMMENT 'since when the expression and the time zone hold, epoch milliseconds UTC',
  last_fire_at   BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'the latest time a message was published for, epoch milliseconds UTC; 0: none yet',
  fired          BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'messages published so far',
  paused_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when an operator paused it, epoch milliseconds UTC; 0: it runs',
  paused_by      VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who paused it',
  pause_reason   VARCHAR(1024)   NOT NULL DEFAULT '' COMMENT 'why it was paused',
  created_at     BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it was first declared, epoch milliseconds UTC',
  updated_at     BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when it was declared last, epoch milliseconds UTC',
  next_local     VARCHAR(128)    NOT NULL DEFAULT '' COMMENT 'next_fire_at as the clock on the wall shows it, RFC 9557; empty or another moment: not noted, as before version 6',
  fired_local    VARCHAR(128)    NOT NULL DEFAULT '' COMMENT 'the latest wall-clock time a message was published for: none at or before it is published again',
  fired_again    VARCHAR(128)    NOT NULL DEFAULT '' COMMENT 'the latest of those that were the second of two equal times',
  tzdata         VARCHAR(16)     NOT NULL DEFAULT '' COMMENT 'version of the time zone data that next_local was planned with; empty: not known',
  PRIMARY KEY (name)
    COMMENT 'declare, fire and steer one schedule',
  KEY by_next (paused_at, next_fire_at)
    COMMENT 'fire: what is due among those that are not paused, and when the next one is'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: recurring messages';
