"""Throughput and latency while records were produced, as rows over one axis, with each fault shaded until it was over.

The axis is a timeline's, to scale throughout: what is quiet for a controller is not for records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from controller.scenarios.records.figures import (
    AroundFault,
    Course,
    Timed,
    fetch_times,
    latency_over_time,
    produce_times,
    rate_over_time,
)
from controller.scenarios.records.history import ACKNOWLEDGED, FINAL, Floats
from controller.scenarios.records.joined import Joined
from controller.scenarios.timeline_lane_rows import LABELS_WIDTH, faults_row
from controller.scenarios.timeline_model import Timeline
from controller.scenarios.timeline_scale import TimeScale, close_up
from controller.scenarios.timeline_shapes import GRID, Row, duration, title, words
from controller.scenarios.timeline_svg import Drawing, compose

BLUE, RED, GREEN, GREY = "#2a6fb0", "#b42318", "#12806f", "#8c959f"

Height: TypeAlias = Callable[[float], float]
"""Where in its row a value is drawn."""

_HEIGHT = 110.0
_TOP, _BOTTOM = 24.0, 100.0
_BESIDE = LABELS_WIDTH - 12
_BUCKETS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
_LEAST_PIXELS = 5.0
_LEAST_A_BUCKET = 8
"""A bucket of fewer records than this, on average, shows chance and no rate."""


def chart(joined: Joined, around: Sequence[AroundFault], timeline: Timeline) -> Drawing:
    """Of the time in which records were under way, from the first one sent to the last one that ended."""
    scale = _scale(joined, timeline)
    bucket_ms = _bucket_ms(joined, scale)
    shades = [(each.fault.at_ms, _over(each, around[index + 1 :], timeline)) for index, each in enumerate(around)]
    rows = [
        faults_row(timeline, scale),
        _rates(joined, scale, bucket_ms),
        _latencies("produce", produce_times(joined.history), scale, bucket_ms),
        _latencies("fetch", fetch_times(joined), scale, bucket_ms),
    ]
    return compose(timeline, scale, rows, shades)


def _over(fault: AroundFault, later: Sequence[AroundFault], timeline: Timeline) -> float:
    if fault.recovered_at_ms is not None:
        return fault.recovered_at_ms
    return later[0].fault.at_ms if later else timeline.duration_ms


def _scale(joined: Joined, timeline: Timeline) -> TimeScale:
    sends = joined.history.sends
    if not len(sends):
        return close_up(0.0, timeline.duration_ms)
    last_ms = float(np.nanmax(np.concatenate([sends.sent_at_ms, sends.ended_at_ms])))
    margin_ms = 0.02 * (last_ms - float(sends.sent_at_ms.min()))
    return close_up(max(float(sends.sent_at_ms.min()) - margin_ms, 0.0), last_ms + margin_ms)


def _bucket_ms(joined: Joined, scale: TimeScale) -> float:
    """Wide enough to be seen, and to hold some records."""
    lasted_ms = scale.to_ms - scale.from_ms
    least_ms = max(
        _LEAST_PIXELS * lasted_ms / scale.width, _LEAST_A_BUCKET * lasted_ms / max(len(joined.history.sends), 1)
    )
    return next((each for each in _BUCKETS_MS if each >= least_ms), _BUCKETS_MS[-1])


def _rates(joined: Joined, scale: TimeScale, bucket_ms: float) -> Row:
    sends, reads = joined.history.sends, joined.history.reads
    sent = rate_over_time(sends.sent_at_ms, scale.from_ms, scale.to_ms, bucket_ms)
    ended_ms = sends.ended_at_ms[sends.outcome == ACKNOWLEDGED]
    acknowledged = rate_over_time(ended_ms, scale.from_ms, scale.to_ms, bucket_ms)
    consumers = len(np.unique(reads.reader[reads.reader != FINAL]))
    read_at_ms = reads.read_at_ms[reads.reader != FINAL]
    read = rate_over_time(read_at_ms, scale.from_ms, scale.to_ms, bucket_ms)
    highest = max(float(course.values[0].max()) for course in (sent, acknowledged, read))
    top = _round_up(highest)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top

    beside = words("records/s", 0, 14, "b") + _key(
        [("acknowledged", BLUE), (f"read{' by all' if consumers > 1 else ''}", GREEN), ("sent", GREY)]
    )
    beside += "".join(words(f"{value:,.0f}", _BESIDE, y(value) + 4, "sfe") for value in (0.0, top / 2, top))
    detail = f"each {duration(bucket_ms)}; at most {highest:,.0f} a second"
    drawn = [*_grid(scale, [y(value) for value in (0.0, top / 2, top)])]
    for course, colour in ((sent, GREY), (read, GREEN), (acknowledged, BLUE)):
        drawn.append(_line("rate", course, course.values[0], scale, y, colour, detail))
    return Row(_HEIGHT, beside, "".join(drawn))


def _latencies(name: str, times: Timed, scale: TimeScale, bucket_ms: float) -> Row:
    course = latency_over_time(times, scale.from_ms, scale.to_ms, bucket_ms)
    beside = words(f"{name} latency", 0, 14, "b") + _key([("median", BLUE), ("99th percentile", RED)])
    if not len(times.took_ms):
        return Row(_HEIGHT, beside + words("nothing", _BESIDE, 60, "sfe"), "")
    low = math.floor(math.log10(max(float(np.nanmin(course.values[0])), 0.1)))
    high = max(math.ceil(math.log10(max(float(np.nanmax(course.values[1])), 0.1))), low + 1)

    def y(took_ms: float) -> float:
        share = (math.log10(max(took_ms, 10.0**low)) - low) / (high - low)
        return _BOTTOM - (_BOTTOM - _TOP) * min(share, 1.0)

    powers = [10.0**power for power in range(low, high + 1)]
    beside += "".join(words(_spelled(value), _BESIDE, y(value) + 4, "sfe") for value in powers)
    detail = f"{name} latency of what was sent in each {duration(bucket_ms)}; {len(times.took_ms):,} records"
    drawn = [*_grid(scale, [y(value) for value in powers])]
    drawn += [_line(name, course, course.values[1], scale, y, RED, f"99th percentile: {detail}")]
    drawn += [_line(name, course, course.values[0], scale, y, BLUE, f"median: {detail}")]
    return Row(_HEIGHT, beside, "".join(drawn))


def _spelled(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is no less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _key(entries: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<path d='M0 {30 + 16 * line}H16' stroke='{colour}' stroke-width='2'/>"
        + words(label, 22, 34 + 16 * line, "sf")
        for line, (label, colour) in enumerate(entries)
    )


def _grid(scale: TimeScale, heights: Sequence[float]) -> Iterator[str]:
    for y in heights:
        yield f"<path d='M0 {y:.1f}H{scale.width:.1f}' stroke='{GRID}'/>"


def _line(kind: str, course: Course, values: Floats, scale: TimeScale, y: Height, colour: str, detail: str) -> str:
    """One line through the middle of each bucket, broken where there is nothing."""
    path: list[str] = []
    pen_down = False
    for index, value in enumerate(values):
        if math.isnan(value):
            pen_down = False
            continue
        x = scale.x(course.from_ms + (index + 0.5) * course.bucket_ms)
        path.append(f"{'L' if pen_down else 'M'}{x:.1f} {y(float(value)):.1f}")
        if not pen_down:
            path.append("h.01")  # so that a bucket between two empty ones shows as a dot
        pen_down = True
    return (
        f"<path data-kind='{kind}' d='{''.join(path)}' fill='none' stroke='{colour}' stroke-width='1.6'"
        f" stroke-linejoin='round' stroke-linecap='round'>{title(detail)}</path>"
    )
