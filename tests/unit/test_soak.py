"""The soak's judgement: what grows is found, what is flat or swings is not, and latencies are counted truly."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from chaos.soak_figures import FIGURES, RATIO, Figure, bucket, flat, judge, percentile, thinned

LEVEL = Figure(title="level", relative=0.1, absolute=5)
RATE = Figure(title="rate", relative=0.05, falls=True)
TIMES = [float(at) for at in range(0, 600, 5)]
WARM_UP = 120.0


def noise(seed: int) -> random.Random:
    return random.Random(seed)


def test_a_constant_series_is_flat() -> None:
    """What does not move is flat, whatever its direction."""
    assert flat(TIMES, [100.0] * len(TIMES), LEVEL, WARM_UP)
    assert flat(TIMES, [100.0] * len(TIMES), RATE, WARM_UP)
    assert flat(TIMES, [0.0] * len(TIMES), LEVEL, WARM_UP)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_flat(seed: int) -> None:
    """A swing of a third around a constant level decides nothing."""
    dice = noise(seed)
    assert flat(TIMES, [100 * dice.uniform(0.7, 1.3) for _ in TIMES], Figure(title="x", relative=0.2), WARM_UP)


@pytest.mark.parametrize("period", [15, 40, 90])
def test_a_sawtooth_is_flat(period: int) -> None:
    """What fills and is emptied again is flat, as long as its teeth do not grow."""
    assert flat(TIMES, [at % period for at in TIMES], LEVEL, WARM_UP)


def test_teeth_that_grow_are_not_flat() -> None:
    """A sawtooth on a slope grows."""
    assert not flat(TIMES, [at % 40 + at / 4 for at in TIMES], LEVEL, WARM_UP)


@pytest.mark.parametrize("slope", [0.2, 1.0, 10.0])
def test_a_leak_is_not_flat(slope: float) -> None:
    """A steady growth of more than the tolerance from third to third is found, in spite of noise."""
    dice = noise(1)
    assert not flat(TIMES, [100 + slope * at + dice.uniform(-3, 3) for at in TIMES], LEVEL, WARM_UP)


def test_growth_that_ends_before_the_last_thirds_is_flat() -> None:
    """Filling up to the level at which deletion keeps pace is warm-up."""
    assert flat(TIMES, [min(at, 200.0) for at in TIMES], LEVEL, WARM_UP)


def test_a_jump_in_the_last_third_is_not_flat() -> None:
    """A step that stays is growth."""
    assert not flat(TIMES, [100.0 if at < 400 else 200.0 for at in TIMES], LEVEL, WARM_UP)


def test_a_single_spike_is_flat() -> None:
    """One slow interval, however slow, is no growth."""
    values = [10.0] * len(TIMES)
    values[-3] = 1e6
    assert flat(TIMES, values, LEVEL, WARM_UP)


def test_less_is_flat_unless_it_is_a_rate() -> None:
    """A level may fall, a rate may rise; a rate that falls has lost its pace."""
    falling = [1000.0 - at for at in TIMES]
    rising = falling[::-1]
    assert flat(TIMES, falling, LEVEL, WARM_UP)
    assert not flat(TIMES, falling, RATE, WARM_UP)
    assert flat(TIMES, rising, RATE, WARM_UP)


def test_the_warm_up_decides_nothing() -> None:
    """What happens before the warm-up is over is not looked at."""
    values = [1e9 if at < WARM_UP else 10.0 for at in TIMES]
    found = judge(TIMES, values, LEVEL, WARM_UP)
    assert (found.middle, found.last, found.allowed, found.flat) == (10.0, 10.0, 5.0, True)


def test_the_larger_tolerance_counts() -> None:
    """A small level may move by the absolute tolerance, a large one by the relative one."""
    small = [1.0 if at < 400 else 5.0 for at in TIMES]
    large = [1000.0 if at < 400 else 1090.0 for at in TIMES]
    assert flat(TIMES, small, LEVEL, WARM_UP)
    assert flat(TIMES, large, LEVEL, WARM_UP)
    assert not flat(TIMES, small, Figure(title="x", relative=0.1), WARM_UP)
    assert not flat(TIMES, large, Figure(title="x", absolute=5), WARM_UP)


def test_too_few_samples_are_refused() -> None:
    """A judgement about nothing is no judgement."""
    with pytest.raises(ValueError, match="3 samples after 585 s"):
        judge(TIMES, TIMES, LEVEL, 585.0)


def test_every_figure_can_fail() -> None:
    """No measured figure has a tolerance that swallows any growth, or any fall of a rate."""
    for name, figure in FIGURES.items():
        if not figure.judged:
            assert name == "load"
            continue
        before, after = (4e6, 1e6) if figure.falls else (1e6, 4e6)
        assert not flat(TIMES, [before if at < 400 else after for at in TIMES], figure, WARM_UP), name


@pytest.mark.parametrize("count", [1, 119, 120, 121, 1000])
def test_thinning_keeps_the_end(count: int) -> None:
    """What is written is at most so long, evenly spaced, and ends with the last sample."""
    items = [float(number) for number in range(count)]
    kept = thinned(items, 120)
    assert len(kept) <= 120
    assert kept[-1] == items[-1]
    assert len({after - before for before, after in itertools.pairwise(kept)}) <= 1


def test_percentiles_are_exact_to_a_bucket() -> None:
    """A percentile lies at most one bucket's width above the true one."""
    dice = noise(2)
    latencies = sorted(dice.expovariate(20) for _ in range(10_000))
    counts = Counter(map(bucket, latencies))
    for share in (0.01, 0.5, 0.99, 1.0):
        true = latencies[math.ceil(share * len(latencies)) - 1]
        assert true <= percentile(counts, share) * (1 + 1e-9)
        assert percentile(counts, share) <= max(true, 0.0001) * RATIO * (1 + 1e-9)


def test_no_latencies_have_no_percentile() -> None:
    """Nothing counted is not a latency of zero."""
    assert math.isnan(percentile({}, 0.5))
