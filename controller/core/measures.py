"""Event counts and durations, as in Kafka's meters, histograms and timers.

Values are updated in constant time and sorted only when they are read. One thread updates, any may read: a list is
copied as a whole. A value that has not been updated for a while is not reported any more (KAFKA-10189: the 99th
percentile of a busy hour was reported without end).
"""

from __future__ import annotations

from collections.abc import Mapping

SAMPLES = 1_028
"""As many as Kafka's histograms keep."""
IDLE_MS = 300_000.0
"""controller.event.queue's histogram idle time-out in Kafka."""
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class Histogram:
    """The latest `SAMPLES` values, and how many there ever were."""

    __slots__ = ("_updated_ms", "_values", "count", "idle_ms", "total")

    def __init__(self, idle_ms: float = IDLE_MS) -> None:
        self.count = 0
        self.total = 0.0
        self.idle_ms = idle_ms
        self._values: list[float] = []
        self._updated_ms = 0.0

    def update(self, value: float, now_ms: float) -> None:
        if now_ms - self._updated_ms > self.idle_ms:
            self._values = []
        self._updated_ms = now_ms
        if len(self._values) < SAMPLES:
            self._values.append(value)
        else:
            self._values[self.count % SAMPLES] = value
        self.count += 1
        self.total += value

    def quantiles(self, now_ms: float) -> Mapping[float, float]:
        """Return the quantiles; all are 0 before the first value, or when the last one is too old."""
        values = sorted(self._values) if now_ms - self._updated_ms <= self.idle_ms else []
        if not values:
            return dict.fromkeys(QUANTILES, 0.0)
        return {one: values[min(len(values) - 1, int(one * len(values)))] for one in QUANTILES}
