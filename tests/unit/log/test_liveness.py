"""The judge of an owner's life: a keeper that watches and a screen that reads one row come to the same."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lanelog._database import Incarnation
from lanelog._engine.leasing.liveness import LivenessMonitor
from lanelog._log.lookup.owners import Owners, OwnerState
from lanelog._stores.members._heartbeat_rows import HeartbeatRow

SERVER = Incarnation(1_000_000, "")
WRITTEN = 500_000_000  # when the heartbeat was written, by the server's clock, long after its start
MOMENT = 2.0  # for so long a keeper may still wait for its second look


@given(
    lease=st.integers(1, 60),
    age=st.integers(0, 200_000),
    freed=st.none() | st.integers(0, 200_000),
    has_lock=st.booleans(),
    restarted=st.booleans(),
    aside=st.booleans(),
    steps=st.lists(st.integers(100, 1000), min_size=1, max_size=5),
)
@example(lease=15, age=20_000, freed=None, has_lock=True, restarted=False, aside=False, steps=[1000])
@example(lease=15, age=5_000, freed=1_000, has_lock=True, restarted=False, aside=False, steps=[500])
@example(lease=15, age=20_000, freed=0, has_lock=True, restarted=True, aside=True, steps=[500])
def test_a_screen_never_shows_dead_what_a_keeper_that_watched_calls_alive(
    lease: int, age: int, freed: int | None, has_lock: bool, restarted: bool, aside: bool, steps: list[int]
) -> None:
    """Screens and keepers agree, except while the keeper's second check of a freed lock is due."""

    def row(passed: int) -> HeartbeatRow:
        return HeartbeatRow(
            owner="other",
            heartbeat_at=WRITTEN,
            expires_at=WRITTEN + lease * 1000,
            deregistered_at=WRITTEN if aside else 0,
            lock_free=(freed is not None and freed <= passed) if has_lock else None,
            incarnation=Incarnation(SERVER.started_ms - 60_000, "") if restarted else SERVER,
            now=WRITTEN + passed,
        )

    keeper, passed, looks = LivenessMonitor(me="me", lease_duration=lease), 0, 0
    while True:
        view = keeper.judge([row(passed)], now=passed / 1000, steady_since=-1000.0, incarnation=SERVER)
        if passed == age:
            break
        passed = min(age, passed + steps[looks % len(steps)])
        looks += 1
    state = Owners({"other": row(age)}, SERVER).state("other")
    if has_lock and freed is not None and 0 <= (age - freed) / 1000 < MOMENT:
        assert not view.dead or not state.lives
    else:
        assert not (view.dead and state.lives)
        assert state is not OwnerState.DEAD or view.dead


@pytest.mark.parametrize("ahead", [1, 3_600_000, 2**53])
@pytest.mark.parametrize(("lasts", "lives"), [(15_000, False), (15_000, True), (0, True)])
def test_a_lock_decides_while_a_heartbeat_is_of_a_time_to_come(ahead: int, lasts: int, lives: bool) -> None:
    """After a clock was set back, or for a row of another program, a screen and a keeper's second check agree."""
    beat = WRITTEN + ahead

    def row(now: int) -> HeartbeatRow:
        return HeartbeatRow("other", beat, beat + lasts, 0, not lives, SERVER, now)

    keeper = LivenessMonitor(me="me", lease_duration=15)
    for passed in (0, 2000):
        view = keeper.judge([row(WRITTEN + passed)], now=passed / 1000, steady_since=-1000.0, incarnation=SERVER)
    assert bool(view.dead) is not lives
    assert Owners({"other": row(WRITTEN)}, SERVER).state("other").lives is (lives and not row(WRITTEN).expired)
