"""The soak's judgement: what grows is found, what is flat or swings is not, and latencies are counted truly."""

import math
import random
from collections import Counter

import pytest

from chaos.soak_figures import FIGURES, RATIO, Figure, bucket, flat, judge, percentile

LEVEL = Figure(title="level", relative=0.1, absolute=5)
RATE = Figure(title="rate", relative=0.05, falls=True)
TIMES = [float(at) for at in range(0, 600, 5)]
WARM_UP = 120.0


DICE = random.Random(1)
THIRD = Figure(title="third", relative=0.2)


@pytest.mark.parametrize(
    ("what", "values", "figure", "expected"),
    [
        ("constant", [100.0 for _ in TIMES], LEVEL, True),
        ("constant rate", [100.0 for _ in TIMES], RATE, True),
        ("nothing", [0.0 for _ in TIMES], LEVEL, True),
        *(("noise of a third", [100 * DICE.uniform(0.7, 1.3) for _ in TIMES], THIRD, True) for _ in range(5)),
        *(("sawtooth", [at % period for at in TIMES], LEVEL, True) for period in (15, 40, 90)),
        ("sawtooth that grows", [at % 40 + at / 4 for at in TIMES], LEVEL, False),
        *(("leak", [100 + slope * at + DICE.uniform(-3, 3) for at in TIMES], LEVEL, False) for slope in (0.2, 1.0, 10)),
        ("growth that ends before the last thirds", [min(at, 200.0) for at in TIMES], LEVEL, True),
        ("jump that stays", [100.0 if at < 400 else 200.0 for at in TIMES], LEVEL, False),
        ("single spike", [1e6 if at == TIMES[-3] else 10.0 for at in TIMES], LEVEL, True),
        ("level that falls", [1000.0 - at for at in TIMES], LEVEL, True),
        ("rate that falls", [1000.0 - at for at in TIMES], RATE, False),
        ("rate that rises", [400.0 + at for at in TIMES], RATE, True),
        ("small, within the absolute tolerance", [1.0 if at < 400 else 5.0 for at in TIMES], LEVEL, True),
        ("small, without it", [1.0 if at < 400 else 5.0 for at in TIMES], Figure(title="x", relative=0.1), False),
        ("large, within the relative tolerance", [1000.0 if at < 400 else 1090.0 for at in TIMES], LEVEL, True),
        ("large, without it", [1000.0 if at < 400 else 1090.0 for at in TIMES], Figure(title="x", absolute=5), False),
    ],
)
def test_what_is_flat(what: str, values: list[float], figure: Figure, expected: bool) -> None:
    """Growth is found in spite of noise, and a rate that falls; a constant, a swing or one jump is flat."""
    assert flat(TIMES, values, figure, WARM_UP) is expected


def test_the_warm_up_decides_nothing() -> None:
    """Samples before the end of the warm-up are left out."""
    values = [1e9 if at < WARM_UP else 10.0 for at in TIMES]
    found = judge(TIMES, values, LEVEL, WARM_UP)
    assert (found.middle, found.last, found.allowed, found.flat) == (10.0, 10.0, 5.0, True)


def test_every_figure_can_fail() -> None:
    """No measured figure has a tolerance that swallows any growth, or any fall of a rate."""
    for name, figure in FIGURES.items():
        if not figure.judged:
            assert name == "load"
            continue
        before, after = (4e6, 1e6) if figure.falls else (1e6, 4e6)
        assert not flat(TIMES, [before if at < 400 else after for at in TIMES], figure, WARM_UP), name


def test_percentiles_are_exact_to_a_bucket() -> None:
    """A percentile lies at most one bucket's width above the true one; of nothing it is not nought."""
    dice = random.Random(2)
    latencies = sorted(dice.expovariate(20) for _ in range(10_000))
    counts = Counter(map(bucket, latencies))
    for share in (0.01, 0.5, 0.99, 1.0):
        true = latencies[math.ceil(share * len(latencies)) - 1]
        assert true <= percentile(counts, share) * (1 + 1e-9)
        assert percentile(counts, share) <= max(true, 0.0001) * RATIO * (1 + 1e-9)
    assert math.isnan(percentile({}, 0.5))
