"""Hints: datagrams by which a publisher notifies subscribers in other processes that messages were committed.

Owns the sockets, what is sent and who is notified. A hint says nothing but "poll now": it carries a token and the
number of a topic. It may be lost, repeated or forged, and only the time of a poll changes. It never carries a message,
and no thread is made for it: the fetcher's loop waits on the sockets.

`datagram` is what is sent, `receiver` the subscriber's sockets, `doorbell` the wait of the loop that receives them,
`sender` the publisher's side, `route` who may be sent to, `allowance` the time that may be spent on what hints ask for.
"""
