"""The settings of client quotas and of limits on connections: how rates are measured, what clients without another
quota have, and how many connections there may be."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.broker.quotas.connections import UNLIMITED, ConnectionSettings
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
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)


_FIELDS: Mapping[str, tuple[str, str, int, int]] = {
    "quota.window.num": ("num", "11", 1, 2**31 - 1),
    "quota.window.size.seconds": ("seconds", "1", 1, 2**31 - 1),
    "controller.quota.window.num": ("mutation_num", "11", 1, 2**31 - 1),
    "controller.quota.window.size.seconds": ("mutation_seconds", "1", 1, 2**31 - 1),
    "quota.producer.default": ("producer_default", str(NO_QUOTA), 1, NO_QUOTA),
    "quota.consumer.default": ("consumer_default", str(NO_QUOTA), 1, NO_QUOTA),
    "max.connections": ("connections", str(UNLIMITED), 0, UNLIMITED),
    "max.connections.per.ip": ("per_ip", str(UNLIMITED), 0, UNLIMITED),
    "max.connection.creation.rate": ("rate", str(UNLIMITED), 0, UNLIMITED),
}
_OVERRIDES = "max.connections.per.ip.overrides"
LISTENER_LIMITS = frozenset(["max.connections", "max.connection.creation.rate"])
"""Settings that a listener may have of its own: listener.name.NAME.max.connections."""


def quota_table(integer: Parsers) -> Mapping[str, tuple[str, str | None, Callable[[str], Any]]]:
    """What a table of the broker's settings has for quotas: the field, the default and the parser of each name."""
    table: dict[str, tuple[str, str | None, Callable[[str], Any]]] = {
        _OVERRIDES: ("quota_overrides", "", lambda text: text)
    }
    for name, (meaning, default, least, most) in _FIELDS.items():
        table[name] = (f"quota_{meaning}", default, integer(least, most))
    return table


def take_quotas(fields: dict[str, Any], given: Mapping[str, str]) -> tuple[QuotaSettings, list[str]]:
    """Take what `quota_table` parsed out of `fields`, and return what is wrong with it and with the settings of
    listeners and addresses."""
    values = {meaning: fields.pop(f"quota_{meaning}") for meaning, *_ in _FIELDS.values()}
    overrides, problems = _overrides(fields.pop("quota_overrides"))
    of_listeners: dict[str, dict[str, int]] = {name: {} for name in LISTENER_LIMITS}
    for name, text in given.items():
        limit = of_listener(name)
        if limit is None:
            continue
        listener = name.removeprefix("listener.name.").partition(".")[0].upper()
        if not text.strip().isdecimal() or not 0 < int(text) <= UNLIMITED:
            problems.append(f"{name}={text.strip()}: expected a whole number, 1 or more")
        else:
            of_listeners[limit][listener] = int(text)
    if values["per_ip"] == 0 and not overrides:
        problems.append(f"max.connections.per.ip=0: expected {_OVERRIDES}, without which no client could connect")
    window = Window(values["num"], values["seconds"] * 1_000)
    listeners = {listener.name for listener in fields["listeners"]}
    between_brokers = (fields["inter_broker_listener"] or fields["inter_broker_security"] or "PLAINTEXT").upper()
    connections = ConnectionSettings(
        values["connections"],
        of_listeners["max.connections"],
        values["per_ip"],
        overrides,
        values["rate"],
        of_listeners["max.connection.creation.rate"],
        between_brokers if len(listeners) > 1 else None,
        window,
    )
    mutations = Window(values["mutation_num"], values["mutation_seconds"] * 1_000)
    settings = QuotaSettings(window, mutations, values["producer_default"], values["consumer_default"], connections)
    return settings, problems


def of_listener(name: str) -> str | None:
    """Return which of `LISTENER_LIMITS` a setting is for one listener; None for any other setting."""
    if not name.startswith("listener.name."):
        return None
    own = name.removeprefix("listener.name.").partition(".")[2]
    return own if own in LISTENER_LIMITS else None


def _overrides(text: str) -> tuple[dict[str, int], list[str]]:
    """Of max.connections.per.ip.overrides: by address."""
    found: dict[str, int] = {}
    for part in (one.strip() for one in text.split(",") if one.strip()):
        host, _, count = part.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip().strip("[]")))
            found[address] = int(count)
        except ValueError:
            return {}, [f"{_OVERRIDES}={text}: expected ADDRESS:NUMBER, separated by commas; not {part!r}"]
        if not 0 <= found[address] <= UNLIMITED:
            return {}, [f"{_OVERRIDES}={text}: expected a number from 0 on; not {part!r}"]
    return found, []
