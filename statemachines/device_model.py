"""Models of a hard disk and of a solid-state disk, in seconds and bytes.

One model serves the simulation, which asks it when a request ends, and the FUSE file system of the physical runs, which
sleeps until then.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

MB = 1_000_000
ROUNDING = 1e-9
READ_AHEAD_BYTES = 128 * 1024
"""What a sequential reader has read ahead at a time: Linux's `read_ahead_kb`."""

HDD_CURVE = ((1, 133.0), (2, 33.0), (4, 31.0), (8, 21.0), (16, 19.0), (32, 19.0))
"""Concurrent sequential readers and the MB/s that they get together, of a disk with one arm."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What a device does with a request.

    `bandwidth` in bytes a second. `latency_s` passes before an answer and does not occupy the device. `seeks_s`: pairs
    of a number of concurrent streams and the seconds of a seek between them; empty for a device without an arm. While
    streams compete, each piece of `piece` bytes costs a seek; alone, a request costs one if its stream is not that of
    the last one.
    """

    bandwidth: float
    latency_s: float = 0.0
    seeks_s: tuple[tuple[int, float], ...] = ()
    piece: float = READ_AHEAD_BYTES

    def seek_s(self, streams: int) -> float:
        """Return the seconds of one seek, interpolated over the logarithm of the number of streams."""
        if not self.seeks_s or streams < 2:
            return 0.0
        at = bisect_right(self.seeks_s, (streams, math.inf))
        if at == 0:
            return self.seeks_s[0][1]
        if at == len(self.seeks_s):
            return self.seeks_s[-1][1]
        (low, low_s), (high, high_s) = self.seeks_s[at - 1], self.seeks_s[at]
        share = math.log(streams / low) / math.log(high / low)
        return low_s + share * (high_s - low_s)

    def service_s(self, nbytes: float, streams: int, same_stream: bool) -> float:
        """Return how long a request occupies the device, with `streams` competing for it, its own included."""
        transfer = nbytes / self.bandwidth
        if streams > 1:
            return transfer + math.ceil(nbytes / self.piece - ROUNDING) * self.seek_s(streams)
        return transfer + (0.0 if same_stream else self.seek_s(2))

    def of_pieces(self, piece: float) -> DeviceModel:
        """Return the model that gives streams the same bytes a second if they read pieces of so many bytes."""
        seeks = tuple((streams, seek * piece / self.piece) for streams, seek in self.seeks_s)
        return replace(self, seeks_s=seeks, piece=piece)

    def scaled(self, bytes_ratio: float, time_ratio: float) -> DeviceModel:
        """Return the model whose bytes and seconds are these times the ratios, so that queues have the same lengths."""
        return replace(
            self,
            bandwidth=self.bandwidth * bytes_ratio / time_ratio,
            latency_s=self.latency_s * time_ratio,
            seeks_s=tuple((streams, seek * time_ratio) for streams, seek in self.seeks_s),
            piece=self.piece * bytes_ratio,
        )


def hdd_model(curve: tuple[tuple[int, float], ...] = HDD_CURVE, piece: int = READ_AHEAD_BYTES) -> DeviceModel:
    """Return the model of a disk that gives this curve (streams, MB/s) to readers of pieces of `piece` bytes."""
    alone = curve[0][1] * MB
    seeks = tuple((streams, piece / (rate * MB) - piece / alone) for streams, rate in curve[1:])
    return DeviceModel(alone, seeks_s=seeks, piece=piece)


def ssd_model(mb_per_s: float = 500.0, latency_s: float = 0.0001) -> DeviceModel:
    return DeviceModel(mb_per_s * MB, latency_s)


def add_evenly(writes: dict[int, float], nbytes: float, begun: float, done: float, interval_s: float) -> None:
    """Count bytes in the intervals in which they were written, evenly from one time to another."""
    last = int(done / interval_s)
    for at in range(int(begun / interval_s), last):
        part = nbytes * ((at + 1) * interval_s - begun) / (done - begun)
        writes[at] = writes.get(at, 0.0) + part
        nbytes, begun = nbytes - part, (at + 1) * interval_s
    writes[last] = writes.get(last, 0.0) + nbytes


class CompetingStreams:
    """The streams that have requests in a device's queue."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: Counter[object] = Counter()

    def add(self, stream: object) -> int:
        """Count a request of a stream; return how many streams compete, its own included."""
        self._requests[stream] += 1
        return len(self._requests)

    def remove(self, stream: object) -> None:
        self._requests[stream] -= 1
        if not self._requests[stream]:
            del self._requests[stream]


@dataclass(slots=True, eq=False)
class DeviceQueue:
    """A device that serves requests in the order of their arrival.

    Attributes: `read` and `written` count bytes, `busy_s` the seconds of service; `writes` has the bytes written by
    intervals of `interval_s`. `late_s` returns by how much a service takes longer than the model's.
    """

    name: str
    model: DeviceModel
    interval_s: float = 0.1
    late_s: Callable[[], float] | None = None
    read: float = 0.0
    written: float = 0.0
    busy_s: float = 0.0
    writes: dict[int, float] = field(default_factory=dict)
    _pending: deque[tuple[float, object]] = field(default_factory=deque)
    _streams: CompetingStreams = field(default_factory=CompetingStreams)
    _free_at: float = 0.0
    _last: object = None

    def submit(self, now: float, stream: object, nbytes: float, write: bool = False) -> float:
        """Queue a request at `now`, which must not decrease between calls, and return when it is answered."""
        pending = self._pending
        while pending and pending[0][0] <= now:
            self._streams.remove(pending.popleft()[1])
        service = self.model.service_s(nbytes, self._streams.add(stream), stream == self._last)
        self._last = stream
        if self.late_s is not None:
            service = max(0.0, service + self.late_s())
        self._free_at = done = max(now, self._free_at) + service
        pending.append((done, stream))
        self.busy_s += service
        if write:
            self.written += nbytes
            add_evenly(self.writes, nbytes, done - service, done, self.interval_s)
        else:
            self.read += nbytes
        return done + self.model.latency_s
