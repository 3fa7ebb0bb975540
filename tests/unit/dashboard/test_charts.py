"""The dashboard's charts, jobs and shared look, without a database."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from lanelog._base.places import GroupTopic
from lanelog.admin import HistoryInfo, Problem, Rank, Status
from lanelog.dashboard import shared_reads
from lanelog.dashboard.changes.jobs import Job, Jobs
from lanelog.dashboard.charts import COLUMNS, GAP, HEIGHT, WIDTH, Chart, draw, draw_times
from lanelog.dashboard.handler_times import BUCKETS, HandlerTimes, Percentiles, percentiles
from lanelog.dashboard.live import WebPace
from lanelog.dashboard.pages import stuck
from lanelog.dashboard.samples import GROUPS, GroupSample, Sample, Samples
from lanelog.dashboard.shared_reads import SharedRead
from lanelog.errors import ConfigurationError, DatabaseError
from support.memberships import Clock
from unit.admin.test_problems import GROUP

THEN = datetime(2026, 11, 1, tzinfo=UTC)
AT = GroupTopic(topic="t", group="g")
STATUS = Status(
    at=THEN, topics=1, groups=(), lag=0, oldest_age=None, oldest_age_exact=True, dead_letters=0, problems=()
)
STEPS = st.lists(
    st.tuples(st.floats(0.5, 300), st.integers(0, 50_000), st.integers(0, 10_000)), min_size=2, max_size=300
)


def sampled(*steps: tuple[float, int, int]) -> list[Sample]:
    """Samples of one group, each so many seconds after the one before, with its head and its lag."""
    found, at = [], THEN
    for seconds, head, lag in steps:
        at += timedelta(seconds=seconds)
        found.append(Sample(at=at, groups={AT: GroupSample(head=head, lag=min(lag, head), oldest=lag / 10)}))
    return found


def everything(samples: Sequence[Sample]) -> dict[str, Chart]:
    return {chart.title: chart for chart in draw(samples, lambda _: True)}


def test_what_happened_between_two_samples() -> None:
    """100 published and 50 settled in ten seconds, while 100 waited on average: each waited for 20 s (Little)."""
    rates, lag, _, latency = draw(sampled((0, 1000, 75), (10, 1100, 125)), lambda _: True)
    assert [(line.name, line.now) for line in rates.lines] == [("published", "10"), ("settled", "5.0")]
    assert (lag.lines[0].now, latency.lines[0].now) == ("125", "20s")


def test_without_two_samples_there_is_no_chart() -> None:
    """No chart is invented."""
    for steps in ((), ((0, 1, 1),), ((0, 1, 1), (GAP + 1, 1, 1))):
        assert draw(sampled(*steps), lambda _: True) == []


def test_what_waits_and_never_leaves_has_no_latency() -> None:
    """The latency is not 0, and the line is broken; without waiting messages it is 0."""
    assert everything(sampled((0, 10, 10), (10, 10, 10)))["Latency, from publish to settlement"].lines[0].now == "-"
    assert everything(sampled((0, 10, 0), (10, 10, 0)))["Latency, from publish to settlement"].lines[0].now == "0.0s"


def test_a_group_that_goes_back_and_a_purged_lane_make_nothing_negative() -> None:
    """Less is settled, or published, than in the sample before."""
    rates = everything(sampled((0, 1000, 0), (10, 1000, 900), (10, 500, 400)))["Messages a second"]
    assert [line.now for line in rates.lines] == ["0.0", "0.0"]


def test_a_line_is_broken_where_nothing_was_sampled() -> None:
    """The values in such a gap are unknown."""
    steps = [(10.0, 10 * each, 5) for each in range(5)]
    chart = everything(sampled(*steps, (GAP + 1, 60, 5), *steps[1:]))["Lag, in messages"]
    assert len(chart.lines[0].pieces) == 2


def test_the_last_value_is_of_the_last_sample() -> None:
    """The value is not of the time before a gap, nor the highest of a column; a gap has no rate."""
    steps = [(10.0, 10 * each, 500) for each in range(100, 105)]
    gap, back = (GAP + 1, 1060, 0), (10.0, 1060, 3)
    assert everything(sampled(*steps, gap))["Lag, in messages"].lines[0].now == "0"
    assert [line.now for line in everything(sampled(*steps, gap))["Messages a second"].lines] == ["-", "-"]
    many = [(1.0, 10_000, 500)] * 1000
    for seconds in (0.5, 1.0, 3.0):
        assert everything(sampled(*many, (seconds, 10_000, 3)))["Lag, in messages"].lines[0].now == "3"
    assert everything(sampled(*steps, gap, back))["Lag, in messages"].lines[0].now == "3"


@pytest.mark.parametrize("wrong", [{"sample": 0}, {"sample": 200}, {"look": 0}, {"stream": -1}])
def test_a_pace_that_shows_nothing_or_never_rests_is_refused(wrong: dict[str, float]) -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError):
        WebPace(**wrong)


def test_a_job_that_is_stopped_while_it_counts_does_nothing() -> None:
    """Deleting is not to be taken back."""
    jobs, job, done = Jobs(), Job(title="Delete", by="ann", why="oops", choice=()), []
    jobs.start(job, lambda: (job.stop(), 5)[1], done.append)
    assert job.wait(10)
    assert (job.state, job.done, done) == ("stopped", 0, [])


def test_a_forked_child_waits_for_no_sample_of_its_parent() -> None:
    """The thread that looks is not there in the child."""
    look = SharedRead(lambda _: os.fork(), 60)
    child = look()
    if child == 0:
        look.forget()  # waits for ever if the lock is the parent's
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@given(steps=STEPS)
def test_lines_stay_in_their_box(steps: list[tuple[float, int, int]]) -> None:
    """A line has at most so many points, from left to right, none above the top or below 0, for any samples."""
    for chart in draw(sampled(*steps), lambda _: True):
        for line in chart.lines:
            points = [tuple(map(float, point.split(","))) for piece in line.pieces for point in piece.split()]
            assert len(set(points)) <= COLUMNS + 1
            assert all(" " in piece for piece in line.pieces)  # a single point would not be seen
            assert [x for x, _ in points] == sorted(x for x, _ in points)
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


def test_a_clock_that_is_set_back_begins_anew() -> None:
    """Later samples would otherwise lie before earlier ones."""
    samples = Samples(lambda: STATUS, 15)
    for seconds in (0, 15, 15, -100, -85):
        samples.add(evolve(STATUS, at=THEN + timedelta(seconds=seconds)))
    assert [(each.at - THEN).total_seconds() for each in samples.latest(3600)] == [-100, -85]


def test_of_many_groups_those_that_lag_most_are_kept() -> None:
    """A sample has a bound."""
    groups = tuple(evolve(GROUP, group=f"g{number}", lag=number) for number in range(GROUPS + 50))
    samples = Samples(lambda: evolve(STATUS, groups=groups), 15)
    samples.add(evolve(STATUS, groups=groups))
    (sample,) = samples.latest(1)
    assert min(each.lag for each in sample.groups.values()) == 50


def ended(seconds: float | None, *, attempts: int = 1, outcome: str = "success") -> HistoryInfo:
    """A message that left a group so many seconds after its first attempt began. None: there was no attempt."""
    where: dict[str, Any] = {"topic": "t", "group": "g", "key": "k", "offset": 1, "id": "x", "owner": "", "error": None}
    began, finished = None if seconds is None else THEN, THEN + timedelta(seconds=seconds or 0)
    times: dict[str, Any] = {"published_at": THEN, "first_delivered_at": began, "finished_at": finished}
    return HistoryInfo(outcome=outcome, attempts=attempts, **where, **times)


def test_percentiles_are_of_messages_that_left_at_their_first_attempt() -> None:
    """The nearest rank: a time that was measured. Failures count; waits between attempts do not."""
    found = [ended(number / 100, outcome="failed" if number % 2 else "success") for number in range(100, 0, -1)]
    others = [ended(50, attempts=2), ended(None, attempts=0, outcome="expired"), ended(50, outcome="skipped")]
    assert percentiles(found + others) == Percentiles(p50=0.5, p99=0.99)
    assert percentiles([ended(3)]) == Percentiles(p50=3, p99=3)
    assert [percentiles(none) for none in (others, [])] == [None, None]


def test_a_single_bucket_is_a_step_that_can_be_seen() -> None:
    """A line of one point would be invisible. Buckets without messages break the line."""
    seen = Percentiles(p50=0.025, p99=0.1)
    buckets = [None, seen, None, *[None] * (BUCKETS - 5), seen, seen]
    end = THEN + timedelta(seconds=60 * BUCKETS - 30)
    chart = draw_times(HandlerTimes(begin=THEN, end=end, width=60.0, buckets=buckets))
    assert (chart.top, [line.now for line in chart.lines]) == ("100ms", ["25ms", "100ms"])
    across = 60 * BUCKETS - 30
    low, high = HEIGHT * 0.75, 0.0
    assert [line.pieces[0] for line in chart.lines] == [
        f"{60 / across * WIDTH:.1f},{y:.1f} {120 / across * WIDTH:.1f},{y:.1f}" for y in (low, high)
    ]
    assert all(
        len(line.pieces) == 2 and line.pieces[1].endswith(f" {WIDTH:.1f},{y:.1f}")
        for line, y in zip(chart.lines, (low, high), strict=True)
    )


def test_times_that_are_over_are_not_shown_as_of_now() -> None:
    """Nothing ended in the last two buckets."""
    seen = Percentiles(p50=70, p99=70)
    end, buckets = THEN + timedelta(seconds=3590), [*[seen] * 58, None, None]
    chart = draw_times(HandlerTimes(begin=THEN, end=end, width=60.0, buckets=buckets))
    assert (chart.top, {line.now for line in chart.lines}) == ("2m00s", {"-"})


def test_samples_take_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one that took half a second, all pages show its answer for ten."""
    asked, clock = [], Clock()

    def ask(before: int | None) -> int:
        asked.append(before)
        clock.now += 0.5
        return len(asked)

    monkeypatch.setattr(shared_reads, "time", clock)
    look = SharedRead(ask, 2.0)
    assert look() == 1
    clock.now += 9.9
    assert look() == 1
    clock.now += 0.2
    assert (look(), asked) == (2, [None, 1])


def test_a_sample_that_fails_fails_for_all_who_wait_for_it() -> None:
    """One after another they would wait for the time-out of each."""
    asked = []

    def ask(before: int | None) -> int:
        asked.append(before)
        raise DatabaseError("away")

    look = SharedRead(ask, 60)
    for _ in range(3):
        with pytest.raises(DatabaseError, match="away"):
            look()
    assert asked == [None]
    look.forget()
    with pytest.raises(DatabaseError, match="away"):
        look()
    assert len(asked) == 2


def test_no_two_cards_have_one_id() -> None:
    """Two connections that hold the row of one topic are two cards, which differ in nothing but their command."""
    same = {"what": "locked", "topic": "t", "group": "", "detail": "held", "remedy": "to end it"}
    held = [Problem(rank=Rank.STUCK, command=f"kill {number}", **same) for number in (7, 8)]
    ids = [card.id for card in stuck.cards(evolve(STATUS, problems=tuple(held)))]
    assert (len(set(ids)), ids[0]) == (2, stuck.cards(evolve(STATUS, problems=(held[0],)))[0].id)
