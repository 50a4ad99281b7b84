"""How fast replicas that are not in sync catch up: leader.replication.throttled.rate for what leaves a broker,
follower.replication.throttled.rate for what comes to it, each for the replicas that their topics'
*.replication.throttled.replicas name.

Kafka's quota: bytes over eleven samples of a second. What is over it is held back, not refused: a follower's fetch
finds nothing of that partition, or does not ask for it. Followers in sync are never held back, or a producer would wait
for a move. Rules and a count; the clock is monotonic. Source: ReplicationQuotaManager of Kafka 2.8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from controller.clock import Clock
from controller.core.topic_settings import elements

SAMPLES = 11
"""replication.quota.window.num"""
SAMPLE_MS = 1_000.0
"""replication.quota.window.size.seconds"""
ALL = "*"


class Measured:
    """Bytes a second over the last samples, the present one as far as it has come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[int, int]] = deque()

    def add(self, size_bytes: int) -> None:
        now = int(self._clock.now_ms() // SAMPLE_MS)
        before = self._samples.pop()[1] if self._samples and self._samples[-1][0] == now else 0
        self._samples.append((now, before + size_bytes))

    def bytes_per_s(self) -> float:
        now_ms = self._clock.now_ms()
        oldest = int(now_ms // SAMPLE_MS) - SAMPLES + 1
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()
        window_ms = (SAMPLES - 1) * SAMPLE_MS + now_ms % SAMPLE_MS
        return sum(size for _, size in self._samples) * 1_000.0 / window_ms


class Quota:
    """`rate` returns the allowed bytes a second (None: no limit), `replicas` a topic's throttled replicas."""

    def __init__(
        self, broker_id: int, clock: Clock, rate: Callable[[], int | None], replicas: Callable[[str], str]
    ) -> None:
        self._broker_id = broker_id
        self._measured = Measured(clock)
        self.rate = rate
        self.replicas = replicas

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Whether there is nothing of this partition for now."""
        rate = self.rate()
        return rate is not None and self._names(topic, index) and self._measured.bytes_per_s() >= rate

    def count(self, topic: str, index: int, size_bytes: int) -> None:
        """Those in sync count too, as in Kafka: what is left is for the others."""
        if self.rate() is not None and self._names(topic, index):
            self._measured.add(size_bytes)

    def _names(self, topic: str, index: int) -> bool:
        """Whether the partition is throttled on this broker."""
        text = self.replicas(topic)
        return text.strip() == ALL or f"{index}:{self._broker_id}" in elements(text)


class ReplicationThrottle(Quota):
    """A leader's: of what it sends."""

    def holds_back(self, topic: str, index: int, replica: int, isr: Collection[int]) -> bool:
        """Whether that follower is given nothing of the partition for now."""
        return self.rate() is not None and replica not in isr and self.is_exceeded(topic, index)

    def sent(self, topic: str, index: int, size_bytes: int) -> None:
        self.count(topic, index, size_bytes)
