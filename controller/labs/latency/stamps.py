"""The five parts of a record's latency, each from two stamps of its own.

`parts.py` gives neighbouring parts a common border, so that they add up if they are joined well. Here each border has
two stamps, by different observers or at different moments of one observer, and no part is what the others leave. So
their sum may differ from what the clients measured: by what happens between the two stamps of a border, and by whatever
is joined wrongly.

| part | begins | ends |
| --- | --- | --- |
| produce | the record is due (producer) | the proxy has read the last request with its batch before the append |
| publish | the proxy has passed this request on | the leader's log has the batch and its waiting fetches are notified |
| commit | the produce handler goes on | a leader has moved its high watermark past the record |
| catch-up | the leader notes the new high watermark | the proxy has read the consumer's fetch that returns the record |
| fetch | the proxy has passed this fetch on, or the high watermark is noted if that is later | `poll()` has returned |

There is no catch-up where the fetch waits at the leader when the record is committed. A leader may end between append
and commit: then the next leader's high watermark ends the commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.labs.latency.parts import PARTS, Floats, Integers, Parts, Received


class RequestedBatch(Protocol):
    @property
    def crc(self) -> int: ...
    @property
    def read_s(self) -> float: ...
    @property
    def passed_s(self) -> float: ...


class FetchedSpan(Protocol):
    @property
    def until(self) -> int: ...
    @property
    def request_s(self) -> float: ...
    @property
    def passed_s(self) -> float: ...
    @property
    def response_s(self) -> float: ...


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch in a leader's log. `written_s`: waiting fetches are notified; `noted_s`: the handler goes on. `request`:
    the number of the produce request that brought it, which arrived at `arrived_s`."""

    crc: int
    base_offset: int
    count: int
    written_s: float
    noted_s: float
    request: int
    arrived_s: float


class Watermark(msgspec.Struct, frozen=True, gc=False):
    """A leader's high watermark moved to `offset`. `noted_s`: its listeners are called."""

    offset: int
    moved_s: float
    noted_s: float


def parts_of_stamps(
    received: Received,
    requested: Sequence[RequestedBatch],
    appended: Sequence[AppendedBatch],
    watermarks: Sequence[Watermark],
    fetched: Sequence[FetchedSpan],
) -> Parts:
    """The parts of one partition's records; NaN where a stamp is missing."""
    offsets = received.offsets
    if not appended:
        return Parts(
            np.full((len(offsets), len(PARTS)), np.nan),
            (received.received_s - received.due_s) * 1_000.0,
            received.due_s,
        )
    batches = _batches(offsets, received.received_s, appended)
    requests = _requests(appended, requested)[batches]
    requests[batches < 0] = np.nan
    stamps = np.array([(one.written_s, one.noted_s) for one in appended]).reshape(-1, 2)[batches]
    stamps[batches < 0] = np.nan
    commits = _commits(offsets, watermarks)
    asked_s, passed_s = _fetches(offsets, fetched)
    stamps = np.minimum(stamps, commits[:, :1])  # without followers the notification itself commits
    begins = np.column_stack(
        (received.due_s, requests[:, 1], stamps[:, 1], commits[:, 1], np.fmax(passed_s, commits[:, 1]))
    )
    fetchable_s = np.maximum(asked_s, commits[:, 1])
    ends = np.column_stack((requests[:, 0], stamps[:, 0], commits[:, 0], fetchable_s, received.received_s))
    return Parts((ends - begins) * 1_000.0, (received.received_s - received.due_s) * 1_000.0, received.due_s)


def _batches(offsets: Integers, received_s: Floats, appended: Sequence[AppendedBatch]) -> Integers:
    """The batch that each offset was received from, -1 if unknown: the last one that was written there before. Those
    before it were truncated when their leader had ended."""
    found = np.full(len(offsets), -1)
    for number in sorted(range(len(appended)), key=lambda one: appended[one].written_s):
        one = appended[number]
        low, high = np.searchsorted(offsets, (one.base_offset, one.base_offset + one.count))
        inside = slice(int(low), int(high))
        found[inside] = np.where(received_s[inside] >= one.written_s, number, found[inside])
    return found


def _requests(appended: Sequence[AppendedBatch], requested: Sequence[RequestedBatch]) -> Floats:
    """When each batch's last request before its append was read and passed on."""
    by_crc: defaultdict[int, list[RequestedBatch]] = defaultdict(list)
    for one in requested:
        by_crc[one.crc].append(one)
    rows = []
    for batch in appended:
        before = [one for one in by_crc[batch.crc] if one.read_s <= batch.written_s]
        last = max(before, key=lambda one: one.read_s, default=None)
        rows.append((np.nan, np.nan) if last is None else (last.read_s, last.passed_s))
    return np.array(rows).reshape(-1, 2)


def _commits(offsets: Integers, watermarks: Sequence[Watermark]) -> Floats:
    """When a leader's high watermark first passed each offset, and when that was noted."""
    ordered = sorted(watermarks, key=lambda one: one.moved_s)
    return _first_beyond(offsets, [one.offset for one in ordered], [(one.moved_s, one.noted_s) for one in ordered])


def _fetches(offsets: Integers, fetched: Sequence[FetchedSpan]) -> tuple[Floats, Floats]:
    ordered = sorted(fetched, key=lambda one: one.response_s)
    times = _first_beyond(offsets, [one.until for one in ordered], [(one.request_s, one.passed_s) for one in ordered])
    return times[:, 0], times[:, 1]


def _first_beyond(offsets: Integers, ends: Sequence[int], times: Sequence[tuple[float, float]]) -> Floats:
    """The times of the first end beyond each offset."""
    if not ends:
        return np.full((len(offsets), 2), np.nan)
    at = np.searchsorted(np.maximum.accumulate(np.array(ends)), offsets, side="right")
    missing = at >= len(ends)
    at[missing] = 0
    found: NDArray[Any] = np.array(times)[at]
    found[missing] = np.nan
    return found


class RequestTimes(msgspec.Struct, frozen=True, gc=False):
    """Of an answered produce request, in seconds: it arrived at the broker, its last batch was appended, its handler
    returned, its last batch was committed, its answer was given."""

    arrived_s: float
    appended_s: float
    handled_s: float
    committed_s: float
    answered_s: float


def request_parts_ms(requests: Sequence[RequestTimes]) -> Mapping[str, float]:
    """Means in ms: from the arrival of a request to its last append, to the end of its handler, and from there to its
    last commit and to its answer."""
    rows = np.array([(*msgspec.structs.astuple(one),) for one in requests]).reshape(-1, 5)
    means = (rows.mean(axis=0) if len(rows) else np.full(5, np.nan)) * 1_000.0
    arrived, appended, handled, committed, answered = map(float, means)
    return {
        "append": appended - arrived,
        "publish": handled - arrived,
        "high watermark": committed - handled,
        "commit": answered - handled,
    }
