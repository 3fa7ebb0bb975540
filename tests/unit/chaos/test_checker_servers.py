"""What the chaos runs' checker excuses when a server has lost its last commits, stands still or has another time."""

from pathlib import Path

import pytest

from chaos.checker import check, unexplained
from chaos.history import Journal, read
from support.histories import history, told

# Group g had settled what `watermark` says when the server went on; between the two times nobody could reach one.
BAD = """
lost-write poll-skip: it was there, and is passed over
  sent 1 2 3; 1@1; promote@2-4 head=3 watermark=1; 3@5
unseen: it was there, and never comes
  sent 1 2; 1@1; promote@2-4 head=2 watermark=1; drained
unseen: it was lost, and what got its offset is never handled
  sent 1; sent 2 name=a; 1@1; 2@1.5 name=a; promote@2-4 head=1 watermark=1; sent 2 name=b at=5; drained
unseen: what was published afterwards is passed by the memory of the lane before
  sent 1; 1@1; promote@2-4; sent 1 name=b at=5; drained
duplicate: the group had settled it there
  sent 1; 1@1; promote@2-4 head=1 watermark=1; 1@5 attempt=2
duplicate: it was settled there ahead of the watermark
  sent 1 2; 1@1 raised; 2@1.5; promote@2-4 head=2 above=2; 1@5 attempt=2; 2@6 attempt=2
duplicate: again after the failover, twice
  sent 1; 1@1; promote@2-4 head=1; 1@20; 1@50
duplicate: twice before it, although it was lost
  sent 1; 1@0.2 name=m1; 1@0.9 name=m1; promote@2-4
effect-lost: it was there, its row was lost, and nobody has written it again
  sent 1; 1@1 group=e settled; promote@2-4 head=1 group=e; drained group=e
effect-lost: that of what was redriven, and nobody skips it
  sent 1; 1@0.2 group=e raised; redriven 2 original=1 group=e; 2@1 group=e settled;
  promote@2-4 head=2 group=e watermark=1; drained group=e
inconsistent-offsets: two ids at one offset of the new server
  sent 1; 1@1; promote@2-4; sent 1 name=a at=5; sent 1 name=b at=6; 1@7 name=a
inconsistent-offsets aborted-read: what was lost is begun long after it
  sent 1; 1@1 name=x; promote@2-4; 1@6 name=x
ghost-ack: settled by the owner before, under an epoch that was given again
  sent 1; 1@1-9 settled asked=8; promote@2-4 head=1; 1@5-5.5 p2 epoch=1
lost-write: a skip went with the lost tail, and the message is passed over
  sent 1 2; skip@1.5 offset=1; 2@1.8; promote@2-4 head=2; 2@5; drained
unseen: a dead letter went with the lost tail, and the message never ends
  sent 1; 1@1 raised; promote@2-4 head=1; 1@5 raised; drained
duplicate: a server that stands still is no excuse
  sent 1; 1@10; freeze@10.2-21 all; 1@22 p2
duplicate: nor is a lease that has run out meanwhile, however slow everybody was
  sent 1; 1@10; freeze@10.2-21 all; slow@10-21 all; expiry@21-22; 1@22 p2
duplicate: a clock that steps is no excuse
  sent 1; 1@10; step@10.2-14 all; expiry@10.3-10.6; 1@12 p2
duplicate: a grant that is missing for a moment is no excuse
  sent 1; 1@10; revoke@10.2-13 all; 1@14 p2
dual-ownership duplicate: a host that vanishes is nobody's excuse but its own
  sent 1; 1@10-15; vanish@10.2-10.3 p3; 1@12 p2
moved: a lane has another owner although nothing was done to it
  sent 1 2 3; 1@0; 2@30; freeze@33-44 all; 3@46 p2
late: nobody takes what a vanished host had
  sent 1 2 3; 1@0; 2@30; vanish@31-31.1; 3@41 p2
late: nothing moves after a failover
  sent 1; sent 2 at=29; sent 3 at=34.2; 1@0.2; 2@29.2; promote@31-33 head=2 watermark=2; 3@41
late: a restart before a failover is no excuse by itself
  sent 1; sent 2 at=33; sent 3 at=38.2; 1@0.2; 2@33.2; restarts@24-27 all; promote@35-37 head=2 watermark=2; 3@45
late: there are connections again, and a lane stands still
  sent 1; sent 2 at=20; sent 3 at=20.5; 1@1; 2@20.2; shortage@21-28 all; 3@38
duplicate: killed statements, interrupts and forks of publishers are no excuse
  sent 1; 1@1; queries@1.6-3 all; interrupt@1.6-3 all; fork@1.6-3 all; 1@3 attempt=2
late: a process does not come back when there are connections again
  sent 1 2 3 4 5; 1@19.6; 2@20.2 p2; shortage@21-28 all; 3@29; 1@29 group=h; 2@30 group=h p2
refused: others are told of an interrupt
  sent 1 at=20 told; interrupt@20-21; slow@19-21 all
refused: long after there were connections again
  sent 1 at=44 told; shortage@21-28 all
ghost-ack: settled without connections, under an epoch that others have taken
  sent 1; 1@1-9 settled; shortage@2-10 all; 1@8-8.5 p2
duplicate: connections of others led to a replica
  sent 1; 1@20; alternate@21-28 p3; warned@22 p3; 1@24 p2
late: connections lead to the primary alone again, and a lane stands still
  sent 1; sent 2 at=20; sent 3 at=20.5; 1@1; 2@20.2; alternate@21-28; warned@22; 3@38
late: a process does not come back from two servers when there is one again
  sent 1 2 3 4 5; 1@19.6; 2@20.2 p2; alternate@21-28 all; warned@22; 3@29; 1@29 group=h; 2@30 group=h p2
refused: a server that takes no writes leaves no doubt
  sent 1 at=24 doubted; copy@19-20.9 all; alternate@21-28; cut@21; cut@23; cut@25; warned@22
refused: long after the replica was gone
  sent 1 at=44 told; alternate@21-28; warned@22
warning: nobody says that there are two servers
  sent 1; 1@1; alternate@21-28
warning: only a process says so that never saw the other one
  sent 1; 1@1; alternate@21-28; warned@22 p2
warning: nobody says so, a while after others were led astray
  sent 1; 1@1; astray@21-23; alternate@90-97
warning: there never were two servers
  sent 1; 1@1; server@20-21 all; warned@22
"""

GOOD = """
lost with the tail, acknowledged or not
  sent 1; sent 2; 1@1; promote@2-4 head=1 watermark=1; drained
handled, and lost with the tail: its offset is given again
  sent 1; sent 2 name=a; 1@1; 2@1.5 name=a; promote@2-4 head=1 watermark=1; sent 2 name=b at=5; 2@6 name=b; drained
settled in the tail, and so once more
  sent 1 2; 1@1; 2@1.5 settled; promote@2-4 head=2 watermark=1; 2@5 attempt=2; drained
everything once more, from the watermark, in order
  sent 1 2 3; 1@0.5; 2@1; 3@1.5; promote@2-4 head=3; 1@5; 2@6; 3@7; drained
an effect of the tail is done again
  sent 1; 1@1 group=e settled; promote@2-4 head=1 group=e; 1@5 group=e settled effect; drained group=e
an effect of what was redriven went with the tail, and an operator skips it
  sent 1; 1@0.2 group=e raised; redriven 2 original=1 group=e; 2@1 group=e settled;
  promote@2-4 head=2 group=e watermark=1; skip@5 offset=2 group=e; drained group=e
a message of unknown outcome was lost, and its publisher repeats it
  sent 1 name=a unknown; 1@1 name=a; promote@2-4; sent 1 name=b at=5; sent 2 name=a at=5; 1@6 name=b; 2@7 name=a;
  drained
in memory for a moment more, and never settled
  sent 1; promote@1.5-3.5; 1@4; drained
back by some seconds twice
  sent 1 2; 1@0.5; 2@1; restore@2-4 head=2 watermark=1; 2@5; restore@6-8 head=2 watermark=1; 2@9; drained
a skip went with the tail, and the message comes
  sent 1 2; skip@1.5 offset=1; 2@1.8; promote@2-4 head=2; 1@5; 2@6; drained
a skip went with the tail, and so did the message and the next one, which had begun by right
  sent 1 2; skip@1.1 offset=1; 2@1.4; promote@2-4; drained
a host vanished, a lease later its lanes were taken, and then shared out again while a clock stepped
  sent 1 2 3; 1@0; 2@25; vanish@12-12.1 p3; step@25.4-26 all; 3@28 p2
a dead letter went with the tail: the next had begun by right
  sent 1 2; 1@1 raised; 2@1.6; promote@2-4 head=2; 1@5; 2@6; drained
a pause went with the tail
  sent 1; pause@1.5 until=9; promote@2-4 head=1; 1@7; drained
a seek back to what was read before a failover goes forward on the server that has less
  sent 1 2 3; 1@0.2; 2@1.2; promote@2-4 head=3 watermark=1; seek@4.5 offset=2 before=1; 3@5; drained
a seek went with the tail, and is not asked for
  sent 1 2; 1@0.2; 2@0.8; seek@1.5 offset=0 before=2; promote@2-4 head=2 watermark=2; drained
killed with its machine, and redelivered when the lease has run out
  sent 1; 1@1 unfinished; vanish@1.2-1.3; 1@9 p2 attempt=2; drained
two restarts: what was not flushed comes again
  sent 1; 1@1; restarts@1.6-4 all; 1@6 attempt=2; drained
a host vanished, a restart gave its lease anew, and a failover came before the lanes had been shared out again
  sent 1; sent 2 at=33; sent 3 at=38.2; 1@0.2; 2@33.2; vanish@16-16.1 p3; restarts@24-27 all;
  promote@35-37 head=2 watermark=2; 3@45; drained
a server that stands still, and everybody goes on
  sent 1 2; 1@30; freeze@31-42 all; 2@42.5; drained
there are connections again, and the lane moves
  sent 1; sent 2 at=20; sent 3 at=20.5; 1@1; 2@20.2; shortage@21-28 all; 3@36; drained
there are connections again, but the next fault came before the lane had to move
  sent 1; sent 2 at=20; sent 3 at=20.5; 1@1; 2@20.2; shortage@21-28 all; server@35-36 all; 3@40; drained
there was no connection to publish with, or its locks were still held
  sent 1 at=24 told; sent 2 at=40 told; shortage@21-28 all
its owner was led to the replica, could not renew its lease, and was taken for dead
  sent 1; 1@20-27; alternate@21-28; warned@22; 1@26.5 p2 attempt=2; drained
the replica is gone, and the lane moves
  sent 1; sent 2 at=20; sent 3 at=20.5; 1@1; 2@20.2; alternate@21-28; warned@22; 3@36; drained
publishers came to the replica, and were in doubt only where they were cut
  sent 1 at=22.95 doubted; sent 2 at=24 told; sent 3 at=29 told;
  copy@19-20.8 all; alternate@21-28; cut@21; cut@23; warned@22
a client that has said so is silent when it happens again
  sent 1; 1@1; alternate@21-28; warned@22; alternate@40-47; alternate@100-107
its owner was without connections, and was taken for dead
  sent 1; 1@20-27; shortage@21-28 all; 1@26.5 p2 attempt=2; drained
"""


@pytest.mark.parametrize("title", told(BAD))
def test_a_fault_of_the_server_excuses_nothing_else(title: str) -> None:
    """Each of these is named, and nothing else in its history is."""
    kinds, _, _ = title.partition(":")
    found = unexplained(check(told(BAD)[title], effect_groups=["e"], settling=5.0, lease=6.0))
    assert {anomaly.kind for anomaly in found} == set(kinds.split())


@pytest.mark.parametrize("title", told(GOOD))
def test_what_a_server_has_lost_is_excused(title: str) -> None:
    """None of these has an anomaly that nothing explains."""
    assert unexplained(check(told(GOOD)[title], effect_groups=["e"], settling=5.0, lease=6.0)) == []


def test_what_a_server_had_is_written_down_and_read_again(tmp_path: Path) -> None:
    """The journal keeps a loss with the lanes and the settlements that were left."""
    events = history("promote@2-4 head=3 watermark=1 above=3")
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.write(*events)
    assert read([tmp_path / "a.jsonl"]) == events
