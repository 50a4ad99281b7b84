"""The settings of client quotas: how rates are measured, and what clients without another quota have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.broker.quotas.rules import Window

Parsers = Callable[[int, int], Callable[[str], int]]
NO_QUOTA = 2**63 - 1


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Bytes a second of the defaults, by client id; the windows are those of Kafka's quota.* and controller.quota.*."""

    window: Window = field(default_factory=Window)
    mutation_window: Window = field(default_factory=Window)
    producer_default: int = NO_QUOTA
    consumer_default: int = NO_QUOTA


_FIELDS: Mapping[str, tuple[str, str, int, int]] = {
    "quota.window.num": ("num", "11", 1, 2**31 - 1),
    "quota.window.size.seconds": ("seconds", "1", 1, 2**31 - 1),
    "controller.quota.window.num": ("mutation_num", "11", 1, 2**31 - 1),
    "controller.quota.window.size.seconds": ("mutation_seconds", "1", 1, 2**31 - 1),
    "quota.producer.default": ("producer_default", str(NO_QUOTA), 1, NO_QUOTA),
    "quota.consumer.default": ("consumer_default", str(NO_QUOTA), 1, NO_QUOTA),
}


def quota_table(integer: Parsers) -> Mapping[str, tuple[str, str | None, Callable[[str], Any]]]:
    """What a table of the broker's settings has for quotas: the field, the default and the parser of each name."""
    return {
        name: (f"quota_{meaning}", default, integer(least, most))
        for name, (meaning, default, least, most) in _FIELDS.items()
    }


def take_quotas(fields: dict[str, Any]) -> QuotaSettings:
    """Take what `quota_table` parsed out of `fields`."""
    values = {meaning: fields.pop(f"quota_{meaning}") for meaning, *_ in _FIELDS.values()}
    return QuotaSettings(
        Window(values["num"], values["seconds"] * 1_000),
        Window(values["mutation_num"], values["mutation_seconds"] * 1_000),
        values["producer_default"],
        values["consumer_default"],
    )
