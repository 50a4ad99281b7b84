"""The settings of client quotas and of limits on connections: how rates are measured, what clients without another
quota have, and how many connections there may be."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.broker.quotas.connections import UNLIMITED, ConnectionSettings
from controller.broker.quotas.rules import Window
from controller.core.topic_settings import TopicSetting, whole_number
from controller.protocol.admin import CONFIG_TYPE_INT, CONFIG_TYPE_STRING

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


def _overrides_fault(text: str) -> str | None:
    return _overrides(text)[1]


_DYNAMIC = (
    ("max.connections", "The maximum number of connections; further ones wait."),
    ("max.connections.per.ip", "The maximum number of connections of one address."),
    ("max.connection.creation.rate", "How many connections a second are accepted; further ones wait."),
)
CONNECTION_LIMITS: Mapping[str, TopicSetting] = {
    name: TopicSetting(name, CONFIG_TYPE_INT, str(UNLIMITED), "", whole_number("INT", 0, UNLIMITED), words)
    for name, words in _DYNAMIC
} | {
    _OVERRIDES: TopicSetting(
        _OVERRIDES,
        CONFIG_TYPE_STRING,
        "",
        "",
        _overrides_fault,
        "The same by address: ADDRESS:NUMBER, separated by commas.",
    )
}
"""What may be altered while a broker runs."""
_OF_LISTENER = TopicSetting("", CONFIG_TYPE_INT, str(UNLIMITED), "", whole_number("INT", 1, UNLIMITED), "")


def connection_limit(name: str) -> TopicSetting | None:
    """Return the limit on connections of that name, which may be a listener's; None for any other setting."""
    return _OF_LISTENER if of_listener(name) is not None else CONNECTION_LIMITS.get(name)


def limits_fault(config: Mapping[str, str]) -> str | None:
    """What is wrong with limits that are sound each by itself."""
    per_ip, overrides = config.get("max.connections.per.ip"), config.get(_OVERRIDES, "")
    if per_ip is not None and int(per_ip) == 0 and not overrides.strip():
        return f"max.connections.per.ip=0: expected {_OVERRIDES}, without which no client could connect"
    return None


def altered_limits(static: ConnectionSettings, *configs: Mapping[str, str]) -> tuple[ConnectionSettings, list[str]]:
    """Return the limits of server.properties with those of dynamic configs, of which later ones take precedence, and
    what is wrong in these. That is passed over."""
    values: dict[str, str] = {}
    problems: list[str] = []
    most_of, rate_of = dict(static.most_of), dict(static.rate_of)
    for config in configs:
        if (fault := limits_fault(_sound(config, problems))) is not None:
            problems.append(fault)
            config = {name: text for name, text in config.items() if name != "max.connections.per.ip"}
        for name, text in _sound(config, []).items():
            limit = of_listener(name)
            if limit is None:
                values[name] = text
            else:
                (most_of if limit == "max.connections" else rate_of)[listener_of(name)] = int(text)
    numbers = {name: int(text) for name, text in values.items() if name != _OVERRIDES}
    settings = replace(
        static,
        most=numbers.get("max.connections", static.most),
        most_of=most_of,
        per_ip=numbers.get("max.connections.per.ip", static.per_ip),
        per_ip_overrides=_overrides(values[_OVERRIDES])[0] if _OVERRIDES in values else static.per_ip_overrides,
        rate=numbers.get("max.connection.creation.rate", static.rate),
        rate_of=rate_of,
    )
    return settings, problems


def _sound(config: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """The limits in a config that are sound each by itself; what is wrong with the others is added to `problems`."""
    found: dict[str, str] = {}
    for name, text in config.items():
        limit = connection_limit(name)
        if limit is None:
            continue
        if (fault := limit.fault(text, name)) is None:
            found[name] = text.strip()
        else:
            problems.append(fault)
    return found


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
    overrides, wrong = _overrides(fields.pop("quota_overrides"))
    problems = [] if wrong is None else [f"{_OVERRIDES}={given.get(_OVERRIDES, '')}: {wrong}"]
    of_listeners: dict[str, dict[str, int]] = {name: {} for name in LISTENER_LIMITS}
    for name, text in given.items():
        limit = of_listener(name)
        if limit is None:
            continue
        listener = listener_of(name)
        if not text.strip().isdecimal() or not 0 < int(text) <= UNLIMITED:
            problems.append(f"{name}={text.strip()}: expected a whole number, 1 or more")
        else:
            of_listeners[limit][listener] = int(text)
    per_ip = {"max.connections.per.ip": str(values["per_ip"]), _OVERRIDES: given.get(_OVERRIDES, "")}
    if (fault := limits_fault(per_ip)) is not None and not problems:
        problems.append(fault)
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


def listener_of(name: str) -> str:
    """Of a setting that `of_listener` knows."""
    return name.removeprefix("listener.name.").partition(".")[0].upper()


def _overrides(text: str) -> tuple[dict[str, int], str | None]:
    """Of max.connections.per.ip.overrides: by address, and what is wrong."""
    found: dict[str, int] = {}
    for part in (one.strip() for one in text.split(",") if one.strip()):
        host, _, count = part.rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.strip().strip("[]")))
            found[address] = int(count)
        except ValueError:
            return {}, f"expected ADDRESS:NUMBER, separated by commas; not {part!r}"
        if not 0 <= found[address] <= UNLIMITED:
            return {}, f"expected a number from 0 on; not {part!r}"
    return found, None
