"""Results of an analysis, made up: three days of a shop's log, to render a report of."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lanelog.spark.report.parts import Facts

Tables = dict[str, list[dict[str, Any]]]

BEGAN = datetime(2026, 6, 1, 6, tzinfo=UTC)
CUTOFF = BEGAN + timedelta(hours=71, minutes=17)
HOSTILE = "<script>document.title = 'owned'</script><img src=https://example.org/x.png>"
ODD = "ключ 🦊 鍵"
NAMES = ("latency", "latency_spread", "attempts", "dead_letters", "hot_lanes", "lane_sizes", "skew")
NAMES += ("lag", "stalled_lanes", "timeline", "topics")


def rows(columns: str, *values: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows from values in the order of the columns."""
    return [dict(zip(columns.split(), each, strict=True)) for each in values]


def facts(**changed: Any) -> Facts:
    """What was read."""
    made: dict[str, Any] = {
        "archive": "/data/archive",
        "live": "mysql://reports@db.example.net:3306/jobs",
        "cutoff": CUTOFF,
        "topics": ["mails", "orders", "orders_dlq"],
        **dict.fromkeys(("messages", "size", "lanes", "dead_letters", "outstanding", "reasons", "stalled"), 0),
        "first": BEGAN,
        "last": CUTOFF,
        "step_ms": 3_600_000,
        "stalled_after_ms": 300_000,
        "keeps_history": False,
        "counted": {"dead_letters": 0, "stalled_lanes": 0},
        "files": "parquet",
    }
    return Facts(**{**made, **changed})


def nothing() -> Tables:
    """Every table, empty."""
    return {name: [] for name in NAMES}


def full(text: str = ODD) -> tuple[Facts, Tables]:
    """Something in every table; `text` stands wherever the log's own words do."""
    hours: list[tuple[str, datetime, int, int]] = [
        (topic, BEGAN + timedelta(hours=n), messages, messages * each)
        for topic, most, each in (("mails", 900, 2100), ("orders", 5200, 640), ("orders_dlq", 9, 600))
        for n in range(72)
        if (messages := round(most * (0.55 - 0.45 * math.cos((n + 6) / 24 * 2 * math.pi)) * (0.9 + 0.1 * (n * 7 % 5))))
    ]
    tables = nothing()
    tables["timeline"] = rows("topic start messages bytes", *hours)
    of = {topic: [each[1:] for each in hours if each[0] == topic] for topic in ("mails", "orders", "orders_dlq")}
    summed = [
        (topic, sum(each[1] for each in all_), sum(each[2] for each in all_), peak[1], peak[0])
        for topic, all_ in of.items()
        for peak in [max(all_, key=lambda each: each[1])]
    ]
    topics = sorted(summed, key=lambda each: -each[1])
    tables["topics"] = rows("topic messages bytes peak_messages peak_start", *topics)
    tables["latency"] = rows(
        "consumer_group topic keeps_history samples p50_ms p95_ms p99_ms max_ms",
        ("billing", "orders", True, 198_412, 42, 310, 2_150, 64_400),
        (text, "orders", True, 198_377, 7, 21, 93, 1_204),
        ("sender", "mails", False, 0, None, None, None, None),
    )
    bounds = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
    spread = {"billing": (0, 0, 40, 900, 4000, 5600, 3100, 1500, 700, 220, 130, 70, 20, 8, 3, 1)}
    spread[text] = (30, 300, 3900, 7000, 3300, 900, 210, 60, 20, 4, 1, 0, 0, 0, 0, 0)
    tables["latency_spread"] = rows(
        "consumer_group topic upto_ms messages",
        *((group, "orders", b, n) for group, ns in spread.items() for b, n in zip(bounds, ns, strict=True) if n),
    )
    tables["attempts"] = rows(
        "consumer_group topic attempts outcome messages",
        ("billing", "orders", 1, "rejected", 31),
        ("billing", "orders", 1, "success", 196_020),
        ("billing", "orders", 2, "success", 2_007),
        ("billing", "orders", 3, "success", 311),
        ("billing", "orders", 5, "failed", 348),
        ("billing", "orders", 5, "success", 74),
        (text, "orders", 1, "success", 198_377),
    )
    tables["dead_letters"] = rows(
        "original_topic failed_group reason dead_letters outstanding first_failed_at last_failed_at example_topic "
        "example_key example_offset",
        ("orders", "billing", "TimeoutError: no answer in # s", 291, 12, BEGAN, CUTOFF, "orders_dlq", "customer-17", 4),
        ("orders", "billing", "KeyError: 'customer-#'", 57, 0, BEGAN, CUTOFF, "orders_dlq", "customer-4", 1),
        ("orders", "billing", text, 31, 31, BEGAN, CUTOFF, "orders_dlq", text, 12),
        ("orders", "billing", "", 1, 1, BEGAN, BEGAN, "orders_dlq", "customer-9", 2),
    )  # fmt: skip
    sizes = {"orders": [(round(40_000 / n**1.2), n) for n in range(40, 0, -1)], "mails": [(300, 60), (420, 40)]}
    sizes["orders_dlq"] = [(1, 30), (2, 20), (31, 10)]
    tables["lane_sizes"] = rows(
        "topic messages lanes", *((topic, size, n) for topic, all_ in sorted(sizes.items()) for size, n in sorted(all_))
    )
    tables["skew"] = rows(
        "topic lanes messages top_lanes top_share gini",
        ("mails", 100, 34_800, 1, 0.012, 0.083),
        ("orders", 820, 201_500, 9, 0.372, 0.641),
        ("orders_dlq", 60, 380, 1, 0.082, 0.631),
    )
    tables["hot_lanes"] = rows(
        "topic place key messages bytes share",
        *(("mails", n, f"box-{n}", 420, 882_000, 0.012) for n in range(1, 6)),
        *(("orders", n, f"customer-{n * 7}", 40_000 // n, 25_600_000 // n, 0.1985 / n) for n in range(1, 5)),
        ("orders", 5, text, 8000, 5_120_000, 0.0397),
        ("orders_dlq", 1, "customer-17", 31, 18_600, 0.082),
    )
    tables["lag"] = rows(
        "consumer_group topic lanes lag oldest_ms paused role",
        ("_archive", "orders", 12, 4_800, 4_210, False, "archive"),
        ("billing", "orders", 3, 1_204, 5_462_000, False, "consumer"),
        (text, "orders", 0, 0, None, False, "consumer"),
        ("sender", "mails", 100, 310, 1_920_000, True, "consumer"),
    )
    tables["stalled_lanes"] = rows(
        "consumer_group topic key lag still_ms state attempts last_error",
        ("billing", "orders", "customer-17", 1_180, 5_462_000, "retrying", 14, "TimeoutError: no answer in 30 s"),
        ("billing", "orders", text, 20, 371_000, "waiting", 1, None),
        ("sender", "mails", "box-1", 4, 1_920_000, "paused", 0, text),
        ("billing", "orders", "customer-014", 2, 9_462_000, "postponed", 1, None),
    )  # fmt: skip
    messages, size = sum(each[1] for each in summed), sum(each[2] for each in summed)
    counted = {name: len(tables[name]) for name in ("dead_letters", "stalled_lanes")}
    known = {"lanes": 980, "keeps_history": True, "dead_letters": 380, "outstanding": 44, "reasons": 4, "stalled": 3}
    return facts(messages=messages, size=size, counted=counted, **known), tables
