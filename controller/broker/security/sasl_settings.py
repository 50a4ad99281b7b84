"""The `sasl.*` settings of one listener, and the users that JAAS names in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from controller.broker.security.oauth import OAUTHBEARER, OAuthSettings, TokenRules
from controller.broker.security.scram import MECHANISMS
from controller.broker.security.tls_settings import option

PLAIN = "PLAIN"
KNOWN = (PLAIN, *MECHANISMS, OAUTHBEARER)
ALLOW_UNSECURED = "camerlengo.sasl.oauthbearer.allow.unsecured.tokens"
_KEYS = "sasl.oauthbearer.jwks.endpoint.url"
_OAUTH = (
    ALLOW_UNSECURED,
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    _KEYS,
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
)
"""Kafka's since 3.1 (KIP-768), besides the first. Each may have the prefix `oauthbearer.` after a listener's."""
READ_SASL_SETTINGS = (
    *_OAUTH,
    *(f"oauthbearer.{name}" for name in _OAUTH),
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    *(f"{mechanism.lower()}.sasl.jaas.config" for mechanism in KNOWN),
    *(f"{mechanism.lower()}.connections.max.reauth.ms" for mechanism in KNOWN),
)


class SaslSettings(msgspec.Struct, frozen=True):
    """`users`: of PLAIN, with their passwords. `own`: the user and password by which this broker logs in to others.
    `max_session_ms`: by mechanism."""

    mechanisms: tuple[str, ...]
    users: Mapping[str, str]
    own_mechanism: str
    own: tuple[str, str] | None
    max_session_ms: Mapping[str, int]
    oauth: OAuthSettings | None = None


_CLAIM, _LIFETIME = "unsecuredLoginStringClaim_", "unsecuredLoginLifetimeSeconds"
"""Options of Kafka's for a login by an unsecured token."""
SKEW_MAX_S = 3_600
_USE = "required|requisite|sufficient|optional"
_JAAS = re.compile(rf'\s*[\w.]+\s+(?:{_USE})(?P<options>(?:[^;"]|"[^"]*")*);\s*')
_OPTION = re.compile(r"\s*(?P<name>[^\s=]+)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<bare>[^\s\"]+))")


def jaas_options(text: str) -> dict[str, str]:
    """The options of one login module; none of an empty text. Raises ValueError, which shows none of it: there are
    passwords in it."""
    if not text:
        return {}
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
    enabled = option(given, listener, "sasl.enabled.mechanisms", "GSSAPI")
    mechanisms = tuple(one.strip().upper() for one in enabled.split(",") if one.strip())
    problems = [
        f"sasl.enabled.mechanisms={mechanism}: expected {', '.join(KNOWN)} for listener {listener}"
        for mechanism in mechanisms
        if mechanism not in KNOWN
    ]
    own_mechanism = given.get("sasl.mechanism.inter.broker.protocol", "GSSAPI").strip().upper()
    if between_brokers and own_mechanism not in mechanisms:
        problems.append(f"sasl.mechanism.inter.broker.protocol={own_mechanism}: expected one of listener {listener}'s")
    options: dict[str, dict[str, str]] = {}
    for mechanism in dict.fromkeys((*mechanisms, own_mechanism)):
        try:
            options[mechanism] = jaas_options(_of_mechanism(given, listener, mechanism, "sasl.jaas.config"))
        except ValueError as error:
            problems.append(f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config: {error}")
    users = {name[5:]: value for name, value in options.get(PLAIN, {}).items() if name.startswith("user_")}
    if PLAIN in mechanisms and not users:
        problems.append(f'listener.name.{listener.lower()}.plain.sasl.jaas.config: expected user_NAME="PASSWORD"')
    own, oauth = options.get(own_mechanism, {}), None
    by_token = own_mechanism == OAUTHBEARER
    if OAUTHBEARER in mechanisms:
        logs_in = between_brokers and by_token
        oauth, wrong = _oauth_settings(given, listener, options.get(OAUTHBEARER, {}), logs_in=logs_in)
        problems += wrong
    if between_brokers and not by_token and not (own.get("username") and own.get("password")):
        problems.append(f"listener {listener}: expected username and password of {own_mechanism} in sasl.jaas.config")
    sessions: dict[str, int] = {}
    for mechanism in mechanisms:
        text = _of_mechanism(given, listener, mechanism, "connections.max.reauth.ms", "0")
        if text.isdecimal():
            sessions[mechanism] = int(text)
        else:
            problems.append(f"connections.max.reauth.ms={text}: expected a whole number, 0 or more")
    if problems:
        return None, problems
    login = (own["username"], own["password"]) if between_brokers and not by_token else None
    return SaslSettings(mechanisms, users, own_mechanism, login, sessions, oauth), []


def _of_mechanism(given: Mapping[str, str], listener: str, mechanism: str, name: str, default: str = "") -> str:
    """A listener's setting for the mechanism, or for all."""
    return option(given, listener, f"{mechanism.lower()}.{name}") or option(given, listener, name, default)


def _oauth_settings(
    given: Mapping[str, str], listener: str, options: Mapping[str, str], *, logs_in: bool
) -> tuple[OAuthSettings | None, list[str]]:
    """`logs_in`: this broker logs in to others by a token. The settings, or a sentence for each that is wrong."""
    problems: list[str] = []

    def of(name: str, default: str = "") -> str:
        return _of_mechanism(given, listener, OAUTHBEARER, name, default)

    def file(name: str, what: str) -> str:
        url = of(name)
        if url and not re.fullmatch("file:///.+", url):
            problems.append(f"{name}={url}: expected file:///PATH of {what}; no other server is asked")
        return url.removeprefix("file://")

    keys_file = file(_KEYS, "keys as JWKS or PEM")
    token_file = file("sasl.oauthbearer.token.endpoint.url", "this broker's token")
    unsecured = of(ALLOW_UNSECURED, "false").lower()
    if unsecured not in ("true", "false"):
        problems.append(f"{ALLOW_UNSECURED}={unsecured}: expected true or false")
    elif unsecured == "true" and keys_file:
        problems.append(f"{ALLOW_UNSECURED}=true: expected false for listener {listener}, which has keys of tokens")
    elif unsecured == "false" and not of(_KEYS):
        problems.append(f"listener {listener}: expected {_KEYS}, or {ALLOW_UNSECURED}=true without keys")
    skew = of("sasl.oauthbearer.clock.skew.seconds", "30")
    if not (skew.isdecimal() and int(skew) <= SKEW_MAX_S):
        problems.append(f"sasl.oauthbearer.clock.skew.seconds={skew}: expected 0 to {SKEW_MAX_S}")
    names = {name.removeprefix(_CLAIM): text for name, text in options.items() if name.startswith(_CLAIM)}
    lifetime = options.get(_LIFETIME, "3600")
    unread = [name for name in options if name.startswith("unsecured") and not name.startswith((_CLAIM, _LIFETIME))]
    if unread:
        read = f"{_CLAIM}NAME or {_LIFETIME} (rules for tokens are sasl.oauthbearer.*)"
        problems.append(f"sasl.jaas.config of OAUTHBEARER, {', '.join(unread)}: expected {read}")
    if not (lifetime.isdecimal() and int(lifetime)):
        problems.append(f"sasl.jaas.config, {_LIFETIME}={lifetime}: expected a whole number, 1 or more")
    if logs_in and not token_file and not (names and unsecured == "true"):
        problems.append(f"listener {listener}: expected sasl.oauthbearer.token.endpoint.url, a file with a token")
    if problems:
        return None, problems
    audiences = of("sasl.oauthbearer.expected.audience").split(",")
    rules = TokenRules(
        of("sasl.oauthbearer.expected.issuer"),
        tuple(one.strip() for one in audiences if one.strip()),
        of("sasl.oauthbearer.sub.claim.name", "sub"),
        int(skew) * 1_000,
    )
    return OAuthSettings(keys_file, rules, token_file, names, int(lifetime)), []
