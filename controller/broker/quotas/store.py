"""Quotas in ZooKeeper, in Kafka's form, and the requests that set and describe them (KIP-546).

/config/users/USER, /config/users/USER/clients/ID and /config/clients/ID are configs with a text for each quota, the
names percent-encoded, `<default>` for the default; /config/ips/IP has that of an address (KIP-612).
`EntityConfigReader` follows them. What can't be read stays as it was known.
"""

from __future__ import annotations

import ipaddress
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from math import isfinite
from typing import Any

from controller.broker.entity_configs import CLIENT_ID, IP, USER, EntityConfigs, entity_of, entity_paths, read_entities
from controller.broker.quotas.clients import ClientQuotas, QuotaType
from controller.broker.quotas.connections import ConnectionQuotas, ConnectionSettings
from controller.broker.quotas.quota_settings import altered_limits
from controller.broker.quotas.rules import DEFAULT, Entity, plain, sanitised
from controller.broker.request_context import SLICE, Steps, on_broker_thread
from controller.broker.settings import INT_MAX, LONG_MAX
from controller.clock import Clock, spawn
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.security import (
    ANY_NAME,
    DEFAULT_NAME,
    EXACT_NAME,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaFilterComponent,
    QuotaOperation,
    QuotaValue,
)
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import Znode, ZooKeeperError

IP_RATE = "connection_creation_rate"
ENTRIES_MAX = 1_000
"""Entities that one request may change."""
NAMED_MAX = 8 * ENTRIES_MAX
"""Entities, their parts and their quotas together."""

_WHOLE_MOST: Mapping[str, int] = {QuotaType.PRODUCE.value: LONG_MAX, QuotaType.FETCH.value: LONG_MAX, IP_RATE: INT_MAX}
"""Quotas that are whole numbers, and the largest that each may be; the others are not."""
_OF_CLIENTS = frozenset(kind.value for kind in QuotaType)


class QuotaRefused(Exception):
    """What was wrong with a request; INVALID_REQUEST unless another error is said."""

    def __init__(self, message: str, error: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.error = error


def value_text(key: str, value: float) -> str:
    """Return the value as a config has it. Raises QuotaRefused."""
    if not isfinite(value) or value < 0.0:
        raise QuotaRefused(f"Configuration {key}={value}: expected a number, 0 or more")
    most = _WHOLE_MOST.get(key)
    if most is None:
        return repr(value)
    whole = int(value + 1e-6)
    if abs(whole - value) > 1e-6 or whole > most:
        kind = "LONG" if most == LONG_MAX else "INT"
        raise QuotaRefused(f"Configuration {key} must be a {kind} value")
    return str(whole)


def entity_path(parts: Iterable[QuotaEntityPart]) -> str:
    """Return where an entity's config is below /config. Raises QuotaRefused."""
    named: dict[str, str] = {}
    for part in parts:
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise QuotaRefused(f"Unhandled client quota entity type: {part.entity_type:.100}")
        if part.entity_name in ("", ".", ".."):
            raise QuotaRefused(f"{part.entity_name or 'Empty'} {part.entity_type} not supported")
        named[part.entity_type] = DEFAULT if part.entity_name is None else sanitised(part.entity_name)
    user, client_id, ip = named.get(USER), named.get(CLIENT_ID), named.get(IP)
    if not named:
        raise QuotaRefused("Invalid empty client quota entity")
    if ip is not None and len(named) > 1:
        raise QuotaRefused("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
    if ip is not None:
        if ip != DEFAULT and not is_address(plain(ip) or ""):
            raise QuotaRefused(f"{plain(ip):.100} is not a valid IP; expected an IPv4 or IPv6 address")
        return f"ips/{ip}"
    if user is None:
        return f"clients/{client_id}"
    return f"users/{user}" if client_id is None else f"users/{user}/clients/{client_id}"


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def key_of(path: str) -> Entity | None:
    """Return the entity, as the rules have it, that a path below /config names; None for an address or nothing."""
    match path.split("/"):
        case ["users", user]:
            return user, None
        case ["clients", client_id]:
            return None, client_id
        case ["users", user, "clients", client_id]:
            return user, client_id
    return None


class QuotaFilter:
    """What DescribeClientQuotas asks for. Raises QuotaRefused."""

    def __init__(self, components: Iterable[QuotaFilterComponent], *, strict: bool) -> None:
        self._strict = strict
        self._wanted: dict[str, QuotaFilterComponent] = {}
        for one in components:
            kind = one.entity_type
            if not kind:
                raise QuotaRefused("Unexpected empty filter component entity type")
            if kind not in (USER, CLIENT_ID, IP):
                raise QuotaRefused(f"Custom entity type '{kind:.100}' not supported", ErrorCode.UNSUPPORTED_VERSION)
            if kind in self._wanted:
                raise QuotaRefused(f"Duplicate {kind} filter component entity type")
            if one.match_type not in (EXACT_NAME, DEFAULT_NAME, ANY_NAME):
                raise QuotaRefused(f"Unexpected match type: {one.match_type}")
            if one.match_type == EXACT_NAME and one.match is None:
                raise QuotaRefused(f"{kind} filter component without a name")
            self._wanted[kind] = one
        if IP in self._wanted and len(self._wanted) > 1:
            raise QuotaRefused(
                "Invalid entity filter component combination, IP filter component should not be used with user or"
                " clientId filter component."
            )

    def exact(self, kind: str) -> str | None:
        """The only znode that can match, of those of a type; None: any."""
        one = self._wanted.get(kind)
        if one is None or one.match_type == ANY_NAME:
            return None
        return DEFAULT if one.match_type == DEFAULT_NAME else sanitised(one.match or "")

    def matches(self, entity: Mapping[str, str | None]) -> bool:
        if (IP in entity and (USER in self._wanted or CLIENT_ID in self._wanted)) or (
            IP not in entity and IP in self._wanted
        ):
            return False
        if self._strict and entity.keys() - self._wanted.keys():
            return False
        for kind, one in self._wanted.items():
            if kind not in entity:
                return False
            wanted = None if one.match_type == DEFAULT_NAME else one.match
            if one.match_type != ANY_NAME and entity[kind] != wanted:
                return False
        return True


class QuotaStore:
    """Keeps `quotas` as ZooKeeper has them, and the rates of addresses where the host limits connections. All of it is
    called on the broker's thread."""

    def __init__(self, quotas: ClientQuotas, client: ZooKeeperClient, clock: Clock, trace: Trace) -> None:
        self._quotas = quotas
        self._client = client
        self._writes = BrokerDataWrites(client)
        self._clock = clock
        self._trace = trace
        self._configs: dict[str, Mapping[str, str]] = {}
        """By the path below /config; those with quotas alone."""
        self._connections: ConnectionQuotas | None = None
        self._static_limits = ConnectionSettings()

    @property
    def handlers(self) -> Mapping[ApiKey, Callable[[Any, int, Callable[[Any], None]], Steps | None]]:
        return {ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe, ApiKey.ALTER_CLIENT_QUOTAS: self.alter}

    def limit(self, connections: ConnectionQuotas) -> None:
        """Give the rates of addresses, and limits that are altered, to what limits the host's connections."""
        self._connections, self._static_limits = connections, connections.settings

    def alter_limits(self, broker: Mapping[str, str], default: Mapping[str, str]) -> None:
        """These are the dynamic configs of this broker and of all brokers now."""
        if self._connections is not None:
            limits, problems = altered_limits(self._static_limits, default, broker)
            for problem in problems:
                self._note("warning", f"dynamic configs of brokers: passed over: {problem:.300}")
            self._connections.limit(limits)

    # -- what is in ZooKeeper

    def take(self, configs: EntityConfigs, *, whole: bool) -> None:
        """As `EntityConfigReader` has read them."""
        if whole:
            self._configs = {path: known for path, known in self._configs.items() if path in configs}
        for path, config in configs.items():
            if config is not None:
                self._take(path, config)
        self._apply()

    def _take(self, path: str, config: Mapping[str, str]) -> None:
        kept: dict[str, str] = {}
        for name, text in config.items():
            if name in _OF_CLIENTS or name == IP_RATE:
                if _number(text) is None:
                    self._note("warning", f"config of {path:.200}: passed over: {name}={text:.100}: expected a number")
                else:
                    kept[name] = text
        if kept:
            self._configs[path] = kept
        else:
            self._configs.pop(path, None)

    def _apply(self) -> None:
        quotas: dict[QuotaType, dict[Entity, float]] = {kind: {} for kind in QuotaType}
        ip_rates: dict[str | None, int] = {}
        for path, config in self._configs.items():
            key, entity = key_of(path), entity_of(path)
            for name, text in config.items():
                value = _number(text)
                if value is None:
                    continue
                if key is not None and name in _OF_CLIENTS:
                    quotas[QuotaType(name)][key] = value
                elif entity is not None and IP in entity and name == IP_RATE:
                    ip_rates[entity[IP]] = int(value)
        self._quotas.set_quotas(quotas)
        if self._connections is not None:
            self._connections.ip_rates = ip_rates

    # -- requests

    def alter(
        self, request: AlterClientQuotasRequest, version: int, answer: Callable[[AlterClientQuotasResponse], None]
    ) -> Steps:
        entries = request.entries
        results: list[AlteredQuotas] = []
        named = len(entries) + sum(len(one.ops) + len(one.entity) for one in entries[:ENTRIES_MAX])
        if len(entries) > ENTRIES_MAX or named > NAMED_MAX:
            why = f"{len(entries)} entities: expected at most {ENTRIES_MAX}, with few quotas each"
            for at, entry in enumerate(entries, 1):
                results.append(AlteredQuotas(ErrorCode.INVALID_REQUEST, why, entry.entity))
                if at % SLICE == 0:
                    yield None
            answer(AlterClientQuotasResponse(tuple(results)))
            return

        async def write() -> None:
            for entry in entries:
                results.append(await self._altered(entry, validate_only=request.validate_only))

        self._then(write(), lambda _failed: answer(AlterClientQuotasResponse(tuple(results))))

    async def _altered(self, entry: QuotaAlteration, *, validate_only: bool) -> AlteredQuotas:
        try:
            name = entity_path(entry.entity)
            change = _change_of(entry.ops, _OF_CLIENTS if not name.startswith("ips/") else frozenset([IP_RATE]))
            if not validate_only:
                path = f"{paths.CONFIG}/{name}"
                parents = [parent for parent in _parents(path) if parent != paths.CONFIG]
                await self._writes.ensure(parents)
                await self._writes.change_config(path, name, change)
        except QuotaRefused as refused:
            return AlteredQuotas(refused.error, str(refused), entry.entity)
        except ZooKeeperError as error:
            self._note("warning", f"a quota was not written: {error}")
            return AlteredQuotas(ErrorCode.UNKNOWN_SERVER_ERROR, "the quota was not written", entry.entity)
        return AlteredQuotas(ErrorCode.NONE, None, entry.entity)

    def describe(
        self, request: DescribeClientQuotasRequest, version: int, answer: Callable[[DescribeClientQuotasResponse], None]
    ) -> None:
        try:
            wanted = QuotaFilter(request.components, strict=request.strict)
        except QuotaRefused as refused:
            answer(DescribeClientQuotasResponse(refused.error, str(refused)))
            return
        found: list[DescribedQuotas] = []

        async def read() -> None:
            names = await entity_paths(self._client, wanted.exact(USER), wanted.exact(CLIENT_ID))
            names = [name for name in names if wanted.matches(entity_of(name) or {})]
            for name, row in (await read_entities(self._client, names)).items():
                values = _described(row, _OF_CLIENTS if not name.startswith("ips/") else frozenset([IP_RATE]))
                entity = tuple(QuotaEntityPart(kind, part) for kind, part in (entity_of(name) or {}).items())
                if values:
                    found.append(DescribedQuotas(entity, values))

        def respond(failed: bool) -> None:
            if failed:
                answer(DescribeClientQuotasResponse(ErrorCode.UNKNOWN_SERVER_ERROR, "the quotas were not read"))
            else:
                answer(DescribeClientQuotasResponse(ErrorCode.NONE, None, tuple(found)))

        self._then(read(), respond)

    def _then(self, work: Coroutine[Any, Any, None], respond: Callable[[bool], None]) -> None:
        """`respond`: called with whether the work failed."""
        done = spawn(work)

        def finished() -> None:
            if done.error is not None:
                known = isinstance(done.error, ZooKeeperError)
                text = str(done.error) if known else "".join(traceback.format_exception(done.error)).rstrip()
                self._note("warning" if known else "error", f"a request about quotas failed: {text}")
            respond(done.error is not None)

        on_broker_thread(done, self._clock, finished)

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def _change_of(
    operations: Iterable[QuotaOperation], keys: Collection[str]
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """What the operations do to a config. Raises QuotaRefused."""
    wanted: list[tuple[str, str | None]] = []
    for one in operations:
        if not one.remove and one.key not in keys:
            raise QuotaRefused(f"Invalid configuration key {one.key:.100}")
        wanted.append((one.key, None if one.remove else value_text(one.key, one.value)))

    def change(config: Mapping[str, str]) -> Mapping[str, str]:
        result = dict(config)
        for key, text in wanted:
            if text is not None:
                result[key] = text
            elif key in keys:
                result.pop(key, None)
        return result

    return change


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


def _described(row: Znode | None, keys: Collection[str]) -> tuple[QuotaValue, ...]:
    """Raises DamagedZnode."""
    config = {} if row is None else decode_config(row.path, row.data).config
    values = ((name, _number(text)) for name, text in sorted(config.items()) if name in keys)
    return tuple(QuotaValue(name, value) for name, value in values if value is not None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0.0 else None
