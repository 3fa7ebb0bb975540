"""The judge of an owner's life: a keeper that watches and a screen that reads one row come to the same."""

from __future__ import annotations

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
    """Nor alive what the keeper calls dead. Only the keeper's second look at a lock just freed is still to come."""

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
        assert bool(view.dead) == (not state.lives)
        assert state is not OwnerState.DEAD or view.dead
