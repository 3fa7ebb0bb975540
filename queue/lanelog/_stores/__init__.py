"""The stores: SQL, one table each, with constants at the top that say what they are for and which index they use.

They query their own table, return values or raise, never log, decide nothing, and do not know each other.
`queue_messages` and `queue_partitions` have several rooms, one for each side that uses them: publishing (`messages`,
`partitions`), reading (`fetches`, `discovery`), leaving (`moves`).
"""
