"""A broker's loggers as `kafka-configs --entity-type broker-loggers` shows and changes them. There is one, `root`: the
level from which on the broker's log is written. A change lasts until the process ends, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.broker.records.record_access import Refused
from controller.protocol.admin_values import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    DescribedConfig,
)
from controller.protocol.client_values import CONFIG_SOURCE_DYNAMIC_BROKER_LOGGER
from controller.protocol.errors import ErrorCode

ROOT = "root"
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_LIST_OPERATIONS = {OPERATION_APPEND: "APPEND", OPERATION_SUBTRACT: "SUBTRACT"}


class BrokerLoggers:
    """`level` is one of `LEVELS`. `changed` is called with a new one; the host that writes the log replaces it."""

    def __init__(self) -> None:
        self.level = "INFO"
        self.changed: Callable[[str], None] = lambda _level: None

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
                raise Refused(ErrorCode.INVALID_REQUEST, words)
            if one.config_operation not in (OPERATION_SET, OPERATION_DELETE):
                raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported operation type {one.config_operation}")
            if one.name != ROOT:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{resource}: Logger {one.name} does not exist!")
            if one.config_operation == OPERATION_DELETE:
                words = f"Removing the log level of the {ROOT} logger is not allowed"
                raise Refused(ErrorCode.INVALID_REQUEST, words)
            if one.value not in LEVELS:
                words = f"Cannot set the log level of {ROOT} to {one.value} as it is not a supported log level."
                raise Refused(
                    ErrorCode.INVALID_REQUEST, f"{resource}: {words} Valid log levels are {', '.join(LEVELS)}"
                )
        for one in operations:
            if not validate_only and one.value is not None:
                self.level = one.value
                self.changed(one.value)
