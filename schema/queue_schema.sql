-- The version of these tables in the database. One row per version that was applied.
CREATE TABLE IF NOT EXISTS queue_schema (
  version     INT UNSIGNED    NOT NULL           COMMENT 'version of the tables',
  checksum    CHAR(64)        NOT NULL           COMMENT 'SHA-256 of the statements that made it',
  applied_at  BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'when it was applied, epoch milliseconds UTC',
  oldest_code INT UNSIGNED    NOT NULL DEFAULT 1 COMMENT 'the oldest code that may work on it: the version of the tables that this code was made for',
  PRIMARY KEY (version)
    COMMENT 'migrate and start: the version this database is at'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
  COMMENT = 'lanelog: applied versions of the tables';
