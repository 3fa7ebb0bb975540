"""The engine turns rows of the database into deliveries, and outcomes back into rows.

One client has one engine. Five loops run in it, each a thread with a connection of its own: the keeper (`leasing`:
leases and liveness), the fetcher (`fetching`: poll and fetch), the settler (`settling`: outcomes, marks, dead letters),
the janitor (`cleanup`: work that may be late) and the scheduler (`scheduling`: delayed and recurring messages).
Worker threads (`working`) belong to a subscription and send no SQL. All of them meet in `member`. There is one `Member`
for each subscription and topic. It holds the leased lanes (`lane`) in memory and shows each loop one side.

The life of a message in memory::

    fetcher              member                   settler            worker        settler
    poll, fetch ── ready ── Dispatcher.plan ── mark, COMMIT ── handler ── outcome ── Progress.write, COMMIT
                                  │                               │
                                  │  the next run's mark rides on the flush that carries the last one's outcomes

*Mark*: an offset is written down as handed out before its handler runs, so that a crash can be counted. First
deliveries in offset order are marked by one number of the lane's offsets row (the run mark). Everything else is marked
by a delivery row of its own. Runs of fast handlers are marked as soon as they are planned, so that the flush of the
last outcomes carries the next mark. A late run waits for a worker unmarked. Runs are late when a message takes long,
when its time was not measured yet, and when the message has met a crash before. The worker that takes a late run waits
for its mark. So a crash counts the messages that workers had, not those that were queued. A message that no handler has
had counts one crash at most while it was queued, and one for each crash between its mark and its handler.

*Fence*: every transaction of the settler locks the lease rows of the lanes it writes. It drops the lanes whose owner or
epoch is not its own any more. The locks are shared ones. After a lock time-out they are exclusive, and leave out what
another transaction has locked.

*Term*: a lane that is loaded again on another connection keeps its epoch. So values that travel between threads carry
the lane's term: key, epoch, generation. With the term, a thread finds the lane, or learns that it is gone or was loaded
again. Between attempts of one term, memory decides which one is valid.

*Decide under the lock, wait outside it*: a member's lock is held for arithmetic only, never during SQL or a handler.
"""
