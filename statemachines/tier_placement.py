"""Rules that place a log's data on an SSD and HDDs by age: what to copy, what to evict, how fast, when to flush.

Pure functions of facts: the broker, the simulator and the laboratory call the same ones. Sizes are in bytes, rates in
bytes a second, times in milliseconds of any clock that the caller keeps to. The design is Meituan's: leaders write to
the SSD, sealed segments are copied to an HDD as fast as clients allow, and the oldest copied ones leave the SSD when
its use passes a threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeVar

from statemachines.log_segment import ON_SSD, Active, Cached, OnlyCache, SegmentState, WithoutCache


class Tier(Enum):
    SSD = "ssd"
    HDD = "hdd"


class PlacedSegment(Protocol):
    """The facts about one segment that the rules look at."""

    @property
    def state(self) -> SegmentState: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sealed_ms(self) -> int:
        """When the last record was appended to it: its age counts from there."""


S = TypeVar("S", bound=PlacedSegment)


def append_tier(is_leader: bool, followers_on: Tier) -> Tier:
    """The tier that a replica appends to: the SSD for a leader, and for a follower what its topic's setting says."""
    return Tier.SSD if is_leader else followers_on


def read_tier(state: SegmentState) -> Tier | None:
    """The device that a segment is read from; None where there is nothing to read."""
    if state in ON_SSD:
        return Tier.SSD
    return Tier.HDD if state is WithoutCache or state is SegmentState.ActiveOnHdd else None


def next_to_copy(segments: Iterable[S]) -> S | None:
    """The sealed segment, of any log, that has waited longest for its copy; None if none waits.

    It is the one whose loss with the SSD would lose the oldest data, and the next that can become evictable.
    """
    return min((one for one in segments if one.state is OnlyCache), key=lambda one: one.sealed_ms, default=None)


def to_evict(segments: Iterable[S], used_bytes: int, threshold_bytes: int, target_bytes: int) -> list[S]:
    """The segments whose files leave the SSD now, the oldest first: none until `used_bytes` passes the threshold, then
    as many Cached ones as bring the use down to the target. One that is not Cached is never among them.

    Raises:
        ValueError: the target is above the threshold.
    """
    if target_bytes > threshold_bytes:
        raise ValueError(f"the target must not be above the threshold, {threshold_bytes} bytes, got {target_bytes}")
    if used_bytes <= threshold_bytes:
        return []
    chosen: list[S] = []
    for one in sorted((one for one in segments if one.state is Cached), key=lambda one: one.sealed_ms):
        if used_bytes <= target_bytes:
            break
        chosen.append(one)
        used_bytes -= one.size_bytes
    return chosen


def to_seal(segments: Iterable[S], used_bytes: int, threshold_bytes: int, target_bytes: int) -> list[S]:
    """The active segments to seal now, the largest first: none until `used_bytes` passes the threshold, then as many as
    bring the use down to the target, with what else will leave the SSD. Appends seal a segment, and where active ones
    fill the SSD, appends are refused."""
    if used_bytes <= threshold_bytes:
        return []
    on_ssd = [one for one in segments if one.state in ON_SSD]
    used_bytes -= sum(one.size_bytes for one in on_ssd if one.state is not Active)
    chosen: list[S] = []
    for one in sorted((one for one in on_ssd if one.state is Active), key=lambda one: -one.size_bytes):
        if used_bytes <= target_bytes or not one.size_bytes:
            break
        chosen.append(one)
        used_bytes -= one.size_bytes
    return chosen


def least_used(used_bytes: Sequence[int], is_online: Sequence[bool]) -> int | None:
    """The index of the online HDD with the fewest bytes, which takes the next log's copies; None if none is online."""
    return min((at for at, online in enumerate(is_online) if online), key=lambda at: used_bytes[at], default=None)


def admits(free_bytes: int, append_bytes: int, reserve_bytes: int) -> bool:
    """Whether the SSD takes an append. What it refuses, the client sends again later: the reserve is for checkpoints,
    indexes and the controller's changes, without which the broker would have to give up the device."""
    return free_bytes - append_bytes >= reserve_bytes


@dataclass(frozen=True, slots=True)
class CopyRate:
    """How fast sealed segments are copied, and how that changes.

    A fixed rate is one whose `least` and `most` are equal. An adaptive one goes on as TCP does: a step up while the
    produce latency is within its limit, half the rate when it is not. A full SSD stops producers altogether, so beyond
    `urgent_use` of the SSD the rate does not fall, and rises whatever the latency is.
    """

    rate: float
    least: float
    most: float
    produce_p99_limit_ms: float = float("inf")
    urgent_use: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.rate <= self.most:
            raise ValueError(f"expected 0 < least <= rate <= most, got {self.least}, {self.rate}, {self.most}")

    def after(self, produce_p99_ms: float, ssd_use: float) -> CopyRate:
        """The rate for the next interval; `ssd_use` is the used share of the SSD, 0 to 1."""
        if produce_p99_ms <= self.produce_p99_limit_ms or ssd_use >= self.urgent_use:
            changed = self.rate + max(self.most - self.least, 0.0) / _STEPS
        else:
            changed = self.rate / 2
        return replace(self, rate=min(max(changed, self.least), self.most))


_STEPS = 20
"""Intervals from the least rate to the most."""


@dataclass(frozen=True, slots=True)
class CopyBudget:
    """What a rate leaves for a copy now. A budget is earned for at most `burst_ms`: a copier that was idle does not
    make up for it."""

    at_ms: float
    bytes: float = 0.0
    burst_ms: float = 100.0

    def earned(self, now_ms: float, rate: float) -> CopyBudget:
        most = rate * self.burst_ms / 1000
        gained = rate * max(now_ms - self.at_ms, 0.0) / 1000
        return replace(self, at_ms=max(now_ms, self.at_ms), bytes=min(self.bytes + gained, most))

    def spent(self, copied_bytes: int) -> CopyBudget:
        """A copy of a piece may begin while the budget is not negative; it is charged afterwards."""
        return replace(self, bytes=self.bytes - copied_bytes)

    def wait_ms(self, rate: float) -> float:
        """How long until the next piece may be copied: 0 while something is left."""
        return 0.0 if self.bytes >= 0 else -self.bytes * 1000 / rate


FLUSH_SLICE_BYTES = 256 * 1024
"""What a flush by rate writes at a time: an HDD needs a seek for each, so smaller ones cost it more time."""
FLUSH_SPREAD_MS = 1000.0


def flush_slice_wait_ms(
    waiting_bytes: float, slice_bytes: float, logs: int, bytes_per_second: float, spread_ms: float = FLUSH_SPREAD_MS
) -> float:
    """How long after a slice of a device's logs the next one is written, if `waiting_bytes` of `logs` wait for it.

    What waits is spread over `spread_ms`, so that a device writes as steadily as its logs grow; logs are written one
    after the other, since going on in a file costs no seek. The rate of a log is an upper bound.
    """
    rate = min(waiting_bytes * 1000 / spread_ms, max(1, logs) * bytes_per_second)
    return slice_bytes * 1000 / rate if rate > 0 else spread_ms


class FlushReason(Enum):
    COUNT = "flush.messages"
    TIME = "flush.ms"
    RATE = "camerlengo.flush.bytes.per.second"


def flush_reason(
    records: int, size_bytes: int, since_ms: int, flush_messages: int, flush_ms: int, flush_bytes_per_second: int
) -> FlushReason | None:
    """Why a log is flushed now: it has so many unflushed records and bytes, and was last flushed that long ago.

    By count, a flush writes all that 50,000 records brought, in one burst near the device's bandwidth. By rate, it
    comes as soon as there is a second's worth of the rate, so each is small, and many logs' flushes spread themselves.
    """
    if not records:
        return None
    if records >= flush_messages:
        return FlushReason.COUNT
    if size_bytes >= flush_bytes_per_second:
        return FlushReason.RATE
    return FlushReason.TIME if since_ms >= flush_ms else None
