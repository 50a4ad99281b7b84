"""A topic's settings: Kafka's words for what is wrong, and that storage takes all that is right."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from controller.core.topic_settings import (
    BROKER_ALONE,
    BY_BROKER_NAME,
    THROTTLE_RATES,
    TOPIC_SETTINGS,
    config_fault,
    elements,
)
from controller.storage.settings import BROKER_NAMES, LogSettings

OF_LOGS = [one for one in fields(LogSettings) if one.metadata.get("topic")]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("no.such", "1", "Unknown topic config name: no.such"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("retention.ms", "1e3", "Invalid value 1e3 for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "9" * 19, "Not a number of type LONG"),
        ("retention.ms", "1" * 5_000, "Not a number of type LONG"),
        ("segment.bytes", "13", "Value must be at least 14"),
        ("segment.bytes", str(2**31), "Not a number of type INT"),
        ("segment.bytes", "", "Not a number of type INT"),
        ("segment.index.bytes", "23", "Value must be at least 24"),
        ("flush.messages", "0", "Value must be at least 1"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("unclean.leader.election.enable", "yes", "Expected value to be either true or false"),
        ("cleanup.policy", "delete,shrink", "String must be one of: compact, delete"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("compression.type", "lzma", "String must be one of: producer, uncompressed, zstd, lz4, snappy, gzip"),
        ("min.cleanable.dirty.ratio", "1.1", "Value must be between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("leader.replication.throttled.replicas", "1:2,3", "must be the literal '*' or a list"),
        ("message.format.version", "new", "a version of Kafka"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(name: str, value: str, words: str) -> None:
    fault = config_fault({name: value})
    assert fault is not None
    assert words in fault
    assert name in fault


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", " 5 "),
        ("retention.bytes", "-1"),
        ("cleanup.policy", "compact, delete"),
        ("unclean.leader.election.enable", "TRUE"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("follower.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("message.format.version", "2.7-IV2"),
    ],
)
def test_what_is_right_is_taken(name: str, value: str) -> None:
    assert config_fault({name: value}) is None


def test_settings_that_contradict_each_other_are_refused() -> None:
    fault = config_fault({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    assert fault == "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"


def test_every_default_is_a_value() -> None:
    assert config_fault({one.name: one.default for one in TOPIC_SETTINGS.values()}) is None


def test_the_table_is_in_the_order_of_names_and_each_broker_name_is_one_topics() -> None:
    assert list(TOPIC_SETTINGS) == sorted(TOPIC_SETTINGS)
    assert len(BY_BROKER_NAME) == sum(one.broker != "" for one in TOPIC_SETTINGS.values())


@pytest.mark.parametrize("one", OF_LOGS, ids=lambda one: str(one.metadata["topic"]))
def test_a_logs_settings_are_in_the_table_with_the_same_default_and_range(one: object) -> None:
    metadata, default = one.metadata, one.default  # type: ignore[attr-defined]
    name = metadata["topic"]
    setting = TOPIC_SETTINGS[name]
    assert setting.in_use
    assert (setting.broker, setting.default) == (metadata["broker"], str(default))
    for value in (metadata["least"], metadata["most"]):
        assert setting.fault(str(value)) is None
        LogSettings().with_topic({name: str(value)})
    for value in (metadata["least"] - 1, metadata["most"] + 1):
        assert setting.fault(str(value)) is not None
        with pytest.raises(ValueError, match=metadata["broker"]):
            LogSettings().with_topic({name: str(value)})


def test_the_brokers_names_of_logs_are_known_here() -> None:
    others = {
        "log.roll.hours",
        "log.roll.jitter.hours",
        "log.retention.hours",
        "log.retention.minutes",
        "transactional.id.expiration.ms",
        "camerlengo.decompressed.batch.max.bytes",
        "camerlengo.producer.ids.per.partition.max",
    }
    assert set(BROKER_NAMES) - others <= set(BY_BROKER_NAME)


@pytest.mark.parametrize(("text", "found"), [("", ()), (" ", ()), ("a", ("a",)), ("a, b,c", ("a", "b", "c"))])
def test_a_list_is_taken_apart_at_its_commas(text: str, found: tuple[str, ...]) -> None:
    assert elements(text) == found


PROBES = (
    [
        str(number)
        for number in (-(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -2, -1, 0, 1, 2, 3, 13, 14, 23, 24, 25, 1024)
    ]
    + [str(number) for number in (2**31 - 1, 2**31, 2**63 - 1, 2**63)]
    + [
        "-0.1",
        "0.0",
        "0.5",
        "1",
        "1.0",
        "1.1",
        "5e-1",
        "1e",
        "true",
        "FALSE",
        "yes",
        "x",
        "",
        "*",
        "0:1",
        "0:1,2:3",
        "0",
    ]
    + ["delete", "compact,delete", "delete,x", "gzip", "zstd", "producer", "CreateTime", "2.8", "2.8-IV1", "2"]
)
EXPECTED = Path(__file__).with_name("topic_settings.txt")


def table() -> str:
    """A setting a line, those of brokers alone after the topics': its kind, default, broker's name, whether it is in
    use, and which probes it accepts."""
    lines = []
    for one in (*TOPIC_SETTINGS.values(), *THROTTLE_RATES.values(), *BROKER_ALONE.values()):
        taken = " ".join(repr(text) for text in dict.fromkeys(PROBES) if one.fault(text) is None)
        used = "in use" if one.in_use else "kept"
        lines.append(f"{one.name} | {one.kind} | {one.default} | {one.broker} | {used} | {taken}\n")
    return "".join(lines)


def test_the_table_is_as_it_is_written_down(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite-golden"):
        EXPECTED.write_text(table(), encoding="utf-8")
    assert table() == EXPECTED.read_text(encoding="utf-8")
