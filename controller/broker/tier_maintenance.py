"""Moves the data of a broker's logs between tiers: copies sealed segments to HDDs, evicts the oldest from full SSDs.

One piece of one copy is under way at a time, on the device of the HDD, so that a broker's copies together keep to one
rate. The rules are those of `statemachines.tier_placement`; all decisions are made in the clock's callbacks, on the
broker's thread, and only calls on files run elsewhere.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from controller.broker.log_manager import LogManager
from controller.broker.request_context import Drive, Job, Steps, Yielded
from controller.broker.tier_settings import TierSettings
from controller.clock import Clock, Timer
from controller.storage import DeviceUnavailable, LogDirectory, LogOffline, OutOfResources, StorageError
from controller.storage.disk import Device
from controller.storage.segment import Segment
from controller.storage.tiered_log import PIECE_BYTES, TieredLog, TierSteps, copying
from controller.trace import Noted, Trace
from statemachines.log_segment import SegmentState
from statemachines.tier_placement import CopyBudget, CopyRate, next_to_copy, to_evict, to_seal

AGAIN_MS = 1_000.0
"""How long nothing is copied after a copy failed."""
LEAST_WAIT_MS = 1.0
"""Less than that may be less than a clock can tell apart, and the copy would wait again and again."""


class TierCounts:
    """Since the start."""

    def __init__(self) -> None:
        self.copied_bytes = 0
        self.copied_segments = 0
        self.cancelled_copies = 0
        self.failed_copies = 0
        self.evicted_bytes = 0
        self.evicted_segments = 0


class TierMaintenance:
    """`drive` runs jobs. `produce_p99_ms` returns the recent 99th percentile of the produce latency, for a copy rate
    that follows it. Without log directories on SSDs, `start` does nothing."""

    def __init__(self, settings: TierSettings, logs: LogManager, clock: Clock, trace: Trace, drive: Drive) -> None:
        self._settings = settings
        self._logs = logs
        self._clock = clock
        self._trace = trace
        self._drive = drive
        self._timers: dict[str, Timer] = {}
        self._closed = False
        self._looking: set[str] = set()
        self._used: dict[str, float] = {}
        """By log directory on an SSD: the share of it that is used."""
        self._copy: TierSteps | None = None
        self._segment: Segment | None = None
        self._paused_until_ms = 0.0
        self.produce_p99_ms: Callable[[], float] = lambda: 0.0
        self.rate: CopyRate = settings.first_rate()
        self.budget = CopyBudget(clock.now_ms())
        self.counts = TierCounts()
        self.states: Counter[SegmentState] = Counter()
        """Segments by state, as of the last look."""

    def start(self) -> None:
        """May be called on any thread."""
        if self._settings.tiers:
            self._timers["tick"] = self._clock.call_later(self._settings.interval_ms, self._tick)

    def stop(self) -> None:
        """Nothing is begun any more; a copy under way is given up. Safe to call twice."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    def _tick(self) -> None:
        if self._closed:
            return
        self._timers["tick"] = self._clock.call_later(self._settings.interval_ms, self._tick)
        self.states = Counter(
            segment.state for directory in self._logs.ssd_directories() for _, segment in _segments(directory)
        )
        used = max((self._used.get(one.path, 0.0) for one in self._logs.ssd_directories()), default=0.0)
        self.rate = self.rate.after(self.produce_p99_ms(), used)
        for directory in self._logs.ssd_directories():
            if directory.path not in self._looking:
                self._looking.add(directory.path)
                self._drive(self._look(directory))

    def _look(self, directory: LogDirectory) -> Steps:
        """Evict, and copy, once the devices answer: what is done to files there is done on the broker's thread."""
        directory.answers = False
        try:
            directory.answers = yield from self._answers(directory.ask, directory.device)
            for store in directory.stores if directory.answers else ():
                store.answers = yield from self._answers(partial(store.raw.ask, store.device), store.device)
            if directory.answers and directory.health.cause is None and not self._closed:
                self._used[directory.path] = self._look_after(directory)
        except (LogOffline, OutOfResources) as error:
            self._note("warning", f"log directory {directory.path}: nothing is evicted: {error}")
        finally:
            self._looking.discard(directory.path)
        self._begin_copy()

    @staticmethod
    def _answers(ask: Callable[[], None], device: Device) -> Generator[Yielded, Any, bool]:
        try:
            yield Job(ask, device, what=f"a look whether {device} answers")
        except DeviceUnavailable:
            return False
        return True

    # Eviction

    def _look_after(self, directory: LogDirectory) -> float:
        """Evict what the threshold asks for. Returns the used share of the SSD."""
        space = directory.measure_ssd(self._settings.ssd_bytes, self._settings.full_percent)
        if not space.capacity_bytes:
            return 0.0
        threshold = space.capacity_bytes * self._settings.evict_above_percent // 100
        target = space.capacity_bytes * self._settings.evict_to_percent // 100
        found = [one for one in directory.tiered_segments() if _may_move(one[0])]
        owners = {id(segment): log for log, segment in found}
        segments = [segment for _, segment in found]
        # What was refused counts as used: it may be more than there is between the threshold and a full SSD.
        wanted = space.wanted()
        for segment in to_evict(segments, space.used_bytes + wanted, threshold, target):
            if owners[id(segment)].evict(segment):
                space.used_bytes -= segment.size_bytes
                self.counts.evicted_bytes += segment.size_bytes
                self.counts.evicted_segments += 1
        for segment in to_seal(segments, space.used_bytes + wanted, threshold, target):
            owners[id(segment)].roll()
        return space.used_bytes / space.capacity_bytes

    # Copies

    def _begin_copy(self) -> None:
        if self._copy is not None or self._closed or self._clock.now_ms() < self._paused_until_ms:
            return
        waiting = {
            id(segment): (log, segment)
            for directory in self._logs.ssd_directories()
            if directory.answers and any(store.is_online for store in directory.stores)
            for log, segment in _segments(directory)
            if _may_move(log)
        }
        chosen = next_to_copy(segment for _, segment in waiting.values())
        if chosen is None:
            return
        self._copy, self._segment = copying(waiting[id(chosen)][0], chosen), chosen
        self._go_on(lambda copy: copy.send(None))

    def _go_on(self, resume: Callable[[TierSteps], Callable[[], Any]]) -> None:
        copy, segment = self._copy, self._segment
        if copy is None or segment is None:
            return  # stopped
        try:
            call = resume(copy)
        except StopIteration as end:
            self._ended(segment, is_copied=bool(end.value))
        except StorageError as error:
            self._failed(f"a copy to an HDD failed: {error}")
        except Exception:  # noqa: BLE001 - logged with its place; copies go on with the next
            self._failed(f"a copy to an HDD failed\n{traceback.format_exc()}")
        else:
            self._pace(call, segment)

    def _pace(self, call: Callable[[], Any], segment: Segment) -> None:
        """Have the call run once the rate allows it."""
        self.budget = self.budget.earned(self._clock.now_ms(), self.rate.rate)
        wait_ms = self.budget.wait_ms(self.rate.rate)
        if wait_ms > 0:
            # No longer than an interval: the rate may be another then.
            wait_ms = min(max(wait_ms, LEAST_WAIT_MS), self._settings.interval_ms)
            self._timers["piece"] = self._clock.call_later(wait_ms, lambda: self._pace(call, segment))
        elif not self._closed:
            self._drive(self._run(call, segment))

    def _run(self, call: Callable[[], Any], segment: Segment) -> Steps:
        store = segment.store
        if store is None:
            self._go_on(lambda copy: copy.send(None))  # it finds out
            return
        what = f"a copy to {store.path}"
        try:
            # In order: what a job without an answer still writes must not come into the next copy of the segment.
            result = yield Job(call, store.device, order=what, size_bytes=PIECE_BYTES, what=what)
        except Exception as error:  # noqa: BLE001 - the copy decides what it means
            failure = error
            self._go_on(lambda copy: copy.throw(failure))
            return
        if isinstance(result, int):
            self.budget = self.budget.spent(result)
            self.counts.copied_bytes += result
        self._go_on(lambda copy: copy.send(result))

    def _ended(self, segment: Segment, *, is_copied: bool) -> None:
        self._copy = self._segment = None
        if is_copied:
            self.counts.copied_segments += 1
        else:
            self.counts.cancelled_copies += 1
        if not self._closed:
            self._timers["next"] = self._clock.call_later(0.0 if is_copied else 1.0, self._begin_copy)

    def _failed(self, why: str) -> None:
        self._copy = self._segment = None
        self.counts.failed_copies += 1
        self._paused_until_ms = self._clock.now_ms() + AGAIN_MS
        self._note("warning", why)

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def _may_move(log: TieredLog) -> bool:
    return log.health.cause is None and not log.is_being_cleaned


def _segments(directory: LogDirectory) -> list[tuple[TieredLog, Segment]]:
    try:
        return directory.tiered_segments()
    except (LogOffline, OutOfResources):
        return []
