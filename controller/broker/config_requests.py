"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics, brokers and loggers.

Any broker answers for any topic, and each for itself and for the defaults of all brokers: a request about another
broker is refused, as in Kafka with ZooKeeper. A change is written to the config's znode with its notice; this broker
too applies it when it reads the notice. Changes are validated by the rules of Kafka 2.8's ZkAdminManager, except that
an invalid value is INVALID_CONFIG, as in later versions of Kafka, and not INVALID_REQUEST.

A described setting has its value, its source, and its synonyms in order of precedence, as from Kafka 2.8's
ConfigHelper, except that a topic's value which comes from another of the broker's names (log.retention.hours) is not
called a default. There is one logger, `root`: the level from which on the broker's log is written. A change of it lasts
until the process ends, as in Kafka.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from controller.broker.config_definitions import (
    ALTERNATIVES,
    BROKER_SETTINGS,
    BrokerSetting,
    dynamic_setting,
    setting_of_listener,
)
from controller.broker.error_responses import altered_resources, record_refusal
from controller.broker.metadata import MetadataCache
from controller.broker.quotas.quota_settings import CONNECTION_LIMITS, limits_fault
from controller.broker.replica_manager import ApiError
from controller.broker.request_context import on_broker_thread
from controller.broker.settings import BrokerSettings
from controller.broker.topic_configs import TopicConfigs
from controller.clock import Clock, Coro, Future, spawn
from controller.core.topic_settings import TOPIC_SETTINGS, TopicSetting, config_fault, elements, name_fault
from controller.protocol.admin import (
    CONFIG_TYPE_LIST,
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlteredResource,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ReplacedConfig,
)
from controller.protocol.client import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_BROKER_LOGGER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_STATIC_BROKER,
    CONFIG_SOURCE_TOPIC,
)
from controller.protocol.codec import encode_described_resource
from controller.protocol.errors import ErrorCode
from controller.protocol.primitives import written
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.operations import DamagedZnode, NoNode, Znode, ZooKeeperError

Config = Mapping[str, str]


def replaced(resource_type: int, configs: Sequence[ReplacedConfig]) -> Config:
    """AlterConfigs: these and no others. Refused."""
    without = [one.name for one in configs if one.value is None]
    if without:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without)}")
    config = {one.name: one.value for one in configs if one.value is not None}
    _check(resource_type, config)
    _check_limits(resource_type, config)
    return config


def check_operations(configs: Sequence[AlterableConfig]) -> None:
    """IncrementalAlterConfigs: what is wrong with it whatever the config is now. Refused."""
    twice = [name for name, count in Counter(one.name for one in configs).items() if count > 1]
    if twice:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {','.join(twice)}")
    without = [one.name for one in configs if one.value is None and one.config_operation != OPERATION_DELETE]
    if without:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without)}")


def changed(resource_type: int, config: Config, operations: Sequence[AlterableConfig]) -> Config:
    """IncrementalAlterConfigs: what `config` is with these operations. What they do not name stays, known here or not.
    Refused."""
    result = dict(config)
    for one in operations:
        if one.config_operation == OPERATION_DELETE:
            result.pop(one.name, None)
        elif one.config_operation == OPERATION_SET:
            result[one.name] = one.value or ""
        elif one.config_operation in (OPERATION_APPEND, OPERATION_SUBTRACT):
            result[one.name] = _list_changed(resource_type, result.get(one.name), one)
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported operation type {one.config_operation}")
    named = {one.name: result[one.name] for one in operations if one.name in result}
    _check(resource_type, named)
    if resource_type == RESOURCE_TOPIC:
        known = {name: text for name, text in result.items() if name in TOPIC_SETTINGS}
        if not any(TOPIC_SETTINGS[name].fault(text) for name, text in known.items()):
            _check(resource_type, known)  # what they come to together
    if any(name in CONNECTION_LIMITS for name in named):
        _check_limits(resource_type, result)
    return result


def _list_changed(resource_type: int, before: str | None, operation: AlterableConfig) -> str:
    setting = _setting(resource_type, operation.name)
    adds = operation.config_operation == OPERATION_APPEND
    if setting.kind != CONFIG_TYPE_LIST:
        verb = "append" if adds else "subtract"
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Config value {verb} is not allowed for config key: {operation.name}"
        )
    there, named = elements(setting.default if before is None else before), elements(operation.value or "")
    if adds:
        return ",".join(dict.fromkeys((*there, *named)))
    return ",".join(one for one in there if one not in named)


def _setting(resource_type: int, name: str) -> TopicSetting:
    """Refused if there is none of that name that can be altered."""
    if resource_type == RESOURCE_TOPIC:
        if name not in TOPIC_SETTINGS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        return TOPIC_SETTINGS[name]
    setting = dynamic_setting(name)
    if setting is None:
        known = "Cannot update this config dynamically" if name in BROKER_SETTINGS else "Unknown broker config name"
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{known}: {name}")
    return setting


def _check(resource_type: int, config: Config) -> None:
    for name, text in config.items():
        setting = _setting(resource_type, name)
        fault = setting.fault(text, name)
        if fault is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, fault)
    if resource_type == RESOURCE_TOPIC and (fault := config_fault(config)) is not None:
        raise ApiError(ErrorCode.INVALID_CONFIG, fault)


def _check_limits(resource_type: int, config: Config) -> None:
    """Of limits on connections that are sound each by itself."""
    limits = {name: text for name, text in config.items() if name in CONNECTION_LIMITS}
    sound = all(CONNECTION_LIMITS[name].fault(text) is None for name, text in limits.items())
    if resource_type == RESOURCE_BROKER and sound and (fault := limits_fault(limits)) is not None:
        raise ApiError(ErrorCode.INVALID_CONFIG, fault)


def topic_shown(configs: TopicConfigs, settings: BrokerSettings, config: Config) -> tuple[DescribedConfig, ...]:
    """All settings of a topic with that config."""
    values = configs.shown(config)
    shown = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms = [*_own(name, config)]
        if setting.broker:
            synonyms += _of_broker(setting.broker, configs.broker, configs.default, settings.given, setting.default)
        source = synonyms[0].source if synonyms else CONFIG_SOURCE_DEFAULT
        shown.append(
            DescribedConfig(
                name,
                values[name],
                read_only=False,
                config_source=source,
                is_default=source == CONFIG_SOURCE_DEFAULT,
                synonyms=tuple(synonyms),
                config_type=setting.kind,
                documentation=setting.documentation,
            )
        )
    return tuple(shown)


def _own(name: str, config: Config) -> Iterator[ConfigSynonym]:
    if name in config:
        yield ConfigSynonym(name, config[name], CONFIG_SOURCE_TOPIC)


def broker_shown(settings: BrokerSettings, broker: Config, default: Config) -> tuple[DescribedConfig, ...]:
    """All settings of this broker, with its own dynamic config and that of all brokers."""
    own = _of_listeners(settings.given, broker, default)
    return tuple(_broker_setting(one, settings.given, broker, default) for one in (*BROKER_SETTINGS.values(), *own))


def all_brokers_shown(default: Config) -> tuple[DescribedConfig, ...]:
    """What is set for all brokers, and nothing else."""
    known = [BROKER_SETTINGS[name] for name in sorted(default) if name in BROKER_SETTINGS]
    known += _of_listeners(default)
    return tuple(_broker_setting(one, {}, {}, default, with_default=False) for one in known)


def _of_listeners(*configs: Config) -> list[BrokerSetting]:
    found = (setting_of_listener(name) for name in sorted({name for config in configs for name in config}))
    return [one for one in found if one is not None]


def _broker_setting(
    setting: BrokerSetting, given: Config, broker: Config, default: Config, *, with_default: bool = True
) -> DescribedConfig:
    last = setting.default if with_default else None
    if setting.dynamic:
        synonyms = tuple(_of_broker(setting.name, broker, default, given, last))
    else:
        synonyms = tuple(_of_broker(setting.name, {}, {}, given, last))
    hidden = setting.is_sensitive
    if hidden:
        synonyms = tuple(ConfigSynonym(one.name, None, one.source) for one in synonyms)
    first = synonyms[0] if synonyms else ConfigSynonym(setting.name, None, CONFIG_SOURCE_DEFAULT)
    return DescribedConfig(
        setting.name,
        None if hidden else first.value,
        read_only=not setting.dynamic,
        is_sensitive=hidden,
        config_source=first.source,
        is_default=first.source == CONFIG_SOURCE_DEFAULT,
        synonyms=synonyms,
        config_type=setting.kind,
        documentation=setting.documentation,
    )


def _of_broker(name: str, broker: Config, default: Config, given: Config, last: str | None) -> Iterator[ConfigSynonym]:
    """The broker's values by that name, or another that means the same, as they count."""
    names = (name, *ALTERNATIVES.get(name, ()))
    sources = (
        (CONFIG_SOURCE_DYNAMIC_BROKER, broker),
        (CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER, default),
        (CONFIG_SOURCE_STATIC_BROKER, given),
    )
    for source, config in sources:
        for one in names:
            if one in config:
                yield ConfigSynonym(one, config[one], source)
    if last is not None:
        yield ConfigSynonym(name, last, CONFIG_SOURCE_DEFAULT)


ROOT = "root"
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_LIST_OPERATIONS = {OPERATION_APPEND: "APPEND", OPERATION_SUBTRACT: "SUBTRACT"}


class BrokerLoggers:
    """`level` is one of `LEVELS`. `changed` is called with a new one."""

    def __init__(self, level: str = "INFO", changed: Callable[[str], None] = lambda _level: None) -> None:
        self.level = level
        self._changed = changed

    def shown(self) -> tuple[DescribedConfig, ...]:
        source = CONFIG_SOURCE_DYNAMIC_BROKER_LOGGER
        return (DescribedConfig(ROOT, self.level, read_only=False, config_source=source),)

    def alter(self, broker: str, operations: Sequence[AlterableConfig], validate_only: bool) -> None:
        """Refused."""
        resource = f"Invalid config value for resource ConfigResource(type=BROKER_LOGGER, name='{broker}')"
        for one in operations:
            if one.config_operation in _LIST_OPERATIONS:
                verb = _LIST_OPERATIONS[one.config_operation]
                words = f"{verb} operation is not allowed for the BROKER_LOGGER resource"
                raise ApiError(ErrorCode.INVALID_REQUEST, words)
            if one.config_operation not in (OPERATION_SET, OPERATION_DELETE):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported operation type {one.config_operation}")
            if one.name != ROOT:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{resource}: Logger {one.name} does not exist!")
            if one.config_operation == OPERATION_DELETE:
                words = f"Removing the log level of the {ROOT} logger is not allowed"
                raise ApiError(ErrorCode.INVALID_REQUEST, words)
            if one.value not in LEVELS:
                words = f"Cannot set the log level of {ROOT} to {one.value} as it is not a supported log level."
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"{resource}: {words} Valid log levels are {', '.join(LEVELS)}"
                )
        for one in operations:
            if not validate_only and one.value is not None:
                self.level = one.value
                self._changed(one.value)


R = TypeVar("R")


def answer_later(
    task: Coro[R], clock: Clock, trace: Trace, answer: Callable[[R], None], failed: Callable[[ErrorCode, str], R]
) -> None:
    """Run `task`, then answer on the broker's thread with its result, or with what `failed` makes of an error.

    The error is REQUEST_TIMED_OUT, which a client retries, if ZooKeeper was unavailable. It is UNKNOWN_SERVER_ERROR
    for a bug, which is logged with its traceback."""
    outcome: Future[R] = spawn(task)

    def respond() -> None:
        try:
            value = outcome.result()
        except ZooKeeperError as error:
            trace.emit(Noted("warning", f"a request could not be carried out: {error}"))
            value = failed(ErrorCode.REQUEST_TIMED_OUT, str(error))
        except Exception:  # noqa: BLE001 - logged and answered with an error; other requests are unaffected
            trace.emit(Noted("error", f"a request failed in its handler\n{traceback.format_exc()}"))
            value = failed(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        answer(value)

    on_broker_thread(outcome, clock, respond)


RESOLVED_AT_ONCE = 500
DESCRIBED_AT_ONCE = 10
"""Resources that are looked at, or described, before other requests have their turn: some milliseconds."""
Resource: TypeAlias = AlterConfigsResource | IncrementalAlterConfigsResource
Change: TypeAlias = Callable[[Config], Config]


@dataclass(eq=False)
class ConfigHandler:
    _settings: BrokerSettings
    _configs: TopicConfigs
    _client: ZooKeeperClient
    _metadata: MetadataCache
    _clock: Clock
    _trace: Trace
    _loggers: BrokerLoggers

    def __post_init__(self) -> None:
        self._writes = BrokerDataWrites(self._client)

    # -- requests

    def describe(
        self, request: DescribeConfigsRequest, version: int, answer: Callable[[DescribeConfigsResponse], None]
    ) -> None:
        def failed(error: ErrorCode, message: str) -> DescribeConfigsResponse:
            refusal = record_refusal(request, error, message)
            assert isinstance(refusal, DescribeConfigsResponse)
            return refusal

        answer_later(self._describe(request, version), self._clock, self._trace, answer, failed)

    def alter(self, request: AlterConfigsRequest, version: int, answer: Callable[[AlterConfigsResponse], None]) -> None:
        def change_of(resource: AlterConfigsResource) -> Change:
            config = replaced(resource.resource_type, resource.configs)
            return lambda _before: config

        self._alter_later(request, change_of, lambda results: answer(AlterConfigsResponse(results)))

    def alter_incrementally(
        self,
        request: IncrementalAlterConfigsRequest,
        version: int,
        answer: Callable[[IncrementalAlterConfigsResponse], None],
    ) -> None:
        def change_of(resource: IncrementalAlterConfigsResource) -> Change:
            check_operations(resource.configs)
            return lambda before: changed(resource.resource_type, before, resource.configs)

        self._alter_later(request, change_of, lambda results: answer(IncrementalAlterConfigsResponse(results)))

    def _alter_later(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        change_of: Callable[[Any], Change],
        answer: Callable[[tuple[AlteredResource, ...]], None],
    ) -> None:
        resources = request.resources
        task = self._alter_each([(one, partial(change_of, one)) for one in resources], request.validate_only)
        answer_later(task, self._clock, self._trace, answer, partial(altered_resources, resources))

    # -- describing

    async def _describe(self, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        """In slices. Each result is encoded at once, and those beyond `camerlengo.response.max.bytes` are refused."""
        wanted: dict[int, str | ApiError] = {}
        for place, resource in enumerate(request.resources):
            wanted[place] = self._path_or_refusal(resource)
            if place % RESOLVED_AT_ONCE == RESOLVED_AT_ONCE - 1:
                await self._clock.sleep(0.0)
        asked = list(dict.fromkeys(one for one in wanted.values() if isinstance(one, str)))
        reading = await self._client.read([paths.CONFIG_BROKER_DEFAULT, *asked])
        rows = {row.path: row for row in reading.rows if row is not None}
        results: list[bytes] = []
        size_bytes = 0
        for place, resource in enumerate(request.resources):
            result = self._result(request, resource, wanted[place], rows, size_bytes)
            results.append(encode_described_resource(version, result))
            size_bytes += len(results[-1])
            if place % DESCRIBED_AT_ONCE == DESCRIBED_AT_ONCE - 1:
                await self._clock.sleep(0.0)
        return DescribeConfigsResponse(written(results))

    def _result(
        self,
        request: DescribeConfigsRequest,
        resource: DescribeConfigsResource,
        path: str | ApiError,
        rows: Mapping[str, Znode],
        size_bytes: int,
    ) -> DescribeConfigsResult:
        try:
            if isinstance(path, ApiError):
                raise path
            if size_bytes >= self._settings.response_max_bytes:
                limit = f"camerlengo.response.max.bytes={self._settings.response_max_bytes}"
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION, f"The response is larger than {limit}: ask for fewer at once"
                )
            shown = _asked_for(request, resource, self._shown(resource, path, rows))
            return _described(resource, ErrorCode.NONE, None, shown)
        except ApiError as refused:
            return _described(resource, refused.error, refused.message)
        except DamagedZnode as damaged:
            return _described(resource, ErrorCode.UNKNOWN_SERVER_ERROR, str(damaged))

    def _shown(
        self, resource: DescribeConfigsResource, path: str, rows: Mapping[str, Znode]
    ) -> tuple[DescribedConfig, ...]:
        if resource.resource_type == RESOURCE_TOPIC:
            return topic_shown(self._configs, self._settings, _config(rows, path))
        if resource.resource_type == RESOURCE_BROKER_LOGGER:
            return self._loggers.shown()
        default = _config(rows, paths.CONFIG_BROKER_DEFAULT)
        if not resource.resource_name:
            return all_brokers_shown(default)
        return broker_shown(self._settings, _config(rows, path), default)

    def _path_or_refusal(self, resource: DescribeConfigsResource) -> str | ApiError:
        try:
            if resource.resource_type == RESOURCE_TOPIC and (fault := name_fault(resource.resource_name)) is not None:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if resource.resource_type == RESOURCE_BROKER_LOGGER:
                return self._logger_path(resource.resource_name)
            return self._path(resource.resource_type, resource.resource_name)
        except ApiError as refused:
            return refused

    def _logger_path(self, name: str) -> str:
        """Nothing is kept of a logger. Refused if it is another broker's."""
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        return self._broker_path(name)

    # -- altering

    async def _alter_each(
        self, prepared: Sequence[tuple[Resource, Callable[[], Change]]], validate_only: bool
    ) -> tuple[AlteredResource, ...]:
        """One after the other: a request is not to flood ZooKeeper."""
        results = []
        for place, (resource, change_of) in enumerate(prepared, 1):
            if place % RESOLVED_AT_ONCE == 0:
                await self._clock.sleep(0.0)
            error: ErrorCode = ErrorCode.NONE
            message: str | None = None
            try:
                await self._alter(resource, change_of, validate_only)
            except ApiError as refused:
                error, message = refused.error, refused.message
            except DamagedZnode as damaged:
                error, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(damaged)
            results.append(AlteredResource(error, message, resource.resource_type, resource.resource_name))
        return tuple(results)

    async def _alter(self, resource: Resource, change_of: Callable[[], Change], validate_only: bool) -> None:
        if resource.resource_type == RESOURCE_BROKER_LOGGER and isinstance(resource, IncrementalAlterConfigsResource):
            self._logger_path(resource.resource_name)
            check_operations(resource.configs)
            self._loggers.alter(resource.resource_name, resource.configs, validate_only)
            return
        path = self._path(resource.resource_type, resource.resource_name)
        change = change_of()
        if validate_only:
            rows = {row.path: row for row in (await self._client.read([path])).rows if row is not None}
            change(_config(rows, path))
            return
        is_topic = resource.resource_type == RESOURCE_TOPIC
        entity = path.removeprefix(f"{paths.CONFIG}/")
        must_exist = paths.topic(resource.resource_name) if is_topic else None
        try:
            await self._writes.change_config(path, entity, change, must_exist)
        except NoNode:
            raise _unknown_topic(resource.resource_name) from None

    def _path(self, resource_type: int, name: str) -> str:
        """Where the config is kept. Refused if it is not this broker's to speak of."""
        if resource_type == RESOURCE_TOPIC:
            if name not in self._metadata.snapshot.topics or name_fault(name) is not None:
                raise _unknown_topic(name)
            return paths.config_topic(name)
        if resource_type != RESOURCE_BROKER:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Configs are of topics and brokers alone, but resource type is {resource_type}",
            )
        return self._broker_path(name)

    def _broker_path(self, name: str) -> str:
        """Refused if it is another broker's."""
        if not name:
            return paths.CONFIG_BROKER_DEFAULT
        if name != str(self._settings.broker_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._settings.broker_id} or empty string, but received {name}",
            )
        return paths.config_broker(self._settings.broker_id)


def _config(rows: Mapping[str, Znode], path: str) -> Config:
    """DamagedZnode."""
    return decode_config(path, rows[path].data).config if path in rows else {}


def _unknown_topic(name: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _described(
    resource: DescribeConfigsResource, error: ErrorCode, message: str | None, configs: tuple[DescribedConfig, ...] = ()
) -> DescribeConfigsResult:
    return DescribeConfigsResult(error, message, resource.resource_type, resource.resource_name, configs)


def _asked_for(
    request: DescribeConfigsRequest, resource: DescribeConfigsResource, shown: tuple[DescribedConfig, ...]
) -> tuple[DescribedConfig, ...]:
    keys = resource.configuration_keys
    return tuple(
        replace(
            one,
            synonyms=one.synonyms if request.include_synonyms else (),
            documentation=one.documentation if request.include_documentation else None,
        )
        for one in shown
        if keys is None or one.name in keys
    )
