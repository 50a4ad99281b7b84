"""What a topic may be called, by Kafka 2.8's rules. Pure. What it may be set to is in `topic_settings.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


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
