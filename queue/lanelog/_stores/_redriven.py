"""What a dead letter becomes when it is a message again: pieces for the stores that copy one; `m` is its row."""

from __future__ import annotations

from typing import Final

CAP: Final = "lanelog.max_deliveries"
"""In the metadata of a redriven message: its own cap of deliveries. In that of any other it means nothing."""

# A copy's id: a new one, because a dead letter's id and offset come together only once. A replay of the archive
# computes it too (`spark.replaying.rows`).
ID: Final = "CONCAT('rd-', SHA2(CONCAT(m.id, CHAR(31 USING utf8mb4), m.`offset`), 256))"
# The cap of an earlier redrive goes with it, whatever this one's is; twice the cap, 0 for none.
METADATA: Final = f"""IF(%s = 0, JSON_REMOVE(m.metadata, '$."{CAP}"'),
          JSON_SET(COALESCE(m.metadata, '{{{{}}}}'), '$."{CAP}"', CAST(%s AS CHAR)))"""
