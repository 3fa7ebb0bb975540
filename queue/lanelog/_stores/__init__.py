"""The stores: modules of functions that send SQL, with the statements as constants at the top.

Each constant says what it is for and which index it uses. The stores return values or raise, never log, decide nothing,
and do not know each other. A statement that writes a table stands in a store of that table; `queue_messages` has three:
`messages` (publishing), `fetches` (reading), `moves` (leaving). `lane_rows` reads one lane across the tables.
"""
