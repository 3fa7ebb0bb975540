"""When an owner counts as dead: every clause of the judgement, with a clock and heartbeats that are moved by hand."""

from typing import Any

import attrs
import pytest

from lanelog._database import START_TOLERANCE_MS, Incarnation
from lanelog._engine.leasing.liveness import DeadOwner, LivenessMonitor, LivenessView
from lanelog._log.lookup.liveness import EVERYBODY_BACK_SECONDS, SECOND_CHECK_SECONDS, Proof
from lanelog._stores.members._heartbeat_rows import HeartbeatRow

LEASE = 30.0
START = 1_000_000  # when the database server started, in its own milliseconds
SERVER = Incarnation(START, "one")
RESTARTED = Incarnation(START + 60_000, "one")
DB = 5_000_000  # now, by the database


def heartbeat(**changes: Any) -> HeartbeatRow:
    """A healthy owner's row: it just wrote its heartbeat, and its lock is taken."""
    healthy = HeartbeatRow(
        owner="other",
        heartbeat_at=DB - 1000,
        expires_at=DB - 1000 + int(LEASE * 1000),
        deregistered_at=0,
        lock_free=False,
        incarnation=SERVER,
        now=DB,
    )
    return attrs.evolve(healthy, **changes)


class Checks:
    """A watch whose own clock says `now`, and whose session is as old as that clock."""

    def __init__(self, *, steady_since: float = 0.0) -> None:
        self.watch = LivenessMonitor(me="me", lease_duration=LEASE)
        self.steady_since = steady_since

    def __call__(self, now: float, *rows: HeartbeatRow, server: Incarnation = SERVER) -> LivenessView:
        return self.watch.judge(rows, now=now, steady_since=self.steady_since, incarnation=server)


def dead(view: LivenessView) -> list[str]:
    return [each.owner for each in view.dead]


def fresh() -> Checks:
    """A session too young to judge by expiry, and old enough to judge by locks."""
    return Checks(steady_since=100.0 - EVERYBODY_BACK_SECONDS)


FREE = heartbeat(lock_free=True)


def test_a_lock_free_in_two_checks_is_a_dead_owner() -> None:
    """An owner is dead whose lock is free in two checks a second apart, its heartbeat unchanged.

    However often a lock is found free within a second, its owner lives.
    """
    check = fresh()
    for step in range(10):
        assert check(100.0 + step / 10, FREE) == LivenessView(live=("me", "other"))
    view = check(100.0 + SECOND_CHECK_SECONDS, FREE)
    assert view == LivenessView(
        live=("me",), dead=(DeadOwner(owner="other", heartbeat_at=FREE.heartbeat_at, proof=Proof.LOCK),)
    )


def test_an_owner_that_stands_aside_gets_no_share_and_may_die() -> None:
    """The owner lives, and keeps its lanes, while its lock is held. When that is free in two checks, it is dead.

    An owner that left holds nothing, and is neither.
    """
    check = fresh()
    aside = heartbeat(deregistered_at=DB - 1000)
    assert check(100.0, aside) == LivenessView(live=("me",))
    free = attrs.evolve(aside, lock_free=True)
    check(100.5, free)
    assert dead(check(100.5 + SECOND_CHECK_SECONDS, free)) == ["other"]
    left = fresh()
    for step in range(3):
        assert left(100.0 + step, heartbeat(deregistered_at=DB - 999, lock_free=True)) == LivenessView(live=("me",))


def test_an_owner_that_comes_back_is_no_newcomer() -> None:
    """The owner was seen before, so it gets its share at once, also beside a dead owner."""
    check = fresh()
    gone = attrs.evolve(FREE, owner="gone")
    check(100.0, heartbeat(deregistered_at=DB - 1000), gone)
    assert check(100.0 + SECOND_CHECK_SECONDS, heartbeat(heartbeat_at=DB - 500), gone).sharers == ("me", "other")


def test_a_lock_that_was_taken_in_between_starts_anew() -> None:
    """Free, taken and free again is no proof: the second starts with the last time it became free."""
    check = fresh()
    check(100.0, FREE)
    check(100.5, heartbeat())
    assert [dead(check(now, FREE)) for now in (101.2, 102.1, 102.2)] == [[], [], ["other"]]


@pytest.mark.parametrize("change", [{"heartbeat_at": DB - 500}, {"expires_at": DB + 60_000}])
def test_a_heartbeat_between_two_checks_means_alive(change: dict[str, int]) -> None:
    """An owner that wrote its row between the two checks lives, also when its lock is free for a moment."""
    check = fresh()
    check(100.0, FREE)
    assert not dead(check(101.5, attrs.evolve(FREE, **change)))


def test_an_unknown_lock_is_not_free() -> None:
    """An owner without a lock, or whose lock the server does not report, is judged by its heartbeat alone."""
    check = fresh()
    assert not any(dead(check(100.0 + step, heartbeat(lock_free=None))) for step in range(26))


@pytest.mark.parametrize("drift", [-1, 0, 1])
def test_the_server_start_is_known_to_two_seconds(drift: int) -> None:
    """The recorded server start may differ by two seconds from today's and still be the same.

    Beyond that the server has restarted and freed every lock, which tells nothing as long as the lease is valid.
    """
    check = fresh()
    started = START + drift * START_TOLERANCE_MS
    row = attrs.evolve(FREE, incarnation=Incarnation(started, "one"))
    check(100.0, row)
    assert dead(check(101.0, row)) == ["other"]
    if drift:
        check, row = fresh(), attrs.evolve(row, incarnation=Incarnation(started + drift, "one"))
        assert not any(dead(check(100.0 + step, row)) for step in range(25))


def test_a_lock_on_another_server_says_nothing() -> None:
    """Of two servers that were started in the same second, each knows its own locks alone; both names have to be known.

    What an older version wrote names no server but by its start.
    """
    elsewhere, unnamed = (attrs.evolve(FREE, incarnation=Incarnation(START, name)) for name in ("two", ""))
    check = fresh()
    assert not any(dead(check(100.0 + step, elsewhere)) for step in range(25))
    check(130.0, unnamed)
    assert dead(check(131.0, unnamed)) == ["other"]


def test_the_owner_that_has_seen_the_restarted_server_is_judged_from_then_on() -> None:
    """Once an owner has recorded the new server start, a free lock counts again, from its next check on."""
    check = fresh()
    check(100.0, FREE, server=RESTARTED)
    check(101.5, FREE, server=RESTARTED)
    again = attrs.evolve(FREE, heartbeat_at=DB, incarnation=RESTARTED)
    assert [dead(check(now, again, server=RESTARTED)) for now in (102.0, 103.0)] == [[], ["other"]]


def test_a_free_lock_needs_a_session_older_than_anybodys_way_back() -> None:
    """After a stall that has cost everybody the connection, the last is back after the longest back-off and a second.

    A stall of the own session counts as its beginning, for it may have ended the others'.
    """
    check = Checks(steady_since=100.0)
    assert not any(dead(check(100.0 + step / 4, FREE)) for step in range(int(EVERYBODY_BACK_SECONDS * 4)))
    assert dead(check(100.0 + EVERYBODY_BACK_SECONDS, FREE)) == ["other"]


def test_an_expired_heartbeat_is_death() -> None:
    """An owner whose heartbeat ran out by the database's clock is dead if it holds no lock on this server."""
    assert not dead(Checks()(LEASE, heartbeat(expires_at=DB)))
    before = Incarnation(START - 99_999, "one")
    for lock, server in ((False, before), (True, before), (True, SERVER)):
        row = heartbeat(expires_at=DB - 1, lock_free=lock, incarnation=server)
        assert Checks()(LEASE, row) == LivenessView(
            live=("me",), dead=(DeadOwner(owner="other", heartbeat_at=row.heartbeat_at, proof=Proof.EXPIRY),)
        )


def test_without_a_lock_a_step_of_the_clock_alone_proves_nothing() -> None:
    """With `liveness="lease"` the heartbeat must also have stayed unchanged for as long as it was to last."""
    stepped = DB + 3_600_000
    row = heartbeat(lock_free=None, now=stepped)
    check = Checks()
    assert not dead(check(100.0, row))
    beaten = heartbeat(lock_free=None, now=stepped, heartbeat_at=stepped, expires_at=stepped + int(LEASE * 1000))
    assert not any(dead(check(100.0 + step, beaten)) for step in range(60))
    check = Checks()
    assert not any(dead(check(100.0 + step, row)) for step in range(int(LEASE)))
    assert dead(check(100.0 + LEASE, row)) == ["other"]


def test_a_lock_that_is_held_vetoes_expiry_until_its_owner_was_silent_for_two_leases() -> None:
    """A server that stood still, or a clock that was set, makes heartbeats run out that nobody could renew.

    A proxy may keep the session of a dead process: the veto ends when this session, steady all the while, has seen the
    heartbeat unchanged for two of its durations. Any beat, and any stall, starts that anew.
    """
    row = heartbeat(expires_at=DB - 3_600_000, heartbeat_at=DB - 3_600_000 - int(LEASE * 1000))
    check = Checks()
    assert not any(dead(check(100.0 + step, row)) for step in range(60))
    assert check(160.0, row).dead == (DeadOwner(owner="other", heartbeat_at=row.heartbeat_at, proof=Proof.SILENCE),)
    check = Checks()
    check(100.0, row)
    beaten = attrs.evolve(row, heartbeat_at=row.heartbeat_at + 1, expires_at=row.expires_at + 1)
    assert not any(dead(check(130.0 + step, beaten)) for step in range(60))
    check.steady_since = 189.0
    assert not any(dead(check(190.0 + step, beaten)) for step in range(59))
    assert dead(check(249.0, beaten)) == ["other"]


def test_expiry_needs_a_session_as_old_as_a_lease() -> None:
    """After an outage that hit everybody, owners have a whole lease duration to come back before they are robbed."""
    check = Checks(steady_since=1000.0)
    row = heartbeat(expires_at=DB - 60_000, lock_free=None)
    assert [dead(check(1000.0 + later, row)) for later in (0.0, LEASE - 0.1)] == [[], []]
    check.steady_since = 1029.0  # the connection broke in between
    assert [dead(check(now + LEASE, row)) for now in (1000.0, 1029.0)] == [[], ["other"]]


def test_an_expiry_from_the_future_is_death_when_it_stands_still() -> None:
    """A row that claims to be valid for longer than its own duration was written before the clock was set back.

    Its owner is dead when it has not changed for that duration, and lives if it goes on writing such heartbeats.
    """
    check = Checks()
    row = heartbeat(heartbeat_at=DB + 3_600_000, expires_at=DB + 3_600_000 + 30_000, lock_free=None)
    assert [dead(check(now, row)) for now in (100.0, 129.9, 130.0)] == [[], [], ["other"]]
    for step in range(1, 11):
        beat = DB + 3_600_000 + step * 10_000
        assert not dead(check(200.0 + 20 * step, heartbeat(heartbeat_at=beat, expires_at=beat + 30_000)))


def test_the_own_clock_decides_nothing() -> None:
    """Only the database's times and the seconds between checks count, whatever this machine's clock shows."""
    for offset in (-3600.0, 0.0, 3600.0, 1e9):
        check = Checks(steady_since=offset)
        assert not any(dead(check(offset + step, heartbeat())) for step in range(90))
        assert dead(check(offset + 90, heartbeat(now=DB + 30_000, lock_free=None))) == ["other"]


def test_a_name_that_comes_back_is_judged_anew() -> None:
    """An owner that was gone for a check starts without a history."""
    check = fresh()
    check(100.0, FREE)
    check(100.5)
    assert not dead(check(101.0, FREE))
    assert check.watch.judge([FREE], now=102.0, steady_since=97.0, incarnation=SERVER).dead


def test_the_living_are_sorted() -> None:
    """Every owner sees the living in the same order, whatever the order of the rows.

    Who left is neither alive nor dead; the own row, however old, says nothing; without any row one is alone.
    """
    rows = [heartbeat(owner=name) for name in ("zoe", "ann", "bob")]
    assert Checks()(100.0, *rows).live == ("ann", "bob", "me", "zoe")
    for rows in (
        [heartbeat(deregistered_at=DB, expires_at=0)],
        [heartbeat(owner="me", expires_at=0, lock_free=True)],
        [],
    ):
        assert Checks()(100.0, *rows) == LivenessView(live=("me",))


def test_holders_without_a_row_are_dead_once_the_session_is_trusted() -> None:
    """A missing heartbeat row counts as expired, but not before owners had a whole lease to come back."""
    live = LivenessView(live=("me",), registered=frozenset({"me", "left"}), trusted=False)
    assert live.without_heartbeat(["", "me", "left", "gone"]) == ()
    trusted = LivenessView(live=("me",), registered=frozenset({"me", "left"}), trusted=True)
    assert [each.owner for each in trusted.without_heartbeat(["", "me", "left", "gone"])] == ["gone"]


def test_a_dead_owners_lanes_are_not_kept_for_who_has_just_come() -> None:
    """A newcomer has no proof yet and could take nothing: it is an heir when it has been there for two checks.

    With nobody dead it has its share at once.
    """
    check, new = fresh(), heartbeat(owner="new")
    check(100.0, FREE)
    assert check(100.6, FREE, new).sharers == ("me", "new", "other")
    view = check(101.0, FREE, new)
    assert (view.live, view.sharers) == (("me", "new"), ("me",))
    beaten = attrs.evolve(new, heartbeat_at=new.heartbeat_at + 500)  # it lives on: that makes it no newcomer again
    assert check(100.6 + SECOND_CHECK_SECONDS, FREE, beaten).sharers == ("me", "new")
    assert check(102.0, new, heartbeat(owner="newest")).sharers == ("me", "new", "newest")


def test_a_free_lock_is_a_suspicion_until_it_is_taken_again() -> None:
    """The keeper checks in every turn while an owner is suspected: the second check is not to be late."""
    check = fresh()
    check(100.0, heartbeat())
    assert not check.watch.second_check_due
    check(100.5, FREE)
    assert check.watch.second_check_due
    check(100.7, heartbeat())
    assert not check.watch.second_check_due


@pytest.mark.parametrize(("written", "ends"), [(DB, 2**64 - 1), (2**64 - 1, 2**64 - 1), (0, 2**64 - 1)])
def test_a_heartbeat_that_no_lease_explains_counts_for_a_lease_of_ours(written: int, ends: int) -> None:
    """Another program wrote it: the owner is dead after our own duration, or after two if its lock is held."""
    free = heartbeat(heartbeat_at=written, expires_at=ends, lock_free=None)
    held = heartbeat(heartbeat_at=written, expires_at=ends)
    for row, durations in ((free, 1), (held, 2)):
        checks = Checks()
        assert checks(LEASE, row).live == ("me", "other")
        assert dead(checks(LEASE * (1 + durations) - 1, row)) == []
        assert dead(checks(LEASE * (1 + durations), row)) == ["other"]
