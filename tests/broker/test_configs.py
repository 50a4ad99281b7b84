"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, of a whole node: what is shown, written and refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.broker.config_definitions import ALTERNATIVES, BROKER_SETTINGS, DYNAMIC_NAMES
from controller.broker.settings import _NAMES
from controller.core.topic_settings import TOPIC_SETTINGS
from controller.protocol.admin import (
    CONFIG_TYPE_LONG,
    CONFIG_TYPE_PASSWORD,
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
    AlteredResource,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ReplacedConfig,
)
from controller.protocol.client import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_STATIC_BROKER,
    CONFIG_SOURCE_TOPIC,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Delete
from tests.broker.data_node import DataNode

TOPIC = paths.config_topic("t")
BROKER_1 = paths.config_broker(1)


@pytest.fixture
def node() -> DataNode:
    return DataNode("t")


def described(
    node: DataNode,
    kind: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = True,
    documentation: bool = False,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(kind, name, None if keys is None else tuple(keys))
    request = DescribeConfigsRequest(
        (resource,), include_synonyms=synonyms and version >= 1, include_documentation=documentation and version >= 3
    )
    (result,) = node.ask(ApiKey.DESCRIBE_CONFIGS, request, version).results
    assert isinstance(result, DescribeConfigsResult)
    return result


def one(node: DataNode, kind: int, name: str, key: str) -> DescribedConfig:
    (found,) = described(node, kind, name, [key]).configs
    return found


def altered(
    node: DataNode, kind: int, name: str, *configs: AlterableConfig, validate_only: bool = False, version: int = 1
) -> AlteredResource:
    request = IncrementalAlterConfigsRequest((IncrementalAlterConfigsResource(kind, name, configs),), validate_only)
    (result,) = node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, version).responses
    assert isinstance(result, AlteredResource)
    node.settle()
    return result


def set_to(name: str, value: str) -> AlterableConfig:
    return AlterableConfig(name, OPERATION_SET, value)


# -- describing


def test_a_topics_value_and_its_synonyms_in_the_order_in_which_they_count() -> None:
    node = DataNode("t", log_retention_ms="1000")
    altered(node, RESOURCE_BROKER, "", set_to("log.retention.ms", "2000"))
    altered(node, RESOURCE_BROKER, "1", set_to("log.retention.ms", "3000"))
    node.write_config(TOPIC, {"retention.ms": "4000"})
    found = one(node, RESOURCE_TOPIC, "t", "retention.ms")
    assert found == DescribedConfig(
        "retention.ms",
        "4000",
        read_only=False,
        config_source=CONFIG_SOURCE_TOPIC,
        synonyms=(
            ConfigSynonym("retention.ms", "4000", CONFIG_SOURCE_TOPIC),
            ConfigSynonym("log.retention.ms", "3000", CONFIG_SOURCE_DYNAMIC_BROKER),
            ConfigSynonym("log.retention.ms", "2000", CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER),
            ConfigSynonym("log.retention.ms", "1000", CONFIG_SOURCE_STATIC_BROKER),
            ConfigSynonym("log.retention.ms", "604800000", CONFIG_SOURCE_DEFAULT),
        ),
        config_type=CONFIG_TYPE_LONG,
    )
    node.write_config(TOPIC, {})
    found = one(node, RESOURCE_TOPIC, "t", "retention.ms")
    assert (found.value, found.config_source) == ("3000", CONFIG_SOURCE_DYNAMIC_BROKER)


def test_a_topics_value_that_the_broker_was_told_in_hours() -> None:
    node = DataNode("t", log_retention_hours="2")
    found = one(node, RESOURCE_TOPIC, "t", "retention.ms")
    assert (found.value, found.config_source) == ("7200000", CONFIG_SOURCE_STATIC_BROKER)
    assert found.synonyms[0] == ConfigSynonym("log.retention.hours", "2", CONFIG_SOURCE_STATIC_BROKER)


def test_all_settings_of_a_topic_with_their_defaults(node: DataNode) -> None:
    result = described(node, RESOURCE_TOPIC, "t", documentation=True)
    assert [config.name for config in result.configs] == list(TOPIC_SETTINGS)
    for config in result.configs:
        setting = TOPIC_SETTINGS[config.name]
        assert (config.value, config.config_source) == (setting.default, CONFIG_SOURCE_DEFAULT)
        assert (config.config_type, config.documentation) == (setting.kind, setting.documentation)
        assert not config.read_only


@pytest.mark.parametrize("version", range(5))
def test_every_version_is_answered(node: DataNode, version: int) -> None:
    node.write_config(TOPIC, {"flush.ms": "5"})
    wanted = {one.name: one for one in described(node, RESOURCE_TOPIC, "t", version=version, synonyms=False).configs}
    assert wanted["flush.ms"].value == "5"
    assert wanted["flush.ms"].synonyms == ()
    if version == 0:
        assert not wanted["flush.ms"].is_default
        assert wanted["segment.ms"].is_default
    else:
        assert wanted["flush.ms"].config_source == CONFIG_SOURCE_TOPIC


def test_all_settings_of_a_broker() -> None:
    node = DataNode("t", min_insync_replicas="2", camerlengo_zookeeper_digest="user:secret")
    found = {config.name: config for config in described(node, RESOURCE_BROKER, "1", documentation=True).configs}
    assert set(found) == set(BROKER_SETTINGS)
    assert all(config.documentation for config in found.values())
    assert {name for name, config in found.items() if not config.read_only} == DYNAMIC_NAMES
    assert found["broker.id"].value == "1"
    assert (found["min.insync.replicas"].value, found["min.insync.replicas"].config_source) == (
        "2",
        CONFIG_SOURCE_STATIC_BROKER,
    )
    assert found["num.partitions"].value == "1"
    secret = found["camerlengo.zookeeper.digest"]
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, CONFIG_TYPE_PASSWORD)
    assert all("secret" not in repr(config) for config in found.values())


def test_what_is_set_for_all_brokers_is_described_alone(node: DataNode) -> None:
    assert described(node, RESOURCE_BROKER, "").configs == ()
    node.write_config(paths.CONFIG_BROKER_DEFAULT, {"min.insync.replicas": "2", "of.kafkas": "1"})
    (found,) = described(node, RESOURCE_BROKER, "").configs
    assert (found.name, found.value, found.config_source) == (
        "min.insync.replicas",
        "2",
        CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    )
    assert len(found.synonyms) == 1


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (RESOURCE_TOPIC, "unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (RESOURCE_TOPIC, "no topic!", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (RESOURCE_TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (RESOURCE_BROKER, "2", ErrorCode.INVALID_REQUEST),
        (RESOURCE_BROKER, "x", ErrorCode.INVALID_REQUEST),
        (RESOURCE_BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (RESOURCE_BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (77, "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_described_here_is_told_beside_what_is(
    node: DataNode, kind: int, name: str, error: ErrorCode
) -> None:
    wrong, right = DescribeConfigsResource(kind, name), DescribeConfigsResource(RESOURCE_TOPIC, "t")
    results = node.ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest((wrong, right))).results
    assert [(result.error_code, bool(result.configs)) for result in results] == [(error, False), (0, True)]
    assert results[0].error_message


def test_a_damaged_config_is_told(node: DataNode) -> None:
    node.write(TOPIC, b"{")
    result = described(node, RESOURCE_TOPIC, "t")
    assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert TOPIC in (result.error_message or "")
    assert described(node, RESOURCE_BROKER, "1").error_code == ErrorCode.NONE
    refusal = altered(node, RESOURCE_TOPIC, "t", set_to("flush.ms", "5"))
    assert refusal.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert node.data(TOPIC) == b"{", "and is not overwritten"


def test_each_setting_that_is_read_has_its_place_in_the_table() -> None:
    assert set(_NAMES) <= set(BROKER_SETTINGS)
    assert {name for names in ALTERNATIVES.values() for name in names} <= set(BROKER_SETTINGS)
    assert all(setting.documentation for setting in BROKER_SETTINGS.values())
    assert all(setting.documentation for setting in TOPIC_SETTINGS.values())


# -- altering


def test_a_topics_config_is_written_with_its_notice_and_taken_up(node: DataNode) -> None:
    node.write_config(TOPIC, {"flush.ms": "5"})
    result = altered(node, RESOURCE_TOPIC, "t", set_to("retention.ms", "6"), set_to("min.insync.replicas", "2"))
    assert result == AlteredResource(ErrorCode.NONE, None, RESOURCE_TOPIC, "t")
    assert node.data(TOPIC) == b'{"version":1,"config":{"flush.ms":"5","retention.ms":"6","min.insync.replicas":"2"}}'
    assert node.notices() == [b'{"version":2,"entity_path":"topics/t"}']
    log = node.logs.get("t", 0)
    assert log is not None
    assert (log.settings.retention_ms, log.settings.flush_ms) == (6, 5)
    assert node.services.configs.min_insync("t") == 2


@pytest.mark.parametrize(
    ("name", "path", "entity"), [("1", BROKER_1, b"1"), ("", paths.CONFIG_BROKER_DEFAULT, b"<default>")]
)
def test_a_brokers_config_too(node: DataNode, name: str, path: str, entity: bytes) -> None:
    assert altered(node, RESOURCE_BROKER, name, set_to("log.retention.ms", "6")).error_code == ErrorCode.NONE
    assert node.data(path) == b'{"version":1,"config":{"log.retention.ms":"6"}}'
    assert node.notices() == [b'{"version":2,"entity_path":"brokers/%s"}' % entity]
    log = node.logs.get("t", 0)
    assert log is not None
    assert log.settings.retention_ms == 6
    assert altered(node, RESOURCE_BROKER, name, AlterableConfig("log.retention.ms", OPERATION_DELETE, None)) == (
        AlteredResource(ErrorCode.NONE, None, RESOURCE_BROKER, name)
    )
    assert log.settings.retention_ms == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, OPERATION_APPEND, "compact", "delete,compact"),
        ("delete", OPERATION_APPEND, "compact", "delete,compact"),
        ("compact", OPERATION_APPEND, "compact,delete", "compact,delete"),
        ("compact,delete", OPERATION_SUBTRACT, "compact", "delete"),
        ("delete", OPERATION_SUBTRACT, "compact", "delete"),
    ],
)
def test_lists_are_added_to_and_taken_from(
    node: DataNode, before: str | None, operation: int, value: str, after: str
) -> None:
    if before is not None:
        node.write_config(TOPIC, {"cleanup.policy": before})
    result = altered(node, RESOURCE_TOPIC, "t", AlterableConfig("cleanup.policy", operation, value))
    assert result.error_code == ErrorCode.NONE
    assert one(node, RESOURCE_TOPIC, "t", "cleanup.policy").value == after


BAD: list[tuple[int, str, tuple[AlterableConfig, ...], ErrorCode, str]] = [
    (RESOURCE_TOPIC, "t", (set_to("retention.ms", "-5"),), ErrorCode.INVALID_CONFIG, "must be at least -1"),
    (RESOURCE_TOPIC, "t", (set_to("no.such", "1"),), ErrorCode.INVALID_CONFIG, "no.such"),
    (
        RESOURCE_TOPIC,
        "t",
        (AlterableConfig("retention.ms", OPERATION_APPEND, "1"),),
        ErrorCode.INVALID_REQUEST,
        "append is not allowed for config key: retention.ms",
    ),
    (
        RESOURCE_TOPIC,
        "t",
        (AlterableConfig("no.such", OPERATION_SUBTRACT, "1"),),
        ErrorCode.INVALID_CONFIG,
        "no.such",
    ),
    (
        RESOURCE_TOPIC,
        "t",
        (AlterableConfig("cleanup.policy", OPERATION_APPEND, "shrink"),),
        ErrorCode.INVALID_CONFIG,
        "one of: compact, delete",
    ),
    (RESOURCE_TOPIC, "t", (AlterableConfig("flush.ms", 9, "1"),), ErrorCode.INVALID_REQUEST, "operation type 9"),
    (RESOURCE_TOPIC, "t", (AlterableConfig("flush.ms", OPERATION_SET, None),), ErrorCode.INVALID_REQUEST, "Null"),
    (
        RESOURCE_TOPIC,
        "t",
        (set_to("flush.ms", "1"), set_to("flush.ms", "2")),
        ErrorCode.INVALID_REQUEST,
        "duplicate config keys : flush.ms",
    ),
    (
        RESOURCE_TOPIC,
        "t",
        (set_to("min.compaction.lag.ms", "9"), set_to("max.compaction.lag.ms", "8")),
        ErrorCode.INVALID_CONFIG,
        "conflict",
    ),
    (RESOURCE_TOPIC, "unknown", (set_to("flush.ms", "1"),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "unknown"),
    (RESOURCE_BROKER, "2", (set_to("log.retention.ms", "1"),), ErrorCode.INVALID_REQUEST, "expected 1"),
    (RESOURCE_BROKER, "1", (set_to("log.retention.ms", "x"),), ErrorCode.INVALID_CONFIG, "log.retention.ms"),
    (RESOURCE_BROKER, "1", (set_to("broker.id", "2"),), ErrorCode.INVALID_CONFIG, "Cannot update"),
    (RESOURCE_BROKER, "1", (set_to("retention.ms", "2"),), ErrorCode.INVALID_CONFIG, "Unknown broker config"),
    (RESOURCE_BROKER, "1", (set_to("num.io.threads", "0"),), ErrorCode.INVALID_CONFIG, "at least 1"),
    (RESOURCE_BROKER, "1", (set_to("log.cleaner.io.buffer.load.factor", "x"),), ErrorCode.INVALID_CONFIG, "DOUBLE"),
    (RESOURCE_BROKER, "1", (set_to("log.segment.delete.delay.ms", "1"),), ErrorCode.INVALID_CONFIG, "Cannot update"),
    (RESOURCE_BROKER, "1", (set_to("max.connections", "-1"),), ErrorCode.INVALID_CONFIG, "at least 0"),
    (RESOURCE_BROKER, "1", (set_to("max.connection.creation.rate", "x"),), ErrorCode.INVALID_CONFIG, "type INT"),
    (
        RESOURCE_BROKER,
        "1",
        (set_to("max.connections.per.ip", "0"),),
        ErrorCode.INVALID_CONFIG,
        "no client could connect",
    ),
    (RESOURCE_BROKER, "", (set_to("max.connections.per.ip.overrides", "h:1"),), ErrorCode.INVALID_CONFIG, "ADDRESS"),
    (RESOURCE_BROKER, "", (set_to("listener.name.x.max.connections", "0"),), ErrorCode.INVALID_CONFIG, "at least 1"),
    (RESOURCE_BROKER, "", (set_to("listener.name.x.ssl.keystore", "k"),), ErrorCode.INVALID_CONFIG, "Unknown broker"),
    (RESOURCE_BROKER_LOGGER, "1", (set_to("kafka", "INFO"),), ErrorCode.INVALID_REQUEST, "Logger kafka does not exist"),
    (RESOURCE_BROKER_LOGGER, "1", (set_to("root", "info"),), ErrorCode.INVALID_REQUEST, "Valid log levels are TRACE"),
    (
        RESOURCE_BROKER_LOGGER,
        "1",
        (AlterableConfig("root", OPERATION_DELETE, None),),
        ErrorCode.INVALID_REQUEST,
        "Removing the log level of the root",
    ),
    (
        RESOURCE_BROKER_LOGGER,
        "1",
        (AlterableConfig("root", OPERATION_APPEND, "INFO"),),
        ErrorCode.INVALID_REQUEST,
        "APPEND operation is not allowed",
    ),
    (RESOURCE_BROKER_LOGGER, "", (set_to("root", "INFO"),), ErrorCode.INVALID_REQUEST, "must not be empty"),
    (RESOURCE_BROKER_LOGGER, "2", (set_to("root", "INFO"),), ErrorCode.INVALID_REQUEST, "expected 1"),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(("kind", "name", "configs", "error", "words"), BAD)
def test_what_is_refused_changes_nothing(
    node: DataNode,
    kind: int,
    name: str,
    configs: tuple[AlterableConfig, ...],
    error: ErrorCode,
    words: str,
    validate_only: bool,
) -> None:
    before = node.zookeeper.zxid
    result = altered(node, kind, name, *configs, validate_only=validate_only)
    assert result.error_code == error
    assert words in (result.error_message or "")
    assert node.zookeeper.zxid == before
    assert node.trace.notes("error") == []


def test_what_has_no_effect_here_is_kept_for_kafka_brokers(node: DataNode) -> None:
    for name, value in (("num.io.threads", "16"), ("log.cleaner.threads", "2"), ("compression.type", "gzip")):
        assert altered(node, RESOURCE_BROKER, "1", set_to(name, value)).error_code == 0
        shown = one(node, RESOURCE_BROKER, "1", name)
        assert (shown.value, shown.read_only, shown.config_source) == (value, False, CONFIG_SOURCE_DYNAMIC_BROKER)
    assert altered(node, RESOURCE_BROKER, "", set_to("background.threads", "5")).error_code == 0
    assert one(node, RESOURCE_BROKER, "1", "background.threads").config_source == CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER
    assert node.trace.notes("error") == []


def test_the_level_of_the_log_is_shown_and_changed(node: DataNode) -> None:
    (root,) = described(node, RESOURCE_BROKER_LOGGER, "1").configs
    assert (root.name, root.value, root.read_only) == ("root", "INFO", False)
    before = node.zookeeper.zxid
    assert altered(node, RESOURCE_BROKER_LOGGER, "1", set_to("root", "DEBUG"), validate_only=True).error_code == 0
    assert node.levels == []
    assert altered(node, RESOURCE_BROKER_LOGGER, "1", set_to("root", "DEBUG")).error_code == 0
    assert node.levels == ["DEBUG"]
    assert one(node, RESOURCE_BROKER_LOGGER, "1", "root").value == "DEBUG"
    assert node.zookeeper.zxid == before
    request = AlterConfigsRequest(
        (AlterConfigsResource(RESOURCE_BROKER_LOGGER, "1", (ReplacedConfig("root", "INFO"),)),)
    )
    (result,) = node.ask(ApiKey.ALTER_CONFIGS, request).responses
    assert (result.error_code, node.levels) == (ErrorCode.INVALID_REQUEST, ["DEBUG"])


def test_what_is_only_to_be_validated_is_not_written(node: DataNode) -> None:
    before = node.zookeeper.zxid
    assert altered(node, RESOURCE_TOPIC, "t", set_to("flush.ms", "5"), validate_only=True).error_code == 0
    assert node.zookeeper.zxid == before


def test_each_resource_has_its_own_answer(node: DataNode) -> None:
    resources = (
        IncrementalAlterConfigsResource(RESOURCE_TOPIC, "unknown", (set_to("flush.ms", "5"),)),
        IncrementalAlterConfigsResource(RESOURCE_TOPIC, "t", (set_to("flush.ms", "5"),)),
    )
    answer = node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources), 0)
    assert [one.error_code for one in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert node.data(TOPIC) == b'{"version":1,"config":{"flush.ms":"5"}}'


def test_a_topic_that_the_metadata_has_still_and_zookeeper_no_more(node: DataNode) -> None:
    gone = [paths.partition_state("t", 0), paths.partition("t", 0), paths.partitions("t"), paths.topic("t")]
    node.other.multi([Delete(path, ANY_VERSION) for path in gone])
    result = altered(node, RESOURCE_TOPIC, "t", set_to("flush.ms", "5"))
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.row(TOPIC) is None


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all(node: DataNode, version: int) -> None:
    node.write_config(TOPIC, {"flush.ms": "5", "segment.ms": "6"})
    resource = AlterConfigsResource(RESOURCE_TOPIC, "t", (ReplacedConfig("flush.ms", "7"),))
    (result,) = node.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest((resource,)), version).responses
    assert result == AlteredResource(ErrorCode.NONE, None, RESOURCE_TOPIC, "t")
    assert node.data(TOPIC) == b'{"version":1,"config":{"flush.ms":"7"}}'


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (ReplacedConfig("flush.ms", None), ErrorCode.INVALID_REQUEST),
        (ReplacedConfig("flush.ms", "x"), ErrorCode.INVALID_CONFIG),
        (ReplacedConfig("no.such", "x"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_alter_configs_refuses_what_it_must(node: DataNode, config: ReplacedConfig, error: ErrorCode) -> None:
    resource = AlterConfigsResource(RESOURCE_TOPIC, "t", (config,))
    (result,) = node.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest((resource,))).responses
    assert result.error_code == error
    assert node.row(TOPIC) is None


def test_without_zookeeper_a_client_is_told_to_try_again(node: DataNode) -> None:
    deferred = node.begin(
        ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest((DescribeConfigsResource(RESOURCE_TOPIC, "t"),))
    )
    node.zookeeper.expire(node.connection.session())
    node.until(lambda: deferred.answered)
    resource = IncrementalAlterConfigsResource(RESOURCE_TOPIC, "t", (set_to("flush.ms", "5"),))
    answers = [
        deferred.value().results[0],
        node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest((resource,))).responses[0],
    ]
    assert {answer.error_code for answer in answers} <= {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE}
    assert node.trace.notes("error") == []
