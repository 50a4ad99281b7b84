"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and brokers.

Any broker answers for any topic, and each for itself and for what all brokers go by: what is asked of another broker
is refused, as in Kafka with ZooKeeper. A change is written to the config's znode with its notice; this broker too goes
by it when it reads the notice. What may be written and what is shown is decided in `configs_changed.py` and
`configs_shown.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from controller.broker.answering_later import answer_later
from controller.broker.configs.broker_loggers import BrokerLoggers
from controller.broker.configs.configs_changed import Config, changed, check_operations, replaced
from controller.broker.configs.configs_shown import all_brokers_shown, broker_shown, topic_shown
from controller.broker.configs.settings import BrokerSettings
from controller.broker.configs.topic_configs import TopicConfigs
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.records.record_access import Refused
from controller.broker.records.record_refusals import record_refusal
from controller.clock import Clock
from controller.core.topic_rules import name_fault
from controller.protocol.admin_values import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_TOPIC,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    AlteredResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from controller.protocol.codec import encode_described_resource
from controller.protocol.errors import ErrorCode
from controller.protocol.written import written
from controller.trace import Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_data_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.errors import DamagedZnode, NoNode
from controller.zookeeper.operations import Row

RESOLVED_AT_ONCE = 500
DESCRIBED_AT_ONCE = 10
"""Resources that are looked at, or described, before other requests have their turn: some milliseconds."""
Resource: TypeAlias = AlterConfigsResource | IncrementalAlterConfigsResource
Change: TypeAlias = Callable[[Config], Config]


class Configs:
    def __init__(
        self,
        settings: BrokerSettings,
        configs: TopicConfigs,
        client: ZooKeeperClient,
        metadata: MetadataCache,
        clock: Clock,
        trace: Trace,
    ) -> None:
        self._settings = settings
        self._configs = configs
        self._client = client
        self._writes = BrokerDataWrites(client)
        self._metadata = metadata
        self._clock = clock
        self._trace = trace
        self.loggers = BrokerLoggers()

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

        prepared = [(one, partial(change_of, one)) for one in request.resources]
        task = self._alter_each(prepared, request.validate_only)
        answer_later(
            task,
            self._clock,
            self._trace,
            lambda results: answer(AlterConfigsResponse(results)),
            lambda error, message: _all_refused(request.resources, error, message),
        )

    def alter_incrementally(
        self,
        request: IncrementalAlterConfigsRequest,
        version: int,
        answer: Callable[[IncrementalAlterConfigsResponse], None],
    ) -> None:
        def change_of(resource: IncrementalAlterConfigsResource) -> Change:
            check_operations(resource.configs)
            return lambda before: changed(resource.resource_type, before, resource.configs)

        prepared = [(one, partial(change_of, one)) for one in request.resources]
        task = self._alter_each(prepared, request.validate_only)
        answer_later(
            task,
            self._clock,
            self._trace,
            lambda results: answer(IncrementalAlterConfigsResponse(results)),
            lambda error, message: _all_refused(request.resources, error, message),
        )

    # -- describing

    async def _describe(self, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        """In slices. Each result is encoded at once, and those beyond `camerlengo.response.max.bytes` are refused."""
        wanted: dict[int, str | Refused] = {}
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
        path: str | Refused,
        rows: Mapping[str, Row],
        size_bytes: int,
    ) -> DescribeConfigsResult:
        try:
            if isinstance(path, Refused):
                raise path
            if size_bytes >= self._settings.response_max_bytes:
                limit = f"camerlengo.response.max.bytes={self._settings.response_max_bytes}"
                raise Refused(ErrorCode.POLICY_VIOLATION, f"The response is larger than {limit}: ask for fewer at once")
            shown = _asked_for(request, resource, self._shown(resource, path, rows))
            return _described(resource, ErrorCode.NONE, None, shown)
        except Refused as refused:
            return _described(resource, refused.error, refused.message)
        except DamagedZnode as damaged:
            return _described(resource, ErrorCode.UNKNOWN_SERVER_ERROR, str(damaged))

    def _shown(
        self, resource: DescribeConfigsResource, path: str, rows: Mapping[str, Row]
    ) -> tuple[DescribedConfig, ...]:
        if resource.resource_type == RESOURCE_TOPIC:
            return topic_shown(self._configs, self._settings, _config(rows, path))
        if resource.resource_type == RESOURCE_BROKER_LOGGER:
            return self.loggers.shown()
        default = _config(rows, paths.CONFIG_BROKER_DEFAULT)
        if not resource.resource_name:
            return all_brokers_shown(default)
        return broker_shown(self._settings, _config(rows, path), default)

    def _path_or_refusal(self, resource: DescribeConfigsResource) -> str | Refused:
        try:
            if resource.resource_type == RESOURCE_TOPIC and (fault := name_fault(resource.resource_name)) is not None:
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            if resource.resource_type == RESOURCE_BROKER_LOGGER:
                return self._logger_path(resource.resource_name)
            return self._path(resource.resource_type, resource.resource_name)
        except Refused as refused:
            return refused

    def _logger_path(self, name: str) -> str:
        """Nothing is kept of a logger. Refused if it is another broker's."""
        if not name:
            raise Refused(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
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
            except Refused as refused:
                error, message = refused.error, refused.message
            except DamagedZnode as damaged:
                error, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(damaged)
            results.append(AlteredResource(error, message, resource.resource_type, resource.resource_name))
        return tuple(results)

    async def _alter(self, resource: Resource, change_of: Callable[[], Change], validate_only: bool) -> None:
        if resource.resource_type == RESOURCE_BROKER_LOGGER and isinstance(resource, IncrementalAlterConfigsResource):
            self._logger_path(resource.resource_name)
            check_operations(resource.configs)
            self.loggers.alter(resource.resource_name, resource.configs, validate_only)
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
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Configs are of topics and brokers alone, but resource type is {resource_type}",
            )
        return self._broker_path(name)

    def _broker_path(self, name: str) -> str:
        """Refused if it is another broker's."""
        if not name:
            return paths.CONFIG_BROKER_DEFAULT
        if name != str(self._settings.broker_id):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._settings.broker_id} or empty string, but received {name}",
            )
        return paths.config_broker(self._settings.broker_id)


def _config(rows: Mapping[str, Row], path: str) -> Config:
    """DamagedZnode."""
    return decode_config(path, rows[path].data).config if path in rows else {}


def _unknown_topic(name: str) -> Refused:
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _all_refused(resources: Sequence[Resource], error: ErrorCode, message: str) -> tuple[AlteredResource, ...]:
    return tuple(AlteredResource(error, message, one.resource_type, one.resource_name) for one in resources)


def _described(
    resource: DescribeConfigsResource,
    error: ErrorCode,
    message: str | None,
    configs: tuple[DescribedConfig, ...] = (),
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
