"""The `sasl.*` settings of one listener, and the users that JAAS names in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from controller.broker.security.scram import MECHANISMS
from controller.broker.security.tls_settings import option

PLAIN = "PLAIN"
KNOWN = (PLAIN, *MECHANISMS)
READ_SASL_SETTINGS = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    *(f"{mechanism.lower()}.sasl.jaas.config" for mechanism in KNOWN),
    *(f"{mechanism.lower()}.connections.max.reauth.ms" for mechanism in KNOWN),
)


class SaslSettings(msgspec.Struct, frozen=True):
    """`users`: of PLAIN, with their passwords. `own`: the user and password by which this broker logs in to others."""

    mechanisms: tuple[str, ...]
    users: Mapping[str, str]
    own_mechanism: str
    own: tuple[str, str] | None
    max_session_ms: int


_USE = "required|requisite|sufficient|optional"
_JAAS = re.compile(rf'\s*[\w.]+\s+(?:{_USE})(?P<options>(?:[^;"]|"[^"]*")*);\s*')
_OPTION = re.compile(r"\s*(?P<name>[^\s=]+)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<bare>[^\s\"]+))")


def jaas_options(text: str) -> dict[str, str]:
    """The options of one login module. Raises ValueError, which shows none of it: there are passwords in it."""
    match = _JAAS.fullmatch(text)
    if match is None:
        raise ValueError('expected MODULE required NAME="VALUE"... ;')
    options, rest = {}, match["options"]
    at = 0
    while rest[at:].strip():
        found = _OPTION.match(rest, at)
        if found is None:
            raise ValueError('expected MODULE required NAME="VALUE"... ;')
        options[found["name"]] = found["bare"] if found["quoted"] is None else found["quoted"]
        at = found.end()
    return options


def sasl_settings(
    given: Mapping[str, str], listener: str, *, between_brokers: bool
) -> tuple[SaslSettings | None, list[str]]:
    """The settings, or a sentence for each that is wrong."""
    problems: list[str] = []
    enabled = option(given, listener, "sasl.enabled.mechanisms", "GSSAPI")
    mechanisms = tuple(one.strip().upper() for one in enabled.split(",") if one.strip())
    for mechanism in mechanisms:
        if mechanism not in KNOWN:
            problems.append(f"sasl.enabled.mechanisms={mechanism}: expected {', '.join(KNOWN)} for listener {listener}")
    own_mechanism = given.get("sasl.mechanism.inter.broker.protocol", "GSSAPI").strip().upper()
    if between_brokers and own_mechanism not in mechanisms:
        problems.append(f"sasl.mechanism.inter.broker.protocol={own_mechanism}: expected one of listener {listener}'s")
    options: dict[str, dict[str, str]] = {}
    for mechanism in dict.fromkeys((*mechanisms, own_mechanism)):
        text = option(given, listener, f"{mechanism.lower()}.sasl.jaas.config")
        text = text or option(given, listener, "sasl.jaas.config")
        try:
            options[mechanism] = jaas_options(text) if text else {}
        except ValueError as error:
            problems.append(f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config: {error}")
    users = {name[5:]: value for name, value in options.get(PLAIN, {}).items() if name.startswith("user_")}
    if PLAIN in mechanisms and not users:
        problems.append(f'listener.name.{listener.lower()}.plain.sasl.jaas.config: expected user_NAME="PASSWORD"')
    own = options.get(own_mechanism, {})
    if between_brokers and not (own.get("username") and own.get("password")):
        problems.append(f"listener {listener}: expected username and password of {own_mechanism} in sasl.jaas.config")
    text = option(given, listener, "connections.max.reauth.ms", "0")
    if not text.isdecimal():
        problems.append(f"connections.max.reauth.ms={text}: expected a whole number, 0 or more")
    if problems:
        return None, problems
    login = (own["username"], own["password"]) if between_brokers else None
    return SaslSettings(mechanisms, users, own_mechanism, login, int(text)), []
