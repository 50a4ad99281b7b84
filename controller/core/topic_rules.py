"""Kafka 2.8's rules for topic names. Pure. The rules for topic settings are in `topic_settings.py`."""

from __future__ import annotations

from collections.abc import Iterable

from controller.zookeeper.znode_sense import topic_name_fault as name_fault

__all__ = ["collisions", "metric_name", "name_fault"]


def metric_name(name: str) -> str:
    """Two topics with the same one collide: metrics can't tell a dot from an underscore."""
    return name.replace(".", "_")


def collisions(name: str, others: Iterable[str]) -> list[str]:
    """Those of `others` that `name` collides with."""
    wanted = metric_name(name)
    return sorted(other for other in others if other != name and metric_name(other) == wanted)
