"""The five parts of records' latencies, from the clients' stamps and those of the proxies between them and the brokers.

| part | from | to |
| --- | --- | --- |
| produce | the record is due at the producer | its produce request passes the proxy |
| publish | | the first response that shows the record in the leader's log: to its producer or to a follower |
| commit | | the last follower's fetch beyond the record passes; without followers, the same moment |
| catch-up | | the consumer's fetch that returns the record passes, or the record is committed if that is later |
| fetch | | `poll()` returns the record |

Each border is one stamp, so the parts of a record add up to its latency if every stamp exists and their order is right.
`Parts` counts those of which that does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PARTS = ("produce", "publish", "commit", "catch-up", "fetch")
CLOSE_ENOUGH = 0.01


class ProducedBatch(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def request_s(self) -> float: ...
    @property
    def response_s(self) -> float: ...


class FetchedRecords(Protocol):
    @property
    def from_offset(self) -> int: ...
    @property
    def until(self) -> int: ...
    @property
    def request_s(self) -> float: ...
    @property
    def response_s(self) -> float: ...
    @property
    def replica(self) -> int: ...


class FollowerPosition(Protocol):
    @property
    def replica(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def at_s(self) -> float: ...


class Received(msgspec.Struct, frozen=True):
    """A partition's records as its consumer got them, in order: offsets, and times in seconds."""

    offsets: Integers
    due_s: Floats
    received_s: Floats


class Parts(msgspec.Struct, frozen=True):
    """`parts_ms`: one row a record, in the order of `PARTS`; NaN where a stamp is missing. `end_to_end_ms` is what the
    clients measured. `due_s` orders the records."""

    parts_ms: Floats
    end_to_end_ms: Floats
    due_s: Floats

    @property
    def adds_up(self) -> NDArray[np.bool_]:
        """Of each record: no part is missing or negative, and their sum is within 1% of the end-to-end latency."""
        sums = self.parts_ms.sum(axis=1)
        allowed = CLOSE_ENOUGH * self.end_to_end_ms
        found: NDArray[np.bool_] = (np.abs(sums - self.end_to_end_ms) <= allowed) & (self.parts_ms >= -1e-6).all(axis=1)
        return found


def joined(parts: Sequence[Parts]) -> Parts:
    made = Parts(
        np.concatenate([one.parts_ms for one in parts]),
        np.concatenate([one.end_to_end_ms for one in parts]),
        np.concatenate([one.due_s for one in parts]),
    )
    order = np.argsort(made.due_s, kind="stable")
    return Parts(made.parts_ms[order], made.end_to_end_ms[order], made.due_s[order])


def parts_of(
    received: Received,
    produced: Sequence[ProducedBatch],
    fetched: Sequence[FetchedRecords],
    positions: Sequence[FollowerPosition],
    followers: Sequence[int],
) -> Parts:
    """The parts of one partition's records. `followers`: the in-sync replicas besides the leader."""
    offsets = received.offsets
    requested, acknowledged = _produced_at(offsets, produced)
    seen = [_first_shown(offsets, [one for one in fetched if one.replica == follower]) for follower in followers]
    asked, given = _first_shown(offsets, [one for one in fetched if one.replica < 0])
    shown = np.fmin.reduce([acknowledged, given, *(at for _, at in seen)])
    has = [_past(offsets, [one for one in positions if one.replica == follower]) for follower in followers]
    committed = np.minimum(np.maximum.reduce([shown, *has]), given)  # what a consumer is given is committed
    can_fetch = np.maximum(committed, asked)
    borders = np.column_stack((received.due_s, requested, shown, committed, can_fetch, received.received_s))
    latency_ms = (received.received_s - received.due_s) * 1_000.0
    return Parts(np.diff(borders, axis=1) * 1_000.0, latency_ms, received.due_s)


def _produced_at(offsets: Integers, produced: Sequence[ProducedBatch]) -> tuple[Floats, Floats]:
    batches = sorted(produced, key=lambda one: one.base_offset)
    if not batches:
        return np.full(len(offsets), np.nan), np.full(len(offsets), np.nan)
    bases = np.array([one.base_offset for one in batches])
    ends = np.array([one.base_offset + one.count for one in batches])
    at = np.searchsorted(bases, offsets, side="right") - 1
    inside = (at >= 0) & (offsets < ends[at])
    times = np.array([(one.request_s, one.response_s) for one in batches])[at]
    times[~inside] = np.nan
    return times[:, 0], times[:, 1]


def _first_shown(offsets: Integers, fetched: Sequence[FetchedRecords]) -> tuple[Floats, Floats]:
    """When the first fetch that returned each offset was asked for, and answered."""
    ordered = sorted(fetched, key=lambda one: one.response_s)
    if not ordered:
        return np.full(len(offsets), np.nan), np.full(len(offsets), np.nan)
    ends = np.maximum.accumulate(np.array([one.until for one in ordered]))
    at = np.searchsorted(ends, offsets, side="right")
    missing = at >= len(ordered)
    at[missing] = 0
    times = np.array([(one.request_s, one.response_s) for one in ordered])[at]
    times[missing] = np.nan
    return times[:, 0], times[:, 1]


def _past(offsets: Integers, positions: Sequence[FollowerPosition]) -> Floats:
    """When a follower first asked for what follows each offset."""
    if not positions:
        return np.full(len(offsets), np.nan)
    ordered = sorted(positions, key=lambda one: one.at_s)
    reached = np.maximum.accumulate(np.array([one.offset for one in ordered]))
    at = np.searchsorted(reached, offsets, side="right")
    missing = at >= len(ordered)
    at[missing] = 0
    times = np.array([one.at_s for one in ordered])[at]
    times[missing] = np.nan
    return times


def quantiles_ms(parts: Parts) -> Mapping[str, Mapping[str, float]]:
    """p50, p99 and mean of each part and of the end-to-end latency, of the records that add up. "beyond p99": the
    mean of the records that take the p99 of the end-to-end latency or longer, which says what a p99 consists of."""
    good = parts.adds_up
    latencies_ms = parts.end_to_end_ms[good]
    if not len(latencies_ms):
        return {}
    columns = dict(zip(PARTS, parts.parts_ms[good].T, strict=True)) | {"end to end": latencies_ms}
    far = latencies_ms >= np.quantile(latencies_ms, 0.99)
    return {
        name: {"p50": float(np.quantile(one, 0.5)), "p99": float(np.quantile(one, 0.99))}
        | {"mean": float(one.mean()), "beyond p99": float(one[far].mean())}
        for name, one in columns.items()
    }
