"""The charts of a report on the run's time axis: failovers, and records with their latencies.

A broker that was controller fails over twice: its partitions get other leaders, and another broker becomes controller.
Both are named by their kind, with the fault, what was affected, and for how long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from controller.report.layout import fault_words, faults_row
from controller.report.svg import (
    LABELS_WIDTH,
    Drawing,
    Row,
    TimeScale,
    compose,
    duration,
    labelled_box,
    lasting,
    title,
    words,
    words_width,
)
from controller.report.timeline import Timeline
from controller.scenarios.failovers import FATAL_FAULTS, Failover
from controller.scenarios.records.delivery_audit import DeliveryAudit
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

HEADER = ("failover", "fault", "affected", "session ended after", "served again after", "without service")
"""The last three in ms: from the fault, from the fault, and from the session's end until the client had complete
metadata again."""

_FAILOVER_HEIGHT = 30.0


def failover_rows(failovers: Sequence[Failover], timeline: Timeline) -> list[tuple[str, ...]]:
    """Return the table of failovers, a header first."""
    rows: list[tuple[str, ...]] = [HEADER]
    for failover in failovers:
        rows.append(
            (
                _name(failover, timeline),
                f"{_fault(failover, timeline)} at {failover.fault_at_ms / 1000:.3f} s",
                _affected(failover),
                _after(failover.detected_at_ms, failover.fault_at_ms),
                _after(failover.recovered_at_ms, failover.fault_at_ms),
                "-" if failover.recovery_ms is None else f"{failover.recovery_ms:.0f}",
            )
        )
    return rows


def failovers_drawing(failovers: Sequence[Failover], timeline: Timeline, scale: TimeScale) -> Drawing:
    """Return a row for each failover: from the fault to the session's end, then until the client was served again."""
    return compose(timeline, scale, [_row(failover, timeline, scale) for failover in failovers])


def _row(failover: Failover, timeline: Timeline, scale: TimeScale) -> Row:
    name, end_ms = _name(failover, timeline), timeline.duration_ms
    detected_ms = end_ms if failover.detected_at_ms is None else failover.detected_at_ms
    served_ms = end_ms if failover.recovered_at_ms is None else failover.recovered_at_ms
    alive, outage = duration(detected_ms - failover.fault_at_ms), duration(served_ms - detected_ms)
    before = f"{name}: session alive after {_fault(failover, timeline)}, {lasting(failover.fault_at_ms, detected_ms)}"
    drawn = labelled_box(
        "undetected", scale, failover.fault_at_ms, detected_ms, 5, 18, [f"session alive {alive}", alive], before
    )
    if failover.detected_at_ms is not None:
        text = f"{name}: without service, {lasting(detected_ms, served_ms)}; {_affected(failover)}"
        kind = f"outage-{failover.kind}"
        drawn += labelled_box(kind, scale, detected_ms, served_ms, 5, 18, [f"without service {outage}"], text)
        if scale.x(served_ms) < scale.width - 60:
            drawn += words(outage, scale.x(served_ms) + 5, 18)
        else:
            drawn += words(outage, scale.x(failover.fault_at_ms) - 5, 18, "se")
    return Row(
        _FAILOVER_HEIGHT,
        words(f"{failover.kind} {failover.node}", 0, 13, "b") + words(_fault(failover, timeline), 0, 26, "sf"),
        drawn,
    )


def _name(failover: Failover, timeline: Timeline) -> str:
    if failover.kind != "controller":
        return f"{failover.kind} {failover.node}"
    successor = _successor(failover, timeline)
    return f"controller {failover.node} → {'none' if successor is None else successor}"


def _successor(failover: Failover, timeline: Timeline) -> int | None:
    """The broker whose term began first after the old controller's session had ended."""
    if failover.detected_at_ms is None:
        return None
    began = [(term.from_ms, term.broker) for term in timeline.terms if term.from_ms >= failover.detected_at_ms]
    return min(began)[1] if began else None


def _fault(failover: Failover, timeline: Timeline) -> str:
    for fault in timeline.faults:
        if (
            fault.at_ms == failover.fault_at_ms
            and fault.fault in FATAL_FAULTS
            and fault.lane == f"broker {failover.node}"
        ):
            return fault_words(fault)
    return "fault"


def _affected(failover: Failover) -> str:
    one = failover.partitions == 1
    partitions = f"{failover.partitions} partition{'' if one else 's'}"
    if failover.kind == "controller":
        return f"{partitions} taken over by the new controller"
    return f"{partitions} without {'its' if one else 'their'} leader"


def _after(at_ms: float | None, since_ms: float) -> str:
    return "-" if at_ms is None else f"{at_ms - since_ms:.0f}"


BLUE, RED, GREEN, GREY = 0, 1, 2, 3
"""Lines of the palette."""

Height: TypeAlias = Callable[[float], float]
"""Where in its row a value is drawn."""

_HEIGHT = 110.0
_TOP, _BOTTOM = 24.0, 100.0
_BESIDE = LABELS_WIDTH - 12
_BUCKETS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
_LEAST_PIXELS = 5.0
_LEAST_A_BUCKET = 8
"""A bucket of fewer records than this, on average, shows chance and no rate."""
_STEADY_PERCENTILE = 90
_BURST = 3.0
"""A rate is clipped if it is this many times what the steady rate needs."""


def chart(audit: DeliveryAudit, around: Sequence[AroundFault], timeline: Timeline, scale: TimeScale) -> Drawing:
    """Return the rows of a run's records over `scale`."""
    bucket_ms = _bucket_ms(audit, scale)
    shades = [(each.fault.at_ms, _over(each, around[index + 1 :], timeline)) for index, each in enumerate(around)]
    rows = [
        faults_row(timeline, scale),
        _rates(audit, scale, bucket_ms),
        _latencies("produce", produce_times(audit.history), scale, bucket_ms),
        _latencies("fetch", fetch_times(audit), scale, bucket_ms),
    ]
    return compose(timeline, scale, rows, shades)


def _over(fault: AroundFault, later: Sequence[AroundFault], timeline: Timeline) -> float:
    if fault.recovered_at_ms is not None:
        return fault.recovered_at_ms
    return later[0].fault.at_ms if later else timeline.duration_ms


def _sent_between(audit: DeliveryAudit) -> tuple[float, float]:
    """The time in which records were under way: from the first one sent to the last one that ended."""
    sends = audit.history.sends
    if not len(sends):
        return 0.0, 0.0
    return float(sends.sent_at_ms.min()), float(np.nanmax(np.concatenate([sends.sent_at_ms, sends.ended_at_ms])))


def _bucket_ms(audit: DeliveryAudit, scale: TimeScale) -> float:
    """Wide enough to be seen, and to hold some records."""
    from_ms, to_ms = _sent_between(audit)
    width = scale.x(to_ms) - scale.x(from_ms)
    least_ms = max(
        _LEAST_PIXELS * (to_ms - from_ms) / max(width, 1.0),
        _LEAST_A_BUCKET * (to_ms - from_ms) / max(len(audit.history.sends), 1),
    )
    return next((each for each in _BUCKETS_MS if each >= least_ms), _BUCKETS_MS[-1])


def _rates(audit: DeliveryAudit, scale: TimeScale, bucket_ms: float) -> Row:
    """Records a second, on a scale that shows the steady rate: what a burst has above it is cut off, and written."""
    sends, reads = audit.history.sends, audit.history.reads
    from_ms, to_ms = _sent_between(audit)
    of_consumers = reads.reader != FINAL
    consumers = len(np.unique(reads.reader[of_consumers]))
    times = (sends.sent_at_ms, reads.read_at_ms[of_consumers], sends.ended_at_ms[sends.outcome == ACKNOWLEDGED])
    courses = [rate_over_time(at_ms, from_ms, to_ms, bucket_ms) for at_ms in times]
    highest = max(float(course.values[0].max()) for course in courses)
    top = _top(courses)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(value / top, 1.0)

    beside = words("records/s", 0, 14, "b") + _key(
        [("acknowledged", BLUE), (f"read{' by all' if consumers > 1 else ''}", GREEN), ("sent", GREY)]
    )
    beside += "".join(words(_short(value), _BESIDE, y(value) + 4, "sfe") for value in (0.0, top / 2, top))
    detail = f"mean of each {duration(bucket_ms)}; at most {highest:,.0f} records/s"
    drawn = [*_grid(scale, [y(value) for value in (0.0, top / 2, top)])]
    for course, name, colour in zip(courses, ("sent", "read", "acknowledged"), (GREY, GREEN, BLUE), strict=True):
        drawn.append(_line("rate", course, course.values[0], scale, y, colour, f"{name}: {detail}"))
    drawn += _bursts(courses, scale, top)
    return Row(_HEIGHT, beside, "".join(drawn))


def _top(courses: Sequence[Course]) -> float:
    """The highest rate on the axis: all that was, unless single bursts are much higher than the steady rate."""
    highest = max(float(course.values[0].max()) for course in courses)
    rates = np.concatenate([course.values[0] for course in courses])
    rates = rates[rates > 0]
    steady = float(np.percentile(rates, _STEADY_PERCENTILE)) if len(rates) else 0.0
    return _round_up(1.5 * steady) if highest > _BURST * _round_up(1.5 * steady) else _round_up(highest)


def _bursts(courses: Sequence[Course], scale: TimeScale, top: float) -> Iterator[str]:
    """A triangle and the value over each stretch in which a rate was above the axis."""
    highest = np.max([course.values[0] for course in courses], axis=0)
    burst: list[int] = []
    right = -1.0
    for index in [*np.flatnonzero(highest > top).tolist(), None]:
        if burst and (index is None or index > burst[-1] + 2):
            peak = max(burst, key=lambda one: float(highest[one]))
            x = scale.x(courses[0].from_ms + (peak + 0.5) * courses[0].bucket_ms)
            value = _short(float(highest[peak]))
            detail = f"burst of {highest[peak]:,.0f} records/s, above the axis of {top:,.0f}"
            yield (
                f"<path data-kind='burst' class='d{BLUE}' d='M{x - 4:.1f} {_TOP - 3}h8l-4 -7z'>{title(detail)}</path>"
            )
            to_left = x + 8 + words_width(value) > scale.width
            left = x - 8 - words_width(value) if to_left else x + 8
            if left > right:
                yield words(value, x + (-7 if to_left else 7), _TOP - 3, "se" if to_left else "s")
                right = left + words_width(value)
            burst = []
        if index is not None:
            burst.append(index)


def _latencies(name: str, times: Timed, scale: TimeScale, bucket_ms: float) -> Row:
    beside = words(f"{name} latency", 0, 14, "b") + _key([("p99", RED), ("p50", BLUE)])
    if not len(times.took_ms):
        return Row(_HEIGHT, beside + words("no records", _BESIDE, 60, "sfe"), "")
    course = latency_over_time(times, float(times.at_ms.min()), float(times.at_ms.max()), bucket_ms)
    low = math.floor(math.log10(max(float(np.nanmin(course.values[0])), 0.1)))
    high = max(math.ceil(math.log10(max(float(np.nanmax(course.values[1])), 0.1))), low + 1)

    def y(took_ms: float) -> float:
        share = (math.log10(max(took_ms, 10.0**low)) - low) / (high - low)
        return _BOTTOM - (_BOTTOM - _TOP) * min(share, 1.0)

    powers = [10.0**power for power in range(low, high + 1)]
    beside += "".join(words(_spelled(value), _BESIDE, y(value) + 4, "sfe") for value in powers)
    detail = f"{name} latency of what was sent in each {duration(bucket_ms)}; {len(times.took_ms):,} records"
    drawn = [*_grid(scale, [y(value) for value in powers])]
    drawn += [_line(name, course, course.values[1], scale, y, RED, f"p99: {detail}")]
    drawn += [_line(name, course, course.values[0], scale, y, BLUE, f"p50: {detail}")]
    return Row(_HEIGHT, beside, "".join(drawn))


def _short(value: float) -> str:
    """A figure in at most five characters: 950, 12k, 1.2M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _spelled(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is no less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _key(entries: Sequence[tuple[str, int]]) -> str:
    return "".join(
        f"<path d='M0 {30 + 16 * line}H16' class='l{colour}' stroke-width='2'/>"
        + words(label, 22, 34 + 16 * line, "sf")
        for line, (label, colour) in enumerate(entries)
    )


def _grid(scale: TimeScale, heights: Sequence[float]) -> Iterator[str]:
    for y in heights:
        yield f"<path d='M0 {y:.1f}H{scale.width:.1f}' class='grid'/>"


def _line(kind: str, course: Course, values: Floats, scale: TimeScale, y: Height, colour: int, detail: str) -> str:
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
        f"<path data-kind='{kind}' d='{''.join(path)}' class='l{colour}' stroke-width='1.6'"
        f" stroke-linejoin='round' stroke-linecap='round'>{title(detail)}</path>"
    )
