"""Percentiles of latencies with confidence intervals, and where a run's warm-up ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Percentile(msgspec.Struct, frozen=True):
    """`low` to `high`: the 95% confidence interval."""

    value: float
    low: float
    high: float


def percentile(values: Floats, share: float) -> Percentile:
    """By order statistics: the ranks of the interval's ends are binomial. It supposes independent values, so the
    interval is too narrow where latencies are correlated; see `between_blocks`."""
    ordered = np.sort(values)
    count = len(ordered)
    if count == 0:
        raise ValueError("a percentile of no values")
    half = 1.96 * float(np.sqrt(count * share * (1.0 - share)))
    ranks = (count * share, count * share - half, count * share + half)
    at = [min(max(int(rank), 0), count - 1) for rank in ranks]
    return Percentile(*(float(ordered[one]) for one in at))


def between_blocks(values: Floats, share: float, blocks: int = 10) -> Percentile:
    """The percentile of all values, with an interval by the spread between `blocks` consecutive parts of the run."""
    parts = [part for part in np.array_split(values, blocks) if len(part)]
    found = [float(np.quantile(part, share)) for part in parts]
    half = 2.26 * float(np.std(found, ddof=1)) / len(found) ** 0.5 if len(found) > 1 else float("inf")
    value = float(np.quantile(values, share))
    return Percentile(value, value - half, value + half)


def warm_from(values: Floats, blocks: int = 20) -> int:
    """Return the index from which values count: the truncation point of the MSER rule over blocks of the run, at most
    half of it. It minimises the standard error of the mean of what remains."""
    if len(values) < 2 * blocks:
        return 0
    means = np.array([float(part.mean()) for part in np.array_split(values, blocks)])
    errors = [float(np.var(means[start:]) / (blocks - start)) for start in range(blocks // 2)]
    return int(np.argmin(errors)) * len(values) // blocks


def r_squared(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and R^2 of the least squares line of y over x."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    slope, intercept = np.polyfit(xs, ys, 1)
    residual = float(((ys - (slope * xs + intercept)) ** 2).sum())
    total = float(((ys - ys.mean()) ** 2).sum())
    return float(slope), float(intercept), 1.0 - residual / total if total else 1.0
