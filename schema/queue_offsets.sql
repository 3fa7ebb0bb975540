-- How far a group is in a lane. All messages up to offset_acked are settled. Settled messages above it have rows in
-- queue_delivery_state. The row of the empty group is the lane's floor: how far collection has released and deleted.
CREATE TABLE IF NOT EXISTS queue_offsets (
  consumer_group VARCHAR(255)    NOT NULL            COMMENT 'consumer group; empty: the floor of the lane',
  topic          VARCHAR(255)    NOT NULL            COMMENT 'topic of the lane',
  partition_key  VARCHAR(255)    NOT NULL            COMMENT 'key of the lane',
  offset_acked   BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'everything up to here is settled; floor: released for collection; only a seek lowers it',
  marked_through BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'run mark: offsets above offset_acked up to here without a delivery row are handed out; floor: deleted up to here',
  marked_epoch   BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'fencing token of the owner that set the run mark',
  marked_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the run mark was set, epoch milliseconds UTC',
  paused_at      BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when an operator paused this lane for the group, epoch milliseconds UTC; 0: it runs',
  paused_by      VARCHAR(255)    NOT NULL DEFAULT '' COMMENT 'who paused this lane',
  pause_reason   VARCHAR(1024)   NOT NULL DEFAULT '' COMMENT 'why this lane was paused',
  updated_at     BIGINT UNSIGNED NOT NULL DEFAULT 0  COMMENT 'when the row last changed, epoch milliseconds UTC',
  PRIMARY KEY (consumer_group, topic, partition_key)
    COMMENT 'flush: watermarks of the lanes of one group; collection: watermarks of all groups of a lane',
  KEY by_topic (topic)
    COMMENT 'administration: which groups have read a topic'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: watermark of every group in every lane';
