"""What a topic may be called and which settings it may have, by Kafka 2.8's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")

CONFIGS = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
_BOOLEANS = frozenset(
    {"message.downconversion.enable", "preallocate", "remote.storage.enable", "unclean.leader.election.enable"}
)


def name_fault(name: str) -> str | None:
    """What is wrong with a topic's name; None if nothing is."""
    if not name:
        return "Topic name is illegal, it can't be empty"
    if name in (".", ".."):
        return 'Topic name cannot be "." or ".."'
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is illegal, it can't be longer than {NAME_LENGTH_MAX} characters, topic name: {name}"
    if not _LEGAL.fullmatch(name):
        return (
            f'Topic name "{name}" is illegal, it contains a character other than ASCII alphanumerics, ".", "_" and "-"'
        )
    return None


def metric_name(name: str) -> str:
    """Two topics with the same one collide: metrics can't tell a dot from an underscore."""
    return name.replace(".", "_")


def collisions(name: str, others: Iterable[str]) -> list[str]:
    """Those of `others` that `name` collides with."""
    wanted = metric_name(name)
    return sorted(other for other in others if other != name and metric_name(other) == wanted)


def config_fault(config: Mapping[str, str]) -> str | None:
    """What is wrong with a topic's settings; None if nothing is. Of values, only booleans are looked at."""
    for name, value in config.items():
        if name not in CONFIGS:
            return f"Unknown topic config name: {name}"
        if name in _BOOLEANS and value.strip().lower() not in ("true", "false"):
            return f"Invalid value {value} for configuration {name}: Expected value to be either true or false"
    return None
