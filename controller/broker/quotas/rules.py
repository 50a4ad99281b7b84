"""The rules of quotas: rates over windows, throttle times, and which quota a client has. Pure; times are given.

A rate is Kafka's: the sum of `samples` samples of `sample_ms` each, over the time since the oldest one, and never over
less than the whole window without its present sample. A client that exceeds its quota is throttled for as long as it
takes until the same sum is within the quota (`throttle_ms`). Creations and deletions of partitions are counted in a
token bucket instead, which forgives a burst after the time that its tokens take (KIP-599).

Sources: Kafka 2.8's Rate, SampledStat, TokenBucket, QuotaUtils, and ClientQuotaManager.DefaultQuotaCallback.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import TypeAlias
from urllib.parse import quote, unquote

import msgspec

DEFAULT = "<default>"
"""Name of the entity that stands for all without one of their own. No sanitised name contains its characters."""
THROTTLE_MS_MAX = 2**31 - 1
"""What throttle_time_ms can hold."""

Entity: TypeAlias = tuple[str | None, str | None]
"""User and client id, sanitised; None: the quota does not depend on it."""
Tags: TypeAlias = tuple[str, str]
"""User and client id that share one rate, sanitised; empty: all of them do."""


def sanitised(name: str) -> str:
    """Return the name as Kafka's Sanitizer writes it: percent-encoded, so that it can be the name of a znode."""
    return quote(name, safe="").replace("*", "%2A").replace("~", "%7E")


def plain(name: str) -> str | None:
    """Return the name that was sanitised; None for the default."""
    return None if name == DEFAULT else unquote(name)


class Window(msgspec.Struct, frozen=True):
    """quota.window.num and quota.window.size.seconds."""

    samples: int = 11
    sample_ms: int = 1_000

    @property
    def whole_ms(self) -> int:
        """The window without its present sample, the shortest time that a rate is measured over."""
        return (self.samples - 1) * self.sample_ms


class Measure(msgspec.Struct, frozen=True):
    """A rate per second, and the time that it was measured over."""

    per_s: float
    over_ms: int


class Rate:
    """Samples in a ring, as in Kafka's SampledStat: one that has expired is emptied and begins anew when it is seen."""

    __slots__ = ("_current", "_starts_ms", "_sums")

    def __init__(self) -> None:
        self._starts_ms: list[int] = []
        self._sums: list[float] = []
        self._current = 0

    def record(self, value: float, window: Window, now_ms: int) -> None:
        if not self._starts_ms:
            self._begin(now_ms)
        elif now_ms - self._starts_ms[self._current] >= window.sample_ms:
            self._current = (self._current + 1) % window.samples
            self._begin(now_ms)
        self._sums[self._current] += value

    def measure(self, window: Window, now_ms: int) -> Measure:
        """The rate now. Samples that have expired are emptied."""
        expire_ms = window.samples * window.sample_ms
        for at, start_ms in enumerate(self._starts_ms):
            if now_ms - start_ms >= expire_ms:
                self._starts_ms[at], self._sums[at] = now_ms, 0.0
        if not self._starts_ms:
            self._begin(now_ms)
        elapsed_ms = now_ms - min(self._starts_ms)
        missing = window.samples - 1 - elapsed_ms // window.sample_ms
        over_ms = max(elapsed_ms + max(missing, 0) * window.sample_ms, 1)
        return Measure(sum(self._sums) * 1_000.0 / over_ms, over_ms)

    def _begin(self, now_ms: int) -> None:
        """The current sample begins now."""
        self._starts_ms[self._current : self._current + 1] = [now_ms]
        self._sums[self._current : self._current + 1] = [0.0]


def throttle_ms(measured: Measure, quota: float) -> int:
    """How long nothing may be added until the rate is within the quota, in ms; 0 if it is.

    With the rate O, the quota T and the time W that O was measured over, the delay X solves O * W / (W + X) = T. With a
    quota of 0 there is no such X, and the delay is W. Kafka's result overflows there, and nothing is throttled.
    """
    if measured.per_s <= quota:
        return 0
    if quota <= 0.0:
        return measured.over_ms
    return min(floor((measured.per_s - quota) / quota * measured.over_ms + 0.5), THROTTLE_MS_MAX)


class TokenBucket:
    """Tokens of a quota per second, as many as a whole window's at most. It is full at first. Below 0 it is
    exhausted."""

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._updated_ms = 0

    def tokens(self, quota: float, window: Window, now_ms: int) -> float:
        burst = window.samples * window.sample_ms / 1_000.0 * quota
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + quota * (now_ms - self._updated_ms) / 1_000.0)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, quota: float, window: Window, now_ms: int) -> None:
        self._tokens = self.tokens(quota, window, now_ms) - count


def refill_ms(tokens: float, quota: float, window: Window) -> int:
    """How long an exhausted bucket takes until it holds no less than 0 tokens; 0 if it does."""
    if tokens >= 0.0:
        return 0
    if quota <= 0.0:
        return window.whole_ms
    return min(floor(-tokens / quota * 1_000.0 + 0.5), THROTTLE_MS_MAX)


def quota_of(quotas: Mapping[Entity, float], user: str, client_id: str) -> tuple[Tags, float] | None:
    """Return the quota that a client has, and whose rate it limits. None: it has none.

    The first of these that is set holds: (user, client id), (user, default client), user, (default user, client id),
    (default user, default client), default user, client id, default client. A client without an id has only quotas of
    users, as Kafka's has."""
    both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
    levels: tuple[tuple[Entity, Tags], ...] = (
        ((user, client_id), both),
        ((user, DEFAULT), both),
        ((user, None), of_user),
        ((DEFAULT, client_id), both),
        ((DEFAULT, DEFAULT), both),
        ((DEFAULT, None), of_user),
        ((None, client_id), of_client),
        ((None, DEFAULT), of_client),
    )
    for entity, tags in levels:
        if entity in quotas and (client_id or entity[1] is None):
            return tags, quotas[entity]
    return None
