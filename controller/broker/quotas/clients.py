"""The quotas of clients at work: what each has used, and for how long it is throttled.

`ClientQuotas` has a manager for each kind of quota. A request that any of them may limit gets a `Charge`, which is
settled when its answer is sent: it records what the request used, and says for how long the client is throttled. The
answer carries that time and goes out at once (KIP-219); the host then reads no more of the connection until the time is
over. Only what has a quota is measured, so without quotas a request costs two comparisons.

All of it runs on the broker's thread. Rules: `rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

import msgspec

from controller.broker.metadata import MetadataSnapshot
from controller.broker.quotas.mutations import MutationQuota, limit_mutations
from controller.broker.quotas.quota_settings import NO_QUOTA, QuotaSettings
from controller.broker.quotas.rules import (
    THROTTLE_MS_MAX,
    Entity,
    Rate,
    Tags,
    TokenBucket,
    Window,
    quota_of,
    refill_ms,
    sanitised,
    throttle_ms,
)
from controller.broker.records.fetch_sessions import Asked, FetchContext, FetchParams, Key, LogReadResult, data_bytes
from controller.broker.request_context import RequestContext, Send, Steps
from controller.broker.security.principal import Requester
from controller.clock import Clock
from controller.protocol.codec import ApiKey, RequestHeader
from controller.protocol.fetch import FetchPartition, FetchResponse
from controller.protocol.schema import RequestValue

IDLE_MS = 3_600_000
"""How long a rate is kept that nothing is added to (Kafka's InactiveSensorExpirationTimeSeconds)."""
RATES_MAX = 10_000
"""Rates of one kind that are kept. Beyond, the one that was used longest ago is dropped, and begins anew: clients
choose their ids."""
_AVERAGE = Window(2, 30_000)
"""Of throttle times, as of Kafka's metrics that have no quota."""


class QuotaType(Enum):
    """Kinds of quotas, by the names of their configs."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"


EXEMPT = frozenset(
    [
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_ISR,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    ]
)
"""Requests of brokers, which are never throttled. Fetches of followers are not, either."""


class Meter:
    """What the clients of one pair of tags have used. `last_ms`: when that was changed last."""

    __slots__ = ("_throttles", "_throttles_ms", "last_ms", "rate", "tokens")

    def __init__(self) -> None:
        self.rate = Rate()
        self.tokens = TokenBucket()
        self._throttles_ms = Rate()
        self._throttles = Rate()
        self.last_ms = 0

    def throttled(self, time_ms: int, now_ms: int) -> None:
        self._throttles_ms.record(time_ms, _AVERAGE, now_ms)
        self._throttles.record(1, _AVERAGE, now_ms)

    def throttle_time_ms(self, now_ms: int) -> float:
        """The average over the last half minute to minute, of the times that were not 0."""
        count = self._throttles.measure(_AVERAGE, now_ms).per_s
        return self._throttles_ms.measure(_AVERAGE, now_ms).per_s / count if count else 0.0


class MeterShown(msgspec.Struct, frozen=True):
    tags: Tags
    per_s: float
    throttle_time_ms: float


class QuotaManager:
    """One kind of quota. `default`: what each client id has that has no other quota. `most_ms`: the longest throttle
    time."""

    def __init__(self, window: Window, default: float | None = None, most_ms: int = THROTTLE_MS_MAX) -> None:
        self.window = window
        self._default = default
        self._most_ms = most_ms
        self._quotas: Mapping[Entity, float] = {}
        self._found: dict[tuple[str, str], tuple[Tags, float] | None] = {}
        self._meters: dict[Tags, Meter] = {}  # the one that was used longest ago first
        self.enabled = default is not None
        """Whether anything has a quota of this kind."""

    def __len__(self) -> int:
        return len(self._meters)

    def set_quotas(self, quotas: Mapping[Entity, float]) -> None:
        """All that are set now."""
        self._quotas = quotas
        self._found.clear()
        self.enabled = bool(quotas) or self._default is not None
        if not self.enabled:
            self._meters.clear()

    def quota(self, user: str, client_id: str) -> tuple[Tags, float] | None:
        """As `quota_of`, of a client's names as they are."""
        key = (user, client_id)
        if key in self._found:
            return self._found[key]
        found = quota_of(self._quotas, sanitised(user), sanitised(client_id))
        if found is None and self._default is not None and client_id:
            found = ("", sanitised(client_id)), self._default
        if len(self._found) >= RATES_MAX:
            self._found.clear()
        self._found[key] = found
        return found

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Add to the client's rate, and return for how long it is throttled, in ms."""
        found = self.quota(user, client_id)
        if found is None:
            return 0
        meter = self._meter(found[0], now_ms)
        meter.rate.record(value, self.window, now_ms)
        return min(throttle_ms(meter.rate.measure(self.window, now_ms), found[1]), self._most_ms)

    def take_back(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """What was recorded is not sent."""
        found = self.quota(user, client_id)
        if found is not None:
            self._meter(found[0], now_ms).rate.record(-value, self.window, now_ms)

    def take(self, user: str, client_id: str, count: float, now_ms: int, *, strict: bool) -> int:
        """Take tokens, and return for how long the client is throttled, in ms. `strict`: nothing is taken from an
        exhausted bucket, and one that is not exhausted throttles no client, however much is taken."""
        found = self.quota(user, client_id)
        if found is None:
            return 0
        meter, quota = self._meter(found[0], now_ms), found[1]
        before_ms = refill_ms(meter.tokens.tokens(quota, self.window, now_ms), quota, self.window)
        if strict and before_ms:
            return before_ms
        meter.rate.record(count, self.window, now_ms)
        meter.tokens.take(count, quota, self.window, now_ms)
        return 0 if strict else refill_ms(meter.tokens.tokens(quota, self.window, now_ms), quota, self.window)

    def throttled(self, user: str, client_id: str, time_ms: int, now_ms: int) -> None:
        """The client is throttled for so long: for the metrics."""
        found = self.quota(user, client_id)
        if found is not None:
            self._meter(found[0], now_ms).throttled(time_ms, now_ms)

    def window_value(self, user: str, client_id: str) -> float | None:
        """The largest value that may be recorded without being throttled for it alone; None: any."""
        found = self.quota(user, client_id)
        return None if found is None else found[1] * self.window.whole_ms / 1_000.0

    def shown(self, now_ms: int, most: int) -> Iterator[MeterShown]:
        """The meters that were used last, at most so many, for the metrics."""
        for tags in list(self._meters)[-most:]:
            meter = self._meters[tags]
            measured = meter.rate.measure(self.window, now_ms).per_s
            yield MeterShown(tags, measured, meter.throttle_time_ms(now_ms))

    def _meter(self, tags: Tags, now_ms: int) -> Meter:
        meters = self._meters
        meter = meters.pop(tags, None)
        if meter is None:
            meter = Meter()
            while meters and (len(meters) >= RATES_MAX or now_ms - next(iter(meters.values())).last_ms > IDLE_MS):
                del meters[next(iter(meters))]
        meters[tags] = meter
        meter.last_ms = now_ms
        return meter


class ClientQuotas:
    """The managers of all kinds."""

    def __init__(self, settings: QuotaSettings, clock: Clock) -> None:
        self._clock = clock
        window = settings.window
        self.produce = QuotaManager(window, _default(settings.producer_default))
        self.fetch = QuotaManager(window, _default(settings.consumer_default))
        self.request = QuotaManager(window, most_ms=window.sample_ms)
        self.mutation = QuotaManager(settings.mutation_window)
        self.managers: Mapping[QuotaType, QuotaManager] = {
            QuotaType.PRODUCE: self.produce,
            QuotaType.FETCH: self.fetch,
            QuotaType.REQUEST: self.request,
            QuotaType.CONTROLLER_MUTATION: self.mutation,
        }
        self.active = self._any()
        """Whether anything has a quota at all."""

    def _any(self) -> bool:
        return any(manager.enabled for manager in self.managers.values())

    def set_quotas(self, quotas: Mapping[QuotaType, Mapping[Entity, float]]) -> None:
        for kind, manager in self.managers.items():
            manager.set_quotas(quotas.get(kind, {}))
        self.active = self._any()

    @property
    def now_ms(self) -> int:
        return int(self._clock.now_ms())

    def charge(self, client: Requester, header: RequestHeader, size_bytes: int) -> Charge | None:
        """What settles a request that begins to be handled; None if no quota concerns it."""
        key = header.api_key
        if key in EXEMPT:
            return None
        own = key in _IN_PLACE or (key in MUTATIONS and self.mutation.enabled)
        if not (own or self.request.enabled):
            return None
        return Charge(self, self._clock, client, header, size_bytes)


def _default(bytes_per_s: int) -> float | None:
    return None if bytes_per_s == NO_QUOTA else float(bytes_per_s)


_IN_PLACE = frozenset([ApiKey.PRODUCE, ApiKey.FETCH])
"""Requests that are answered on the broker's thread always."""
MUTATIONS: Mapping[ApiKey, int] = {ApiKey.CREATE_TOPICS: 6, ApiKey.CREATE_PARTITIONS: 3, ApiKey.DELETE_TOPICS: 5}
"""Requests that controller_mutation_rate limits, with the version from which on they know THROTTLING_QUOTA_EXCEEDED."""


class Charge:
    """One request of a client. As `RequestContext.settle` it calls `send` with the throttle time, once it is known."""

    def __init__(
        self, quotas: ClientQuotas, clock: Clock, client: Requester, header: RequestHeader, size_bytes: int
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._user = client.principal.name
        self._client_id = header.client_id or ""
        self._size_bytes = size_bytes
        self.key = header.api_key
        self.version = header.api_version
        self._begun_ms = clock.now_ms()
        self._spent_ms: float | None = None
        self._fetched_ms: int | None = None
        self.exempt = False
        """A follower's fetch."""
        self.acks_none = False
        """It has no response, and its time is not counted."""
        self.mutation: MutationQuota | None = None

    # -- the time that it takes on the broker's thread

    def handled(self) -> None:
        """The handler's first slice has ended."""
        self._spent_ms = self._clock.now_ms() - self._begun_ms

    def timed(self, steps: Steps) -> Steps:
        """The steps, with their time counted."""
        result: Any = None
        failure: Exception | None = None
        while True:
            begun_ms = self._clock.now_ms()
            try:
                yielded = steps.send(result) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            finally:
                self._spent_ms = (self._spent_ms or 0.0) + self._clock.now_ms() - begun_ms
            result, failure = None, None
            try:
                result = yield yielded
            except Exception as error:  # noqa: BLE001 - a job's, handed to the steps that asked for it
                failure = error

    def _percent(self) -> float:
        """The time so far, as Kafka records it: a second of it is 100."""
        spent_ms = self._clock.now_ms() - self._begun_ms if self._spent_ms is None else self._spent_ms
        return spent_ms / 10.0

    # -- the answer

    def __call__(self, send: Send) -> None:
        if self.exempt:
            send(0)
        elif self.key in _IN_PLACE:
            send(self._settled())
        else:  # its answer may come from the controller's thread
            self._clock.call_later(0.0, lambda: send(self._settled()))

    def _settled(self) -> int:
        if self._fetched_ms is not None:
            return self._fetched_ms
        used: list[tuple[QuotaManager, int]] = []
        now_ms, quotas = self._quotas.now_ms, self._quotas
        if self.key is ApiKey.PRODUCE and quotas.produce.enabled:
            time_ms = quotas.produce.record(self._user, self._client_id, self._size_bytes, now_ms)
            used.append((quotas.produce, time_ms))
        if self.mutation is not None:
            used.append((quotas.mutation, self.mutation.throttle_ms(now_ms)))
        return self._throttled(used, now_ms)

    def _throttled(self, used: list[tuple[QuotaManager, int]], now_ms: int) -> int:
        """The longest of the throttle times, with that of the request's own time."""
        quotas = self._quotas
        if quotas.request.enabled and not self.acks_none:
            time_ms = quotas.request.record(self._user, self._client_id, self._percent(), now_ms)
            used.insert(0, (quotas.request, time_ms))
        if not used:
            return 0
        manager, time_ms = max(used, key=lambda one: one[1])
        if time_ms:
            manager.throttled(self._user, self._client_id, time_ms, now_ms)
        return time_ms

    # -- fetches, which are answered with nothing if they are throttled

    def most_bytes(self) -> int | None:
        """The most that a consumer may be given at once; None: any."""
        fetch = self._quotas.fetch
        value = fetch.window_value(self._user, self._client_id) if fetch.enabled else None
        return None if value is None else int(min(value, THROTTLE_MS_MAX))

    def fetched(self, size_bytes: int) -> int:
        """That many bytes were read for a consumer: for how long it is throttled, in ms. If it is, they are not sent,
        and don't count."""
        now_ms, quotas = self._quotas.now_ms, self._quotas
        used: list[tuple[QuotaManager, int]] = []
        if quotas.fetch.enabled:
            used.append((quotas.fetch, quotas.fetch.record(self._user, self._client_id, size_bytes, now_ms)))
        time_ms = self._fetched_ms = self._throttled(used, now_ms)
        if time_ms and quotas.fetch.enabled:
            quotas.fetch.take_back(self._user, self._client_id, size_bytes, now_ms)
        return time_ms

    # -- creations and deletions of partitions

    def limited(self, exchange: RequestContext, value: RequestValue, snapshot: MetadataSnapshot, default: int) -> Any:
        """What of the request its client may do now; None if all of it has been answered. `default`: num.partitions."""
        if self.key not in MUTATIONS or not self._quotas.mutation.enabled:
            return value
        strict = self.version >= MUTATIONS[self.key]
        take = partial(self._quotas.mutation.take, self._user, self._client_id, strict=strict)
        self.mutation = MutationQuota(take, self._quotas.now_ms, strict=strict)
        return limit_mutations(self.mutation, exchange, value, snapshot, default)


Readings: TypeAlias = Sequence[LogReadResult]


class ChargedFetch:
    """A consumer's fetch that a quota may limit: as its `context`, but that it is answered with nothing if it is
    throttled. What it would have been sent stays to be sent, and it makes no session."""

    __slots__ = ("_charge", "_context", "asks", "before", "found", "joined", "keys", "partitions", "read_again")

    def __init__(self, context: FetchContext, charge: Charge) -> None:
        self._context = context
        self._charge = charge
        self.asks: Callable[[FetchParams], None] = context.asks
        self.partitions: Callable[[], Sequence[Asked]] = context.partitions
        self.before: Callable[[], Sequence[LogReadResult | None]] = context.before
        self.found: Callable[[Readings], None] = context.found
        self.keys: Callable[[], Sequence[Key]] = context.keys
        self.joined: Callable[[], Sequence[tuple[FetchPartition, LogReadResult]]] = context.joined
        self.read_again: Callable[[Callable[[], Readings]], Readings] = context.read_again

    @property
    def is_empty(self) -> bool:
        return self._context.is_empty

    def response(self, readings: Readings) -> FetchResponse:
        if self._charge.fetched(sum(data_bytes(reading.data) for reading in readings)):
            return self._context.throttled()
        return self._context.response(readings)

    def throttled(self) -> FetchResponse:
        return self._context.throttled()
