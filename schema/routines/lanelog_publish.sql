-- Publishes one message: lanelog_append for callers that want no result, such as triggers, events and scripts.
CREATE PROCEDURE lanelog_publish(
  IN p_topic   LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  IN p_key     LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  IN p_payload LONGBLOB,
  IN p_id      LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
  MODIFIES SQL DATA SQL SECURITY INVOKER
  COMMENT 'lanelog 1'
BEGIN
  DECLARE v_offset BIGINT UNSIGNED;
  SET v_offset = lanelog_append(p_topic, p_key, p_payload, p_id);  -- not DO, which hides errors
END
