"""Columns of a redriven message, for the statements that copy a dead letter. `m` is the dead letter's row."""

from __future__ import annotations

from typing import Final

CAP: Final = "lanelog.max_deliveries"
"""The metadata key of a redriven message's own cap of deliveries. In any other message it means nothing."""

# A copy gets an id that no other copy has: no two dead letters have the same id and offset. A replay of the archive
# computes it, too (`spark.replaying.rows`).
ID: Final = "CONCAT('rd-', SHA2(CONCAT(m.id, CHAR(31 USING utf8mb4), m.`offset`), 256))"
# The cap of an earlier redrive is replaced, or removed. Both arguments are the cap; 0: none.
METADATA: Final = f"""IF(%s = 0, JSON_REMOVE(m.metadata, '$."{CAP}"'),
          JSON_SET(COALESCE(m.metadata, '{{{{}}}}'), '$."{CAP}"', CAST(%s AS CHAR)))"""
