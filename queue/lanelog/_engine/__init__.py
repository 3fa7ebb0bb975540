"""The engine: what turns rows in a database into deliveries, and outcomes back into rows.

One client has one engine: a keeper (leases, liveness), a fetcher (look, fetch), a settler (the only writer of offsets
and delivery rows) and a janitor (everything that may be late), each a thread with a connection of its own; worker
threads belong to a subscription and send no SQL. They share `Member` objects: one for each (subscription, topic),
holding the leased lanes in memory.

The life of a message in memory::

    fetcher                    settler                      worker                     settler
    look, fetch ── Lane.ready ── Lane.plan ── mark, COMMIT ── handler ── Lane.settle ── watermark, COMMIT
                                     │                          │
                                     │   the next run's mark rides on the flush that carries the last one's outcomes

*Mark*: an offset is written down as handed out before its handler runs, so that a crash can be counted. First
deliveries in offset order are marked by one number of the lane's offsets row (the run mark); everything else by a
delivery row of its own. Runs of fast handlers are marked as soon as they are planned, so that the flush of the last
outcomes carries the next mark. Where a message takes long, or nobody knows yet, and where it has met a crash before,
its run waits for a worker unmarked (`late`), and who takes it waits for its mark: a crash counts what workers had in
their hands, not what stood in line. So a message that no handler has had counts one crash at most while it stood in
line, and one for each that came between its mark and its handler.

*Fence*: every transaction of the settler share-locks the lease rows of the lanes it writes and drops the lanes whose
owner or epoch is not its own any more. Between attempts of one epoch, memory decides: the same epoch means the same
process.

*Decide under the lock, wait outside it*: a member's lock is held for arithmetic only, never during SQL or a
handler.
"""
