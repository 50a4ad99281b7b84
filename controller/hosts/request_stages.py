"""The stages of a request from its arrival to the last byte of its response, as in Kafka's RequestMetrics.

A request waits in its connection's queue (RequestQueueTimeMs), is handled (LocalTimeMs), waits for other brokers or
for records (RemoteTimeMs), its response waits for earlier ones of the connection (ResponseQueueTimeMs) and is written
to the socket (ResponseSendTimeMs). A stage has six stamps as its borders, so the stages of a request add up to its
TotalTimeMs. The network's loop stores the stamps of answered requests and evaluates them in bulk, because
six histograms updated at each request would cost several percent of a small produce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.core.metrics import IDLE_MS, QUANTILES, SAMPLES
from controller.protocol.codec import ApiKey
from controller.protocol.framing import Part

STAGES = ("RequestQueue", "Local", "Remote", "ResponseQueue", "ResponseSend", "Total")
"""Kafka's names, without the TimeMs."""
_STAMPS = 6
_FETCH, _CONSUMER, FOLLOWER = int(ApiKey.FETCH), 1_000, 2_000
"""FOLLOWER: such a fetch, and no other request, has a kind from there on."""
_FIRST_FLEXIBLE_FETCH = 12


def kind_of(frame: bytes) -> int:
    """Return the request's API key, for a Fetch with an addition that says whether a follower sent it."""
    key = frame[1] if len(frame) > 10 else -1
    if key != _FETCH:
        return key
    at = 10 + max(int.from_bytes(frame[8:10], "big", signed=True), 0) + (frame[3] >= _FIRST_FLEXIBLE_FETCH)
    return key + (_CONSUMER if frame[at : at + 1] >= b"\x80" else FOLLOWER)


def name_of(kind: int) -> str:
    """Return the name of Kafka's label `request`: FetchConsumer, FetchFollower, or the API's name."""
    key = ApiKey(kind % 1_000)
    name = "".join(word.capitalize() for word in key.name.split("_"))
    return name + ("" if kind < _CONSUMER else "Follower" if kind >= FOLLOWER else "Consumer")


class Slot(msgspec.Struct, eq=False):
    """The place of one request's answer in its connection's order. Called with the answer, on any thread: a controller
    answers on its own. Times are the loop's, in seconds; `handled_s` is 0 until the handler has returned."""

    _answer: Callable[[Slot, Sequence[Part] | None], None]
    size: int
    kind: int
    arrived_s: float
    begun_s: float
    parts: Sequence[Part] | None = None
    ready: bool = False
    handled_s: float = 0.0
    answered_s: float = 0.0

    def __call__(self, parts: Sequence[Part] | None) -> None:
        self._answer(self, parts)


class Unsent:
    """Requests of one connection whose responses are in its send queue."""

    __slots__ = ("_rows", "_stages")

    def __init__(self, stages: RequestStages) -> None:
        self._stages = stages
        self._rows: list[tuple[float, ...]] = []

    def add(self, slot: Slot, now_s: float) -> None:
        self._rows.append((slot.kind, slot.arrived_s, slot.begun_s, slot.handled_s, slot.answered_s, now_s))

    def sent(self, now_s: float) -> None:
        """The socket has taken all of the queue."""
        if self._rows:
            self._stages.take(self._rows, now_s)
            self._rows.clear()


class StageTimes(msgspec.Struct):
    """Of the requests of one kind, in the order of `STAGES`: totals, and the latest values in ms."""

    count: int
    sums_ms: NDArray[np.float64]
    latest_ms: NDArray[np.float64]
    updated_s: float

    def quantiles(self, stage: int, now_s: float) -> dict[float, float]:
        """All 0 if the latest request was long ago, as of every histogram here."""
        if now_s - self.updated_s > IDLE_MS / 1_000.0:
            return dict.fromkeys(QUANTILES, 0.0)
        ordered = np.sort(self.latest_ms[:, stage])
        return {one: float(ordered[min(len(ordered) - 1, int(one * len(ordered)))]) for one in QUANTILES}


class RequestStages:
    """Stages of the requests of a server, by kind. Used on the network's loop."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._sent_s: list[float] = []
        self._times: dict[int, StageTimes] = {}

    def take(self, rows: Sequence[tuple[float, ...]], sent_s: float) -> None:
        """`rows`: a request's kind, then its stamps up to the one at which its response was queued, in seconds."""
        self._rows += rows
        self._sent_s += [sent_s] * len(rows)
        if len(self._rows) >= SAMPLES:
            self._evaluate()

    def times(self) -> Mapping[str, StageTimes]:
        """By the name of the request."""
        self._evaluate()
        return {name_of(kind): self._times[kind] for kind in sorted(self._times)}

    def summaries(self, now_s: float) -> Mapping[str, Mapping[str, tuple[Mapping[float, float], int, float]]]:
        """By stage and request: quantiles in ms, how many there were, and their sum in ms."""
        times = self.times()
        return {
            stage: {name: (one.quantiles(at, now_s), one.count, float(one.sums_ms[at])) for name, one in times.items()}
            for at, stage in enumerate(STAGES)
        }

    def p99_ms(self, name: str, now_s: float) -> float:
        """The 99th percentile of the total time of the latest requests of that name; 0 without any."""
        times = self.times().get(name)
        return 0.0 if times is None else times.quantiles(len(STAGES) - 1, now_s)[0.99]

    def _evaluate(self) -> None:
        rows = np.column_stack((np.array(self._rows).reshape(-1, _STAMPS), self._sent_s))
        self._rows, self._sent_s = [], []
        for kind in np.unique(rows[:, 0]):
            if int(kind) % 1_000 not in ApiKey._value2member_map_:
                continue
            stages_ms = _stages_ms(rows[rows[:, 0] == kind, 1:])
            known = self._times.get(int(kind))
            if known is None:
                known = StageTimes(0, np.zeros(len(STAGES)), np.empty((0, len(STAGES))), 0.0)
                self._times[int(kind)] = known
            known.count += len(stages_ms)
            known.sums_ms += stages_ms.sum(axis=0)
            known.latest_ms = np.concatenate((known.latest_ms, stages_ms))[-SAMPLES:]
            known.updated_s = float(rows[-1, -1])


def _stages_ms(stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    """An answer given before the handler returned ends LocalTime, and there is no RemoteTime."""
    handled, answered = stamps[:, 2], stamps[:, 3]
    stamps[:, 2] = np.where((handled == 0.0) | (handled > answered), answered, handled)
    parts = np.diff(stamps, axis=1) * 1_000.0
    return np.column_stack((parts, parts.sum(axis=1)))
