"""For how long a run's machine stood still, and whether that was more than its sessions can bear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.trace import StoodStill
from controller.trace_records import TraceRecord

BEARABLE_SHARE = 1 / 3
"""Of the session timeout. A client pings after a third, and a controller's lease ends two thirds after the ping that
was acknowledged last: a machine that stands still for the third between may cost a term, for longer a session."""


@dataclass(frozen=True, slots=True)
class HostStall:
    from_ms: float
    to_ms: float

    @property
    def duration_ms(self) -> float:
        return self.to_ms - self.from_ms


def host_stalls_of(records: Sequence[TraceRecord]) -> tuple[HostStall, ...]:
    """In the order of the records. A simulated run has none."""
    return tuple(
        HostStall(record.at_ms - record.event.duration_ms, record.at_ms)
        for record in records
        if isinstance(record.event, StoodStill)
    )


def host_stalls_text(standstills: Sequence[HostStall], session_timeout_ms: float) -> str:
    """What a reader of the verdict should know, or nothing where sessions could bear it all."""
    bearable_ms = BEARABLE_SHARE * session_timeout_ms
    long = [each for each in standstills if each.duration_ms > bearable_ms]
    if not long:
        return ""
    longest = max(long, key=lambda each: each.duration_ms)
    times = "once" if len(long) == 1 else f"{len(long)} times"
    return (
        f"this machine was stalled for more than {bearable_ms:.0f} ms, a third of the session timeout, {times}:"
        f" the longest for {longest.duration_ms:.0f} ms from {longest.from_ms:.0f} ms on. Sessions may expire and"
        f" controllers change because of that, without an injected fault"
    )
