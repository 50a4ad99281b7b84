"""Validation of the config changes that clients request, and the error for each change that is refused.

Pure: texts in, texts out. The rules are Kafka 2.8's (ZkAdminManager), except that an invalid value is INVALID_CONFIG,
as in later versions of Kafka, and not INVALID_REQUEST."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.broker.configs.configs_table import BROKER_SETTINGS, DYNAMIC_NAMES
from controller.broker.records.record_access import Refused
from controller.core.topic_settings import (
    BROKER_ALONE,
    BY_BROKER_NAME,
    THROTTLE_RATES,
    TOPIC_SETTINGS,
    TopicSetting,
    config_fault,
    elements,
)
from controller.protocol.admin_values import (
    CONFIG_TYPE_LIST,
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    RESOURCE_TOPIC,
    AlterableConfig,
    ReplacedConfig,
)
from controller.protocol.errors import ErrorCode

Config = Mapping[str, str]


def replaced(resource_type: int, configs: Sequence[ReplacedConfig]) -> Config:
    """AlterConfigs: these and no others. Refused."""
    without = [one.name for one in configs if one.value is None]
    if without:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without)}")
    config = {one.name: one.value for one in configs if one.value is not None}
    _check(resource_type, config)
    return config


def check_operations(configs: Sequence[AlterableConfig]) -> None:
    """IncrementalAlterConfigs: what is wrong with it whatever the config is now. Refused."""
    twice = [name for name, count in Counter(one.name for one in configs).items() if count > 1]
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {','.join(twice)}")
    without = [one.name for one in configs if one.value is None and one.config_operation != OPERATION_DELETE]
    if without:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without)}")


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
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported operation type {one.config_operation}")
    named = {one.name: result[one.name] for one in operations if one.name in result}
    _check(resource_type, named)
    if resource_type == RESOURCE_TOPIC:
        known = {name: text for name, text in result.items() if name in TOPIC_SETTINGS}
        if not any(TOPIC_SETTINGS[name].fault(text) for name, text in known.items()):
            _check(resource_type, known)  # what they come to together
    return result


def _list_changed(resource_type: int, before: str | None, operation: AlterableConfig) -> str:
    setting = _setting(resource_type, operation.name)
    adds = operation.config_operation == OPERATION_APPEND
    if setting.kind != CONFIG_TYPE_LIST:
        verb = "append" if adds else "subtract"
        raise Refused(ErrorCode.INVALID_REQUEST, f"Config value {verb} is not allowed for config key: {operation.name}")
    there, named = elements(setting.default if before is None else before), elements(operation.value or "")
    if adds:
        return ",".join(dict.fromkeys((*there, *named)))
    return ",".join(one for one in there if one not in named)


def _setting(resource_type: int, name: str) -> TopicSetting:
    """Refused if there is none of that name that can be altered."""
    if resource_type == RESOURCE_TOPIC:
        if name not in TOPIC_SETTINGS:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        return TOPIC_SETTINGS[name]
    if name not in DYNAMIC_NAMES:
        known = "Cannot update this config dynamically" if name in BROKER_SETTINGS else "Unknown broker config name"
        raise Refused(ErrorCode.INVALID_CONFIG, f"{known}: {name}")
    return next(table[name] for table in (THROTTLE_RATES, BROKER_ALONE, BY_BROKER_NAME) if name in table)


def _check(resource_type: int, config: Config) -> None:
    for name, text in config.items():
        setting = _setting(resource_type, name)
        fault = setting.fault(text, name)
        if fault is not None:
            raise Refused(ErrorCode.INVALID_CONFIG, fault)
    if resource_type == RESOURCE_TOPIC and (fault := config_fault(config)) is not None:
        raise Refused(ErrorCode.INVALID_CONFIG, fault)
