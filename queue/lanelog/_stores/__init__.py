"""The stores: modules of functions that send SQL, with the statements as constants at the top.

The comment above each constant names its purpose and its index. The stores return values or raise. They never log,
decide nothing, and do not import each other. A statement that writes a table stands in a store of that table. Only
`queue_schema` has none: the migrations write it. `queue_messages` has five: `messages` (publishing), `fetches`
(reading), `leaving` (what is old enough, and its deletion), `expiry`, and `dead_letters`. `queue_offsets` has two:
`offsets`, and `flushes`. `queue_partition_leases` has two: `leases`, and `lease_removal`. `lane_rows` reads and locks
the rows of one lane across the tables. `_points` splits one statement for many keys into as many as are needed.
"""
