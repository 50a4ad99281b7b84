"""What the security protocols of a broker need of the host: TLS contexts, SASL listeners, logins to others.

The settings were checked when they were parsed; here their files are read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from controller.broker.security.bounded_notes import BoundedNotes
from controller.broker.security.oauth import CheckToken, OAuthSettings, unsecured_claims
from controller.broker.security.sasl import ReadCredential, SaslListener
from controller.broker.security.sasl_settings import SaslSettings, sasl_settings
from controller.broker.security.tls_settings import tls_settings
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, spawn
from controller.hosts.login import Login
from controller.hosts.network import NetworkThread
from controller.hosts.peers import SocketPeers
from controller.hosts.server import SocketServer
from controller.hosts.tls import BadCertificates, TlsContext, TlsListener
from controller.zookeeper.operations import ZooKeeperError
from controller.zookeeper.paths import SECURED_PATHS, is_open_to_all

if TYPE_CHECKING:  # a cluster in a test's process does not need kazoo
    from controller.zookeeper.kazoo_connection import KazooConnection

Note = Callable[[str, str], None]


class ListenerSecurity:
    """Of one broker. `note` logs."""

    def __init__(self, settings: BrokerSettings, note: Note) -> None:
        self._settings = settings
        self.note = note

    def serve_tls(self, server: SocketServer) -> None:
        """Before the server serves. Raises BadCertificates, which names the listener."""
        for listener in self._settings.listeners:
            if (tls := self._tls(listener.name, server=True)) is not None:
                server.tls[listener.name] = TlsListener(tls)

    def serve_sasl(self, server: SocketServer, read_credential: ReadCredential, clock: Clock) -> None:
        """Before the server serves. Raises BadCertificates, of keys of tokens that can't be read."""
        for listener in self._settings.listeners:
            if (sasl := self._sasl(listener.name)) is not None:
                server.sasl[listener.name] = SaslListener(
                    sasl.mechanisms,
                    sasl.users,
                    read_credential,
                    lambda: secrets.token_urlsafe(24),
                    clock,
                    BoundedNotes(clock, self.note),
                    sasl.max_session_ms,
                    None if sasl.oauth is None else self._token_check(listener.name, sasl.oauth, clock),
                )

    def _token_check(self, listener: str, settings: OAuthSettings, clock: Clock) -> CheckToken:
        claims = unsecured_claims
        if settings.keys_file:
            try:
                from controller.hosts.token_keys import TokenKeys  # where tokens are used alone: 0.1 s of CPU
            except ModuleNotFoundError as error:
                missing = f"OAUTHBEARER needs {error.name}: pip install 'camerlengo[secure]'"
                raise BadCertificates(f"listener {listener}: {missing}") from error
            claims = TokenKeys(Path(settings.keys_file), time.monotonic, self.note).claims
        else:
            self.note("warning", f"listener {listener} accepts unsecured tokens: each client is who it says it is")
        return lambda token: settings.rules.check(claims(token), clock.wall_ms())

    def peers(self, network: NetworkThread, listener: str) -> SocketPeers:
        """Connections to other brokers' listeners of this name. Raises BadCertificates."""
        sasl = self._sasl(listener)
        return SocketPeers(
            network,
            str(self._settings.broker_id),
            self._settings.dial,
            self._tls(listener, server=False),
            None if sasl is None else Login(sasl),
        )

    def _sasl(self, listener: str) -> SaslSettings | None:
        if not self._settings.protocol(listener).startswith("SASL"):
            return None
        between_brokers = self._settings.is_of_brokers(listener)
        found, _ = sasl_settings(self._settings.given, listener, between_brokers=between_brokers)
        assert found is not None, "checked with the settings"
        return found

    def _tls(self, listener: str, *, server: bool) -> TlsContext | None:
        """The certificates of a listener with TLS; None for another."""
        if not self._settings.protocol(listener).endswith("SSL"):
            return None
        found, _ = tls_settings(self._settings.given, listener)
        assert found is not None, "checked with the settings"
        try:
            return TlsContext(found, server=server, now_s=time.monotonic, note=self.note)
        except BadCertificates as error:
            raise BadCertificates(f"listener {listener}: {error}") from error


REPORTED_MAX = 10


def report_open_znodes(connection: KazooConnection, note: Note) -> None:
    """Log which of the znodes that zookeeper.set.acl secures everyone may change, or read though they are sensitive:
    those that were made without it."""
    spawn(_report(connection, note)).on_done(lambda: None)


async def _report(connection: KazooConnection, note: Note) -> None:
    asked = [(path, connection.acl(path)) for path in SECURED_PATHS]
    found: list[str] = []
    for path, pending in asked:
        try:
            if is_open_to_all(path, await pending):
                found.append(path)
        except ZooKeeperError:
            continue  # it does not exist, or others may not even see its ACL
    if found:
        more = f" and {len(found) - REPORTED_MAX} more" if len(found) > REPORTED_MAX else ""
        named = ", ".join(found[:REPORTED_MAX]) + more
        note("warning", f"zookeeper.set.acl=true, but everyone may change or read {named}: made without it")
