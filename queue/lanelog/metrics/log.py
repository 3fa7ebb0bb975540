"""The metrics of the log: lag and age of each group, lanes that are stuck, dead letters, the database.

Owns their names. One scrape is one read of `client.admin`; scrapes that come soon after it get the same answer. A
scrape never fails: if the database does not answer, `lanelog_up` is 0 and all other series are missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lanelog.errors import LanelogError
from lanelog.metrics.series import Gauge, families

if TYPE_CHECKING:
    from lanelog.admin import Admin, Figures, GroupFigures, ServerFigures, TopicInfo

GROUPS_MAX: Final = 55
"""Series of each metric of groups: with the bound of topics, a scrape has at most 1,000 series."""
TOPICS_MAX: Final = 45

_JOBS: Final = {"archive", "replay"}
"""Orders of groups that take no lanes."""

_highest = partial(max, default=0.0)


def _unowned(group: GroupFigures) -> int:
    info = group.info
    return 0 if info.order in _JOBS else max(0, info.lanes - info.owned_lanes)


_OF_MEMBERS: Final = {"lanelog_group_members", "lanelog_group_hung_members", "lanelog_group_unowned_lanes"}
"""Metrics that are left out while heartbeats say nothing about members."""

_GROUPS: Final[tuple[Gauge[GroupFigures], ...]] = (
    Gauge("lanelog_group_lag_messages", "Messages that the group has not settled.", lambda each: each.info.lag),
    Gauge(
        "lanelog_group_oldest_seconds",
        "Age of the oldest message that the group has not settled; 0: all is settled.",
        lambda each: each.info.oldest_age or 0.0,
        _highest,
    ),
    Gauge("lanelog_group_members", "Members that are alive.", lambda each: each.info.members),
    Gauge(
        "lanelog_group_hung_members",
        "Members whose workers are all busy, while none has ended for longer than is normal there.",
        lambda each: each.hung_members,
    ),
    Gauge("lanelog_group_paused", "1: an operator has paused the group.", lambda each: each.info.paused_at is not None),
    Gauge("lanelog_group_lanes", "Lanes of the topic.", lambda each: each.info.lanes),
    Gauge("lanelog_group_lagging_lanes", "Lanes with unsettled messages.", lambda each: each.info.lagging_lanes),
    Gauge(
        "lanelog_group_stuck_lanes",
        "Lanes that `lanelog status` calls failing, slow, without owner, or whose owner is gone, of the 100 lanes with "
        "the oldest messages.",
        lambda each: each.stuck_lanes,
    ),
    Gauge(
        "lanelog_group_failing_lanes",
        "Stuck lanes whose first message failed and waits for its next attempt.",
        lambda each: each.failing_lanes,
    ),
    Gauge("lanelog_group_unowned_lanes", "Lanes without a living owner.", _unowned),
    Gauge("lanelog_group_paused_lanes", "Lanes that were paused by themselves.", lambda each: each.info.paused_lanes),
    Gauge("lanelog_group_in_flight_messages", "Messages handed out, not settled.", lambda each: each.info.in_flight),
    Gauge("lanelog_group_waiting_messages", "Messages that wait for another attempt.", lambda each: each.info.waiting),
)


@define(eq=False)
class LogCollector(Collector):
    """The metrics of the log, for a registry of prometheus-client.

    Example:
        Serve them from a process of one's own::

            from prometheus_client import CollectorRegistry, start_http_server

            registry = CollectorRegistry()
            registry.register(LogCollector(client.admin))
            start_http_server(9464, "127.0.0.1", registry)
    """

    _admin: Admin
    _fresh: float = 2.0
    """Seconds for which an answer is given again, so that several monitors cost one read."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _answer: list[Metric] = field(factory=list, init=False)
    _until: float = field(default=float("-inf"), init=False)

    def describe(self) -> Iterable[Metric]:
        """Return nothing. Otherwise a registry would read the log when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment."""
        with self._lock:  # a scrape that comes during a read waits for its answer
            if time.monotonic() >= self._until:
                self._answer = list(self._read())
                self._until = time.monotonic() + self._fresh
            return self._answer

    def _read(self) -> Iterator[Metric]:
        began = time.monotonic()
        try:
            found = self._admin.figures()
        except LanelogError:
            yield _one("lanelog_up", "1: the database answers.", 0)
            return
        yield _one("lanelog_up", "1: the database answers.", 1)
        yield _one("lanelog_look_seconds", "How long the queries of the log took.", time.monotonic() - began)
        yield from metrics_of(found)


def metrics_of(found: Figures) -> Iterator[Metric]:
    """Yield the metrics of these figures, at most 1,000 series with those of the read itself."""
    groups = sorted(found.groups, key=partial(_worst_first, known=found.members_known))
    yield _one(
        "lanelog_members_known",
        "1: members write their heartbeats to this server; 0: it takes no writes or is a replica, and nothing is said "
        "about members.",
        found.members_known,
    )
    shown = [each for each in _GROUPS if found.members_known or each.name not in _OF_MEMBERS]
    yield from families(shown, groups, ("topic", "group"), lambda each: (each.info.topic, each.info.group), GROUPS_MAX)
    topics = [each for each in found.topics if not each.holds_dead_letters]
    topics.sort(key=lambda each: (-each.dead_letters, -found.delayed.get(each.topic, 0), each.topic))
    yield from families(_topics(found), topics, ("topic",), lambda each: (each.topic,), TOPICS_MAX)
    yield _one("lanelog_contradictions", "Tables that contradict each other.", found.contradictions)
    yield from _left_out(found)
    if found.held_head is not None:
        yield _one(
            "lanelog_head_locked_seconds",
            "For how long the oldest transaction has been open that publishers wait for; 0: they wait for none.",
            found.held_head,
        )
    yield from _database(found.server)


def _worst_first(group: GroupFigures, *, known: bool) -> tuple[bool, int, float, int, str, str]:
    info = group.info
    nobody = known and info.lag > 0 and not info.members
    stuck = group.stuck_lanes + group.hung_members
    return not nobody, -stuck, -(info.oldest_age or 0), -info.lag, info.topic, info.group


def _topics(found: Figures) -> tuple[Gauge[TopicInfo], ...]:
    return (
        Gauge("lanelog_topic_messages", "Messages in the log.", lambda each: each.messages),
        Gauge(
            "lanelog_topic_heads",
            "Messages that ever came into its lanes; its rate is what is published.",
            lambda each: each.head,
        ),
        Gauge("lanelog_topic_lanes", "Lanes.", lambda each: each.lanes),
        Gauge(
            "lanelog_topic_dead_letters",
            "Dead letters that are neither redriven nor deleted.",
            lambda each: each.dead_letters,
        ),
        Gauge(
            "lanelog_topic_delayed_messages",
            "Messages that are not in the log yet.",
            lambda each: found.delayed.get(each.topic, 0),
        ),
    )


def _left_out(found: Figures) -> Iterator[Metric]:
    yield _one("lanelog_topics_left_out", "Topics beyond the first 1,000, which have no series.", found.topics_left_out)
    yield _one("lanelog_groups_left_out", "Groups beyond the first 1,000, which have no series.", found.groups_left_out)
    yield _one(
        "lanelog_topics_not_compared",
        "Topics whose tables were not searched for contradictions: it took too long.",
        found.topics_not_compared,
    )


def _database(server: ServerFigures) -> Iterator[Metric]:
    if server.oldest_transaction is not None:
        yield _one(
            "lanelog_database_oldest_transaction_seconds",
            "For how long the server's oldest transaction has been open; 0: none is.",
            server.oldest_transaction,
        )
    if server.history_list_length is not None:
        yield _one(
            "lanelog_database_history_list_length",
            "Transactions whose deleted rows are still in the indexes.",
            server.history_list_length,
        )
    rows = GaugeMetricFamily("lanelog_table_rows", "Rows of a table, estimated.", labels=("table",))
    size = GaugeMetricFamily("lanelog_table_bytes", "Bytes of a table and its indexes, estimated.", labels=("table",))
    for table, found in sorted(server.tables.items()):
        rows.add_metric((table,), found.rows)
        size.add_metric((table,), found.bytes)
    yield from (rows, size)


def _one(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_, value=value)
