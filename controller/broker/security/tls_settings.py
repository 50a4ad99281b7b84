"""The `ssl.*` settings of one listener, and the principal that a client's certificate names. Pure.

A setting of a listener alone is given as `listener.name.NAME.ssl.*`, and takes precedence. Keys and certificates are
PEM (KIP-651), in files or in the settings themselves; Java's keystores are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from controller.broker.security.principal import USER, Principal

CLIENT_AUTH = ("none", "requested", "required")
PROTOCOLS = ("TLSv1.2", "TLSv1.3")
READ_TLS_SETTINGS = (
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.principal.mapping.rules",
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
ZOOKEEPER = "zookeeper."
READ_ZOOKEEPER_TLS_SETTINGS = (
    "zookeeper.ssl.client.enable",
    "zookeeper.ssl.enabled.protocols",
    "zookeeper.ssl.endpoint.identification.algorithm",
    "zookeeper.ssl.keystore.location",
    "zookeeper.ssl.keystore.password",
    "zookeeper.ssl.keystore.type",
    "zookeeper.ssl.protocol",
    "zookeeper.ssl.truststore.location",
    "zookeeper.ssl.truststore.type",
)
"""Of the connection to ZooKeeper. Kafka's names; with a PEM file the password is that of its key."""


class TlsSettings(msgspec.Struct, frozen=True):
    """`keystore`, `truststore`: files; `chain`, `key`, `trusted`: the PEM itself in their place, or "". `rules`:
    ssl.principal.mapping.rules, as patterns with what replaces them and L, U or "" for the case."""

    keystore: str
    chain: str
    key: str
    password: str
    truststore: str
    trusted: str
    client_auth: str
    protocols: tuple[str, ...]
    check_hostname: bool
    rules: tuple[tuple[str, str, str], ...]


def option(given: Mapping[str, str], listener: str, name: str, default: str = "") -> str:
    """A listener's own setting, or the one of all."""
    return given.get(f"listener.name.{listener.lower()}.{name}", given.get(name, default)).strip()


def zookeeper_tls(given: Mapping[str, str]) -> tuple[TlsSettings | None, list[str]]:
    """The settings of the connection to ZooKeeper; None if it is not encrypted, or a sentence for each that is wrong.
    A certificate of its own is optional."""
    enabled = given.get("zookeeper.ssl.client.enable", "false").strip().lower()
    if enabled != "true":
        wrong = [] if enabled in ("false", "") else [f"zookeeper.ssl.client.enable={enabled}: expected true or false"]
        return None, wrong
    own = {name.removeprefix(ZOOKEEPER): given[name] for name in READ_ZOOKEEPER_TLS_SETTINGS if name in given}
    own["ssl.key.password"] = own.pop("ssl.keystore.password", "")
    own.setdefault("ssl.enabled.protocols", own.pop("ssl.protocol", "TLSv1.2"))
    found, problems = tls_settings(own, "", needs_certificate=False)
    if not own.get("ssl.truststore.location", "").strip():
        problems = [*problems, "ssl.truststore.location: expected a PEM file with whom to trust"]
    return (None if problems else found), [f"{ZOOKEEPER}{one.replace(' for listener ', '')}" for one in problems]


def tls_settings(
    given: Mapping[str, str], listener: str, *, needs_certificate: bool = True
) -> tuple[TlsSettings | None, list[str]]:
    """The settings, or a sentence for each that is wrong."""
    problems: list[str] = []

    def of(name: str, default: str = "") -> str:
        return option(given, listener, name, default)

    for store, pem in (("keystore", "ssl.keystore.key"), ("truststore", "ssl.truststore.certificates")):
        used = of(f"ssl.{store}.location") or of(pem)
        kind = of(f"ssl.{store}.type", "JKS")
        if used and kind.upper() != "PEM":
            problems.append(f"ssl.{store}.type={kind}: expected PEM for listener {listener}")
    own = of("ssl.keystore.location") or (of("ssl.keystore.key") and of("ssl.keystore.certificate.chain"))
    if needs_certificate and not own:
        problems.append(
            f"listener {listener}: expected ssl.keystore.location, or ssl.keystore.key with"
            " ssl.keystore.certificate.chain"
        )
    client_auth = of("ssl.client.auth", "none").lower()
    if client_auth not in CLIENT_AUTH:
        problems.append(f"ssl.client.auth={client_auth}: expected {', '.join(CLIENT_AUTH)}")
    elif client_auth != "none" and not (of("ssl.truststore.location") or of("ssl.truststore.certificates")):
        problems.append(f"ssl.client.auth={client_auth}: expected ssl.truststore.location for listener {listener}")
    protocols = tuple(one.strip() for one in of("ssl.enabled.protocols", ",".join(PROTOCOLS)).split(",") if one.strip())
    if not protocols or not set(protocols) <= set(PROTOCOLS):
        problems.append(f"ssl.enabled.protocols={','.join(protocols)}: expected {' or '.join(PROTOCOLS)}")
    rules: tuple[tuple[str, str, str], ...] = ()
    try:
        rules = mapping_rules(of("ssl.principal.mapping.rules", "DEFAULT"))
    except ValueError as error:
        problems.append(f"ssl.principal.mapping.rules: {error}")
    if problems:
        return None, problems
    return TlsSettings(
        of("ssl.keystore.location"),
        of("ssl.keystore.certificate.chain"),
        of("ssl.keystore.key"),
        of("ssl.key.password"),
        of("ssl.truststore.location"),
        of("ssl.truststore.certificates"),
        client_auth,
        protocols,
        bool(of("ssl.endpoint.identification.algorithm", "https")),
        rules,
    ), []


_RULE = re.compile(
    r"\s*(?:DEFAULT|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<into>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)


def mapping_rules(text: str) -> tuple[tuple[str, str, str], ...]:
    """Parse `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas. Raises ValueError."""
    rules: list[tuple[str, str, str]] = []
    at = 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:][:80]!r}: expected DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
        if match["pattern"] is None:
            rules.append((r"(.*)", r"\1", ""))
        else:
            pattern, into = match["pattern"], re.sub(r"\$([0-9]+)", r"\\\1", match["into"])
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r}: {error}") from None
            rules.append((pattern, into, match["case"]))
        at = match.end()
    return tuple(rules)


def principal_of(name: str, rules: Sequence[tuple[str, str, str]]) -> Principal | None:
    """Return the principal of a distinguished name by the first rule whose pattern is all of it; None if none is."""
    for pattern, into, case in rules:
        match = re.fullmatch(pattern, name)
        if match is not None:
            mapped = match.expand(into)
            mapped = mapped.lower() if case == "L" else mapped.upper() if case == "U" else mapped
            return Principal(USER, mapped) if mapped else None
    return None
