"""Limits on connections: how many there may be, and how fast they may come, by broker, listener and address.

As Kafka's ConnectionQuotas. A connection that comes too fast for its broker or listener waits, and so do those of the
listener behind it (KIP-612), for one second at most; so does one without a free place. The listener between brokers has
a place always, if it is not the only one, and its connection costs another listener's least used one its place
(KIP-402). An address with too many connections is refused. One that comes too fast is closed, after the time for which
Kafka would throttle it. Pure; times are given, in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.broker.quotas.rules import Rate, Window, throttle_ms

UNLIMITED = 2**31 - 1
IDLE_MS = 3_600_000
ADDRESSES_MAX = 10_000
"""Addresses whose rates are kept; see `clients.RATES_MAX`."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Numbers of connections, and connections a second. `protected`: the listener between brokers, if there are others,
    or None."""

    most: int = UNLIMITED
    most_of: Mapping[str, int] = field(default_factory=dict)
    per_ip: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    rate: int = UNLIMITED
    rate_of: Mapping[str, int] = field(default_factory=dict)
    protected: str | None = None
    window: Window = field(default_factory=Window)


class TooFast(Exception):
    """An address makes connections too fast: its connection is closed after `throttle_ms`."""

    def __init__(self, host: str, throttle_time_ms: int) -> None:
        super().__init__(f"connections of {host} come too fast")
        self.throttle_ms = throttle_time_ms


class TooMany(Exception):
    """An address has as many connections as it may have."""


class ConnectionQuotas:
    """Counts what is open. `ip_rates`: connections a second by address, None for all without their own."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.changed: Callable[[], None] = lambda: None
        """Called when there are other settings."""
        self.ip_rates: Mapping[str | None, int] = {}
        self.total = 0
        self._of_listener: dict[str, int] = {}
        self._of_ip: dict[str, int] = {}
        self._rate = Rate()
        self._rate_of: dict[str, Rate] = {}
        self._rate_of_ip: dict[str, tuple[Rate, int]] = {}  # and when it was used last; the oldest first

    def limit(self, settings: ConnectionSettings) -> None:
        """These count from now on."""
        if settings != self.settings:
            self.settings = settings
            self.changed()

    def wait_ms(self, listener: str, now_ms: int) -> int:
        """Count a connection that has come, and return how long it waits before it is accepted."""
        settings, longest = self.settings, 0
        if settings.rate < UNLIMITED and listener != settings.protected:
            longest = self._counted(self._rate, settings.rate, now_ms)
        if listener in settings.rate_of:
            rate = self._rate_of.setdefault(listener, Rate())
            longest = max(longest, self._counted(rate, settings.rate_of[listener], now_ms))
        return longest

    def has_place(self, listener: str) -> bool:
        if self._of_listener.get(listener, 0) >= self.settings.most_of.get(listener, UNLIMITED):
            return False
        return listener == self.settings.protected or self.total < self.settings.most

    def open(self, listener: str, host: str, now_ms: int) -> None:
        """Raises TooFast; TooMany. It is counted unless one of them is raised."""
        settings = self.settings
        self._check_rate(listener, host, now_ms)
        most = settings.per_ip_overrides.get(host, settings.per_ip)
        if self._of_ip.get(host, 0) >= most:
            raise TooMany(f"Rejected connection from {host}, address already has the configured maximum of {most}")
        self.total += 1
        self._of_listener[listener] = self._of_listener.get(listener, 0) + 1
        self._of_ip[host] = self._of_ip.get(host, 0) + 1

    def closed(self, listener: str, host: str) -> None:
        self.total -= 1
        for counts, key in ((self._of_listener, listener), (self._of_ip, host)):
            left = counts.pop(key) - 1
            if left:
                counts[key] = left

    @property
    def excess(self) -> int:
        """How many connections there are too many: one between brokers has come though every place was taken, or there
        were more places before."""
        return max(self.total - self.settings.most, 0)

    def _counted(self, rate: Rate, quota: int, now_ms: int) -> int:
        window = self.settings.window
        rate.record(1.0, window, now_ms)
        return min(throttle_ms(rate.measure(window, now_ms), quota), window.sample_ms)

    def _check_rate(self, listener: str, host: str, now_ms: int) -> None:
        quota = self.ip_rates.get(host, self.ip_rates.get(None, UNLIMITED))
        if quota >= UNLIMITED:
            return
        rates, settings = self._rate_of_ip, self.settings
        rate = rates.pop(host, (Rate(), 0))[0]
        while rates and (len(rates) >= ADDRESSES_MAX or now_ms - next(iter(rates.values()))[1] > IDLE_MS):
            del rates[next(iter(rates))]
        rates[host] = rate, now_ms
        time_ms = self._counted(rate, quota, now_ms)
        if not time_ms:
            return
        taken_back = [rate]
        if settings.rate < UNLIMITED and listener != settings.protected:
            taken_back.append(self._rate)
        if listener in self._rate_of:
            taken_back.append(self._rate_of[listener])
        for one in taken_back:  # it is not accepted
            one.record(-1.0, settings.window, now_ms)
        raise TooFast(host, time_ms)
