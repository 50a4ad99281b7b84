"""TLS on the sockets of the network's loop: contexts from PEM, handshakes, certificates read again when they change.

`EncryptedSocket` is what a `ServerConnection` uses in place of a socket: the same calls, and BlockingIOError where TLS
waits. Records of a fetch are read into memory there; without TLS they go out by sendfile as before.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from controller.broker.security.principal import Requester
from controller.broker.security.tls_settings import TlsSettings, principal_of
from controller.distinguished_names import distinguished_name

DISCARDED_BYTES, DISCARDED_MAX = 16 * 1024, 16
"""Bytes of one read, and reads, of what came after a handshake that failed."""
RECORD_BYTES = 16 * 1024
"""The most that a TLS record carries."""
RELOAD_S = 1.0
"""Files are looked at this often at most."""


class BadCertificates(Exception):
    """Keys or certificates that can't be loaded; names them."""


class HandshakeFailed(Exception):
    """A client's handshake; says why."""


def make_context(settings: TlsSettings, *, server: bool) -> ssl.SSLContext:
    """Raises BadCertificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in settings.protocols else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in settings.protocols else ssl.TLSVersion.TLSv1_2
    what = settings.keystore or "ssl.keystore.key"
    try:
        _load_chain(context, settings)
        what = settings.truststore or "ssl.truststore.certificates"
        if settings.truststore or settings.trusted:
            context.load_verify_locations(settings.truststore or None, cadata=settings.trusted or None)
    except (OSError, ValueError) as error:
        raise BadCertificates(f"{what}: {error}") from error
    if server:
        modes = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
        context.verify_mode = modes[settings.client_auth]
    else:
        context.check_hostname = settings.check_hostname
    return context


def _load_chain(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not (settings.keystore or settings.key):
        return  # a client without a certificate
    password = settings.password or (lambda: "")  # never asked for at a terminal
    if settings.keystore:
        context.load_cert_chain(settings.keystore, password=password)
        return
    descriptor, name = tempfile.mkstemp(suffix=".pem")  # OpenSSL reads keys from files alone; for its owner alone
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(settings.key.replace("\\n", "\n") + "\n" + settings.chain.replace("\\n", "\n"))
        context.load_cert_chain(name, password=password)
    finally:
        Path(name).unlink()


class TlsContext:
    """A context that is made anew when one of its files has changed. `note` logs that, and files that can't be loaded:
    the context before stays in use then. The first one is made at once: BadCertificates."""

    def __init__(
        self, settings: TlsSettings, *, server: bool, now_s: Callable[[], float], note: Callable[[str, str], None]
    ) -> None:
        self.settings = settings
        self._server = server
        self._now_s = now_s
        self._note = note
        self._stamp = self._stamped()
        self._context = make_context(settings, server=server)
        self._looked_s = now_s()

    def _stamped(self) -> tuple[tuple[int, int], ...]:
        stamps = []
        for name in (self.settings.keystore, self.settings.truststore):
            with suppress(OSError):
                if name:
                    found = Path(name).stat()
                    stamps.append((found.st_mtime_ns, found.st_ino))
        return tuple(stamps)

    def current(self) -> ssl.SSLContext:
        now_s = self._now_s()
        if now_s - self._looked_s >= RELOAD_S:
            self._looked_s = now_s
            stamp = self._stamped()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._context = make_context(self.settings, server=self._server)
                    self._note("info", f"certificates were loaded again: {self.settings.keystore}")
                except BadCertificates as error:
                    self._note("error", f"certificates stay as they were: {error}")
        return self._context


class EncryptedSocket:
    """The calls of a socket that does not block, over TLS."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        """`size` bytes of what has arrived, and the rest of the TLS record that they end in: the loop does not see what
        TLS has read and keeps."""
        parts: list[bytes] = []
        missing = size
        try:
            while missing > 0 or (missing := self._socket.pending()):
                part = self._socket.recv(min(missing, RECORD_BYTES))
                parts.append(part)
                missing -= len(part)
                if not part:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not parts:
                raise BlockingIOError from None
        return b"".join(parts)

    def send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        self._socket.close()


_WITHOUT_TLS = dict.fromkeys(
    ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"), "what the client sends is not TLS"
)
"""OpenSSL's reasons, by what they come from."""


def _close_after(encrypted: ssl.SSLSocket) -> None:
    """Close a connection whose handshake failed, once what has arrived is read. The system would reset it otherwise,
    and the client would not get TLS's alert, which says what is wrong."""
    with socket.socket(fileno=encrypted.detach()) as plain, suppress(OSError):
        plain.setblocking(False)
        for _ in range(DISCARDED_MAX):
            if not plain.recv(DISCARDED_BYTES):
                break


class TlsListener:
    """Takes the connections of one listener through their handshakes."""

    def __init__(self, context: TlsContext) -> None:
        self._context = context

    async def upgrade(self, sock: socket.socket, client: Requester) -> tuple[EncryptedSocket, Requester]:
        """Raises HandshakeFailed; the caller closes the socket then, and bounds the time."""
        encrypted = self._context.current().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            await _handshake(encrypted)
            named = encrypted.getpeercert()
        except (OSError, ValueError) as error:
            _close_after(encrypted)
            reason = getattr(error, "reason", None) or str(error)
            raise HandshakeFailed(_WITHOUT_TLS.get(reason, reason)) from error
        except asyncio.CancelledError:
            encrypted.close()
            raise
        if named and self._context.settings.client_auth != "none":
            name = distinguished_name(named["subject"])  # type: ignore[arg-type]
            principal = principal_of(name, self._context.settings.rules)
            if principal is None:
                encrypted.close()
                raise HandshakeFailed(f"no rule of ssl.principal.mapping.rules is for {name}")
            client = replace(client, principal=principal)
        return EncryptedSocket(encrypted), client


async def _handshake(sock: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    descriptor = sock.fileno()
    while True:
        ready: asyncio.Future[None] = loop.create_future()
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            loop.add_reader(descriptor, _set, ready)
            remove = loop.remove_reader
        except ssl.SSLWantWriteError:
            loop.add_writer(descriptor, _set, ready)
            remove = loop.remove_writer
        try:
            await ready
        finally:
            remove(descriptor)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
