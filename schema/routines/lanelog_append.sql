-- Appends one message in the transaction that is open, or in one of its own under autocommit: a function is one
-- statement of its caller's, so nothing of it stays if it fails. Returns the offset; 0: the id waits in
-- queue_scheduled.
--
-- In a function, as below a trigger, every read of a table that it also writes locks exclusively, and a search for a
-- missing row locks the gap (REPEATABLE READ). So nothing is searched: a head is inserted, and an existing one is locked
-- by that. Only then, for a new lane, the topic row is locked, against the purge that would remove what the lane's
-- offsets begin behind. That is against the order of locks elsewhere (topic row, floor, head): who makes the same lane
-- at the same moment, or registers a group, may be told of a deadlock. DETERMINISTIC is for a MySQL with a binary log,
-- which takes no other function that writes.
CREATE FUNCTION lanelog_append(
  p_topic   LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  p_key     LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  p_payload LONGBLOB,
  p_id      LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) RETURNS BIGINT UNSIGNED
  DETERMINISTIC MODIFIES SQL DATA SQL SECURITY INVOKER
  COMMENT 'lanelog 1'
BEGIN
  DECLARE v_head, v_offset BIGINT UNSIGNED DEFAULT NULL;
  DECLARE v_now BIGINT UNSIGNED DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000;
  DECLARE v_waited BIGINT DEFAULT 0;
  DECLARE v_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  DECLARE v_taken BOOLEAN DEFAULT FALSE;
  DECLARE v_made BOOLEAN DEFAULT FALSE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Below a trigger that catches the error, the server keeps what this call has written. A head without a floor is
  -- repaired by lanelog; the clock is above every offset that the lane ever had.
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    IF v_made THEN
      UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = v_now
      WHERE topic = p_topic AND partition_key = p_key AND head_offset = 18446744073709551615;
    END IF;
    RESIGNAL;
  END;

  IF p_topic IS NULL OR p_key IS NULL
     OR CHAR_LENGTH(p_topic) NOT BETWEEN 1 AND 255 OR CHAR_LENGTH(p_key) NOT BETWEEN 1 AND 255
     OR CHAR_LENGTH(COALESCE(p_id, 'new')) NOT BETWEEN 1 AND 255
     OR CONCAT_WS('x', p_topic, p_key, p_id) REGEXP '\\p{Cc}'
     OR p_topic REGEXP '^\\p{Z}|\\p{Z}$' OR p_key REGEXP '^\\p{Z}|\\p{Z}$'
     OR COALESCE(p_id, 'new') REGEXP '^\\p{Z}|\\p{Z}$'
  THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'lanelog: topic, key and id need 1 to 255 characters, no control characters, no white space around them';
  END IF;
  IF LEFT(p_key, 5) = 'open~' AND NOT p_key REGEXP '^open~[0-9]{3}$' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lanelog: keys that begin with open~ are the names of open lanes';
  END IF;
  IF p_payload IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lanelog: the payload is NULL; an empty one is an empty string';
  END IF;
  SET v_id = COALESCE(p_id, REPLACE(UUID(), '-', ''));

  -- The greatest number marks a head that is new. (ROW_COUNT() is 1 in both cases for some clients.)
  INSERT INTO queue_partitions (topic, partition_key, head_offset, created_at)
  VALUES (p_topic, p_key, 18446744073709551615, v_now) ON DUPLICATE KEY UPDATE topic = topic;
  SELECT head_offset INTO v_head FROM queue_partitions FORCE INDEX (PRIMARY)
  WHERE topic = p_topic AND partition_key = p_key FOR UPDATE;
  IF v_head = 18446744073709551615 THEN
    SET v_made = TRUE;
    INSERT INTO queue_partitions (topic, partition_key, created_at)
    VALUES (p_topic, '', v_now) ON DUPLICATE KEY UPDATE topic = topic;
    SELECT IF(head_offset < 9007199254740992, head_offset, v_now) INTO v_head FROM queue_partitions FORCE INDEX (PRIMARY)
    WHERE topic = p_topic AND partition_key = '' FOR UPDATE;
    INSERT IGNORE INTO queue_offsets
      (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)
    VALUES ('', p_topic, p_key, v_head, v_head, v_now);
    UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = v_head
    WHERE topic = p_topic AND partition_key = p_key;
  END IF;

  IF p_id IS NOT NULL THEN
    SELECT 0 INTO v_offset FROM queue_scheduled FORCE INDEX (PRIMARY)
    WHERE topic = p_topic AND partition_key = p_key AND id = p_id;
    IF v_offset = 0 THEN
      RETURN 0;
    END IF;
  END IF;

  -- The clock behind the lock, so that the times of a lane follow its offsets: NOW is the start of the caller's
  -- statement. A change to or from summer time in between is not a wait.
  SET v_waited = TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6));
  SET v_now = v_now + IF(v_waited BETWEEN 0 AND 1800000000, v_waited, 0) DIV 1000;
  BEGIN
    DECLARE CONTINUE HANDLER FOR 1062 SET v_taken = TRUE;
    INSERT INTO queue_messages
      (topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at, published_at, expires_at)
    VALUES (p_topic, p_key, v_head + 1, v_id, p_payload, LENGTH(p_payload), NULL, v_now, v_now, 0);
  END;
  IF v_taken THEN
    SELECT `offset` INTO v_offset FROM queue_messages FORCE INDEX (by_id)
    WHERE topic = p_topic AND partition_key = p_key AND id = v_id LOCK IN SHARE MODE;
    IF v_offset IS NULL THEN
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
        'lanelog: the head of this lane is below its messages: run lanelog doctor --repair';
    END IF;
    RETURN v_offset;
  END IF;
  UPDATE queue_partitions FORCE INDEX (PRIMARY) SET head_offset = v_head + 1
  WHERE topic = p_topic AND partition_key = p_key;
  RETURN v_head + 1;
END
