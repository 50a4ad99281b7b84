"""The settings that a topic may have: Kafka 2.8's names, types, defaults and ranges, and what each means here.

One table serves all code that validates, describes or changes a topic's config: topic creation in the controller, and
config requests in the broker. Pure. Values are texts, as in ZooKeeper and on the wire; `controller.storage.settings`
converts them for a log.

Kafka 2.8's rules for topic names. Pure. The rules for topic settings are in `topic_settings.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from controller.protocol.admin import (
    CONFIG_TYPE_BOOLEAN,
    CONFIG_TYPE_DOUBLE,
    CONFIG_TYPE_INT,
    CONFIG_TYPE_LIST,
    CONFIG_TYPE_LONG,
    CONFIG_TYPE_STRING,
)
from controller.zookeeper.codecs_columns import topic_name_fault as name_fault

__all__ = ["collisions", "metric_name", "name_fault"]


def metric_name(name: str) -> str:
    """Two topics with the same one collide: metrics can't tell a dot from an underscore."""
    return name.replace(".", "_")


def collisions(name: str, others: Iterable[str]) -> list[str]:
    """Those of `others` that `name` collides with."""
    wanted = metric_name(name)
    return sorted(other for other in others if other != name and metric_name(other) == wanted)


INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
Check = Callable[[str], str | None]
"""What a text should have been; None if it is."""


class TopicSetting(msgspec.Struct, frozen=True):
    """`kind`: a CONFIG_TYPE_ number. `broker`: the broker's setting whose value is the default of a topic that has
    none ("": there is none). `in_use`: whether anything here goes by it; one that is not is kept, shown and checked,
    so that a Kafka broker beside this one may."""

    name: str
    kind: int
    default: str
    broker: str
    check: Check
    documentation: str
    in_use: bool = True

    def fault(self, text: str, name: str | None = None) -> str | None:
        """Return Kafka's error message for a value, or None if it is valid.

        `name`: the setting's name in the request, if it is not the topic's name for it.
        """
        expected = self.check(text.strip())
        return None if expected is None else f"Invalid value {text} for configuration {name or self.name}: {expected}"


def elements(text: str) -> tuple[str, ...]:
    """Return the elements of a list setting."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def whole_number(kind: str, least: int, most: int) -> Check:
    def check(text: str) -> str | None:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text) is None or not -most - 1 <= int(text) <= most:
            return f"Not a number of type {kind}"
        return f"Value must be at least {least}" if int(text) < least else None

    return check


def _is_boolean(text: str) -> str | None:
    return None if text.lower() in ("true", "false") else "Expected value to be either true or false"


def _decimal(text: str) -> str | None:
    known = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text)
    return None if known else "Not a number of type DOUBLE"


def _share(text: str) -> str | None:
    if (wrong := _decimal(text)) is not None:
        return wrong
    return None if 0 <= float(text) <= 1 else "Value must be between 0 and 1"


def _one_of(*values: str) -> Check:
    def check(text: str) -> str | None:
        return None if text in values else f"String must be one of: {', '.join(values)}"

    return check


def _each_of(*values: str) -> Check:
    def check(text: str) -> str | None:
        wrong = next((one for one in elements(text) if one not in values), None)
        return None if wrong is None else f"String must be one of: {', '.join(values)}"

    return check


def _throttled(text: str) -> str | None:
    if text == "*" or all(re.fullmatch(r"[0-9]+:[0-9]+", one) for one in elements(text)):
        return None
    return "must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],..."


def _version(text: str) -> str | None:
    known = re.fullmatch(r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?", text)
    return None if known else "a version of Kafka, such as 2.8 or 2.8-IV1"


def _int(name: str, default: int, least: int, broker: str, documentation: str, in_use: bool = True) -> TopicSetting:
    check = whole_number("INT", least, INT_MAX)
    return TopicSetting(name, CONFIG_TYPE_INT, str(default), broker, check, documentation, in_use)


def _double(name: str, default: str, documentation: str, in_use: bool = False) -> TopicSetting:
    return TopicSetting(name, CONFIG_TYPE_DOUBLE, default, "", _decimal, documentation, in_use)


def _long(name: str, default: int, least: int, broker: str, documentation: str, in_use: bool = True) -> TopicSetting:
    check = whole_number("LONG", least, LONG_MAX)
    return TopicSetting(name, CONFIG_TYPE_LONG, str(default), broker, check, documentation, in_use)


def _boolean(name: str, default: str, broker: str, documentation: str, in_use: bool = True) -> TopicSetting:
    return TopicSetting(name, CONFIG_TYPE_BOOLEAN, default, broker, _is_boolean, documentation, in_use)


DAY_MS = 24 * 3600 * 1000
_NOT_HERE = "Kept for Kafka brokers; nothing here goes by it."

_TABLE: tuple[TopicSetting, ...] = (
    _long(
        "camerlengo.flush.bytes.per.second",
        LONG_MAX,
        1,
        "camerlengo.log.flush.bytes.per.second",
        "How many bytes may wait until what was appended is forced to disk.",
    ),
    TopicSetting(
        "camerlengo.follower.tier",
        CONFIG_TYPE_STRING,
        "ssd",
        "camerlengo.follower.tier",
        _one_of("ssd", "hdd"),
        "Where followers append, on brokers with log.dirs.tiers; leaders append to an SSD.",
    ),
    TopicSetting(
        "cleanup.policy",
        CONFIG_TYPE_LIST,
        "delete",
        "log.cleanup.policy",
        _each_of("compact", "delete"),
        "Whether old segments are deleted (delete), and whether of each key the last record is kept (compact).",
    ),
    TopicSetting(
        "compression.type",
        CONFIG_TYPE_STRING,
        "producer",
        "compression.type",
        _one_of("producer", "uncompressed", "zstd", "lz4", "snappy", "gzip"),
        "Records are kept as their producer compressed them, whatever this says.",
        in_use=False,
    ),
    _long(
        "delete.retention.ms",
        DAY_MS,
        0,
        "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps a record without a value, and a transaction's marker.",
    ),
    _long("file.delete.delay.ms", 60_000, 0, "log.segment.delete.delay.ms", _NOT_HERE, in_use=False),
    _long(
        "flush.messages",
        LONG_MAX,
        1,  # Kafka: 0
        "log.flush.interval.messages",
        "After how many records a log is forced to disk.",
    ),
    _long("flush.ms", LONG_MAX, 0, "log.flush.interval.ms", "After how long what was appended is forced to disk."),
    TopicSetting(
        "follower.replication.throttled.replicas",
        CONFIG_TYPE_LIST,
        "",
        "",
        _throttled,
        "Which replicas catch up no faster than their broker's follower.replication.throttled.rate.",
    ),
    _int(
        "index.interval.bytes", 4096, 0, "log.index.interval.bytes", "How many bytes of a log one index entry is for."
    ),
    TopicSetting(
        "leader.replication.throttled.replicas",
        CONFIG_TYPE_LIST,
        "",
        "",
        _throttled,
        "Which replicas catch up no faster than their leader's leader.replication.throttled.rate.",
    ),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        "log.cleaner.max.compaction.lag.ms",
        "After how long a record of a compacted topic is compacted, however little is dirty.",
    ),
    _int("max.message.bytes", 1024**2 + 12, 0, "message.max.bytes", "How large a record batch may be, as it is sent."),
    _boolean("message.downconversion.enable", "true", "log.message.downconversion.enable", _NOT_HERE, in_use=False),
    TopicSetting(
        "message.format.version",
        CONFIG_TYPE_STRING,
        "2.8-IV1",
        "log.message.format.version",
        _version,
        "Batches are kept in the form of Kafka 0.11 and later, whatever this says.",
        in_use=False,
    ),
    _long(
        "message.timestamp.difference.max.ms",
        LONG_MAX,
        0,
        "log.message.timestamp.difference.max.ms",
        "How far a record's time may be from the broker's, where message.timestamp.type is CreateTime.",
    ),
    TopicSetting(
        "message.timestamp.type",
        CONFIG_TYPE_STRING,
        "CreateTime",
        "log.message.timestamp.type",
        _one_of("CreateTime", "LogAppendTime"),
        "Whether a record keeps its producer's time or is given that of its append.",
    ),
    TopicSetting(
        "min.cleanable.dirty.ratio",
        CONFIG_TYPE_DOUBLE,
        "0.5",
        "log.cleaner.min.cleanable.ratio",
        _share,
        "Above which share of bytes that were not cleaned yet a compacted log is cleaned.",
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "How long a record of a compacted topic stays as it is.",
    ),
    _int(
        "min.insync.replicas",
        1,
        1,
        "min.insync.replicas",
        "How many replicas must be in sync for a record sent with acks=all to be taken.",
    ),
    _boolean("preallocate", "false", "log.preallocate", _NOT_HERE, in_use=False),
    _long(
        "retention.bytes",
        -1,
        -1,  # Kafka: no limit
        "log.retention.bytes",
        "How large a partition may grow before its oldest segments are deleted; -1: as it will.",
    ),
    _long("retention.ms", 7 * DAY_MS, -1, "log.retention.ms", "How long records are kept; -1: for ever."),
    _int("segment.bytes", 1024**3, 14, "log.segment.bytes", "How large one file of a log grows."),
    _int("segment.index.bytes", 10 * 1024**2, 24, "log.index.size.max.bytes", "How large an index grows."),  # Kafka: 0
    _long(
        "segment.jitter.ms",
        0,
        0,
        "log.roll.jitter.ms",
        "How much earlier than segment.ms a new file may be begun, so that partitions do not roll all at once.",
    ),
    _long("segment.ms", 7 * DAY_MS, 1, "log.roll.ms", "After how long a new file is begun, full or not."),
    _boolean(
        "unclean.leader.election.enable",
        "false",
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may lead if no other can: records are lost then.",
    ),
)

TOPIC_SETTINGS: Mapping[str, TopicSetting] = MappingProxyType({one.name: one for one in _TABLE})
"""By name, in the order of names."""

BY_BROKER_NAME: Mapping[str, TopicSetting] = MappingProxyType({one.broker: one for one in _TABLE if one.broker})
"""The settings of topics by the broker's setting that is their default."""


THROTTLE_RATES: Mapping[str, TopicSetting] = MappingProxyType(
    {
        "leader.replication.throttled.rate": _long(
            "leader.replication.throttled.rate",
            LONG_MAX,
            0,
            "",
            "How many bytes a second leave for replicas that are not in sync.",
        ),
        "follower.replication.throttled.rate": _long(
            "follower.replication.throttled.rate",
            LONG_MAX,
            0,
            "",
            "How many bytes a second come to replicas here that are not in sync.",
        ),
    }
)
"""Of brokers alone, and dynamic alone: for the replicas that topics' `*.replication.throttled.replicas` name."""


_NO_EFFECT = "Kept for Kafka brokers: it has no effect on this one."
BROKER_ALONE: Mapping[str, TopicSetting] = MappingProxyType(
    {
        one.name: one
        for one in (
            _int("background.threads", 10, 1, "", _NO_EFFECT, in_use=False),
            _long(
                "log.cleaner.backoff.ms", 15_000, 0, "", "How long the log cleaner waits when no log is to be cleaned."
            ),
            _long(
                "log.cleaner.dedupe.buffer.size",
                134_217_728,
                1,
                "",
                "How many bytes the log cleaner's map of keys may take: 256 for each key.",
            ),
            _double(
                "log.cleaner.io.buffer.load.factor",
                "0.9",
                "How full the log cleaner's map of keys may be.",
                in_use=True,
            ),
            _int(
                "log.cleaner.io.buffer.size",
                524_288,
                0,
                "",
                "How many bytes of a log the log cleaner reads in two pieces of work.",
            ),
            _double(
                "log.cleaner.io.max.bytes.per.second",
                "1.7976931348623157E308",
                "How many bytes the log cleaner reads and writes in a second at most.",
                in_use=True,
            ),
            _int("log.cleaner.threads", 1, 0, "", _NO_EFFECT, in_use=False),
            _int("num.io.threads", 8, 1, "", _NO_EFFECT, in_use=False),
            _int("num.network.threads", 3, 1, "", _NO_EFFECT, in_use=False),
            _int("num.recovery.threads.per.data.dir", 1, 1, "", _NO_EFFECT, in_use=False),
            _long("replica.alter.log.dirs.io.max.bytes.per.second", LONG_MAX, 0, "", _NO_EFFECT, in_use=False),
        )
    }
)
"""Of brokers alone, and dynamic: the log cleaner's, and what has no part here and is kept, shown and checked."""


ALONE_IN_USE = frozenset(name for name, one in BROKER_ALONE.items() if one.in_use)


def faults_alone(config: Mapping[str, str]) -> list[str]:
    """Kafka's error messages for those of a broker's properties that are of `BROKER_ALONE` and in use."""
    faults = [BROKER_ALONE[name].fault(text) for name, text in config.items() if name in ALONE_IN_USE]
    return [fault for fault in faults if fault is not None]


def config_fault(config: Mapping[str, str]) -> str | None:
    """Return Kafka's error message for a topic's settings, or None if they are valid."""
    for name, value in config.items():
        setting = TOPIC_SETTINGS.get(name)
        fault = f"Unknown topic config name: {name}" if setting is None else setting.fault(value)
        if fault is not None:
            return fault
    least, most = (int(config.get(name, TOPIC_SETTINGS[name].default)) for name in _LAGS)
    if least > most:
        return f"conflict topic config setting {_LAGS[0]} ({least}) > {_LAGS[1]} ({most})"
    return None


_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
