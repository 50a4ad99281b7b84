"""A log's settings, under Kafka's names and with Kafka 2.8's defaults. Values; texts are parsed here, files are not
read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from statemachines.tier_placement import Tier

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
UNLIMITED = -1
FOLLOWER_TIER = "camerlengo.follower.tier"
"""Of a broker and of a topic."""
DIRTY_RATIO = "min.cleanable.dirty.ratio"


def _setting(default: int, broker: str, topic: str, least: int, most: int = LONG_MAX) -> int:
    metadata = {"broker": broker, "topic": topic, "least": least, "most": most}
    value: int = field(default=default, metadata=metadata)
    return value


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Each field has a name in the broker's properties and, most, one in a topic's config. ValueError for a value out
    of range. `retention_*` and `roll_ms`: see `from_broker` for the names that take precedence over others."""

    segment_bytes: int = _setting(1024**3, "log.segment.bytes", "segment.bytes", 14, INT_MAX)
    roll_ms: int = _setting(7 * 24 * 3600 * 1000, "log.roll.ms", "segment.ms", 1)
    roll_jitter_ms: int = _setting(0, "log.roll.jitter.ms", "segment.jitter.ms", 0)
    index_interval_bytes: int = _setting(4096, "log.index.interval.bytes", "index.interval.bytes", 0, INT_MAX)
    index_size_max_bytes: int = _setting(10 * 1024**2, "log.index.size.max.bytes", "segment.index.bytes", 24, INT_MAX)
    flush_messages: int = _setting(LONG_MAX, "log.flush.interval.messages", "flush.messages", 1)
    flush_bytes_per_second: int = _setting(
        LONG_MAX, "camerlengo.log.flush.bytes.per.second", "camerlengo.flush.bytes.per.second", 1
    )
    """A log is flushed as soon as so many bytes wait for it."""
    flush_ms: int = _setting(LONG_MAX, "log.flush.interval.ms", "flush.ms", 0)
    retention_bytes: int = _setting(UNLIMITED, "log.retention.bytes", "retention.bytes", UNLIMITED)
    retention_ms: int = _setting(7 * 24 * 3600 * 1000, "log.retention.ms", "retention.ms", UNLIMITED)
    max_message_bytes: int = _setting(1024**2 + 12, "message.max.bytes", "max.message.bytes", 0, INT_MAX)
    timestamp_difference_max_ms: int = _setting(
        LONG_MAX, "log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms", 0
    )
    producer_id_expiration_ms: int = _setting(
        7 * 24 * 3600 * 1000, "transactional.id.expiration.ms", "", 1, INT_MAX
    )  # in Kafka 2.8 the expiration of idempotent producers, too
    producer_ids_max: int = _setting(10_000, "camerlengo.producer.ids.per.partition.max", "", 1, INT_MAX)
    """The producer ids that a partition remembers; the one that appended longest ago is evicted first."""
    decompressed_bytes_max: int = _setting(32 * 1024**2, "camerlengo.decompressed.batch.max.bytes", "", 1024, INT_MAX)
    """The size of a batch's records when decompressed, unless `max_message_bytes` is larger."""
    min_compaction_lag_ms: int = _setting(0, "log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms", 0)
    max_compaction_lag_ms: int = _setting(LONG_MAX, "log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms", 1)
    delete_retention_ms: int = _setting(24 * 3600 * 1000, "log.cleaner.delete.retention.ms", "delete.retention.ms", 0)
    min_cleanable_dirty_ratio: float = 0.5
    """Above which share of dirty bytes a compacted log is cleaned: log.cleaner.min.cleanable.ratio."""
    log_append_time: bool = False
    """message.timestamp.type is LogAppendTime."""
    followers_on: Tier = Tier.SSD
    """Where followers append to a log on two tiers."""
    compacted: bool = False
    """cleanup.policy includes compact: each record needs a key, and the log cleaner cleans the log."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.metadata:
                value, least, most = getattr(self, one.name), one.metadata["least"], one.metadata["most"]
                if not least <= value <= most:
                    raise ValueError(f"{one.metadata['broker']}={value}: expected {least} to {most}")

    def with_topic(self, config: Mapping[str, str]) -> LogSettings:
        """These settings with what a topic's config says of them; its other names are left alone."""
        return self._replaced(config, "topic", "message.timestamp.type", "cleanup.policy", DIRTY_RATIO)

    @classmethod
    def from_broker(cls, properties: Mapping[str, str]) -> LogSettings:
        """From a broker's properties; names that are no log's are left alone. As in Kafka, `.ms` wins over
        `.minutes`, and that over `.hours`."""
        return cls().with_broker(properties)

    def with_broker(self, properties: Mapping[str, str]) -> LogSettings:
        """These settings with what a broker's properties say of them."""
        names = ("log.message.timestamp.type", "log.cleanup.policy", "log.cleaner.min.cleanable.ratio")
        return self._replaced(_in_ms(properties), "broker", *names)

    def topic_text(self, name: str) -> str:
        """The value of one of `TOPIC_NAMES`, as a topic's config would say it."""
        if name == FOLLOWER_TIER:
            return self.followers_on.value
        if name == "message.timestamp.type":
            return "LogAppendTime" if self.log_append_time else "CreateTime"
        if name == DIRTY_RATIO:
            return str(self.min_cleanable_dirty_ratio)
        return str(getattr(self, next(one.name for one in fields(self) if one.metadata.get("topic") == name)))

    def _replaced(
        self, texts: Mapping[str, str], side: str, timestamp_type: str, policy: str, ratio: str
    ) -> LogSettings:
        if not texts:
            return self
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        for one in fields(self):
            name = one.metadata.get(side) if one.metadata else None
            if name and name in texts:
                values[one.name] = _integer(name, texts[name])
        if timestamp_type in texts:
            if texts[timestamp_type] not in ("CreateTime", "LogAppendTime"):
                raise ValueError(f"{timestamp_type}={texts[timestamp_type]}: expected CreateTime or LogAppendTime")
            values["log_append_time"] = texts[timestamp_type] == "LogAppendTime"
        if FOLLOWER_TIER in texts:
            try:
                values["followers_on"] = Tier(texts[FOLLOWER_TIER].strip().lower())
            except ValueError:
                raise ValueError(f"{FOLLOWER_TIER}={texts[FOLLOWER_TIER]}: expected ssd or hdd") from None
        if policy in texts:
            policies = [one.strip() for one in texts[policy].split(",") if one.strip()]
            if not {"compact", "delete"}.issuperset(policies):
                raise ValueError(f"{policy}={texts[policy]}: expected compact, delete or both")
            values["compacted"] = "compact" in policies
        if ratio in texts:
            values["min_cleanable_dirty_ratio"] = _share(ratio, texts[ratio])
        return LogSettings(**values)


BROKER_NAMES: tuple[str, ...] = (
    *(one.metadata["broker"] for one in fields(LogSettings) if one.metadata),
    *(
        "log.cleaner.min.cleanable.ratio",
        "log.cleanup.policy",
        "log.message.timestamp.type",
        FOLLOWER_TIER,
        "log.roll.hours",
        "log.roll.jitter.hours",
        "log.retention.hours",
        "log.retention.minutes",
    ),
)
"""Every name of a broker's properties that `LogSettings.from_broker` looks at."""

TOPIC_NAMES: frozenset[str] = frozenset(
    [one.metadata["topic"] for one in fields(LogSettings) if one.metadata.get("topic")]
    + ["message.timestamp.type", FOLLOWER_TIER, DIRTY_RATIO]
)
"""Every name of a topic's config that `LogSettings.with_topic` looks at."""


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text}: expected a whole number") from None


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{name}={text}: expected a number from 0 to 1")
    return share


_LONGER = (
    ("log.retention.minutes", "log.retention.ms", 60_000),
    ("log.retention.hours", "log.retention.ms", 3_600_000),
    ("log.roll.hours", "log.roll.ms", 3_600_000),
    ("log.roll.jitter.hours", "log.roll.jitter.ms", 3_600_000),
)


def _in_ms(properties: Mapping[str, str]) -> dict[str, str]:
    found = dict(properties)
    for name, ms_name, factor in _LONGER:
        if name in properties and ms_name not in found:
            value = _integer(name, properties[name])
            found[ms_name] = str(value * factor if value >= 0 else value)
    return found
