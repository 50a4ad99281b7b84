"""How a broker logs in to another's SASL listener: the client's half of PLAIN, SCRAM and OAUTHBEARER.

`log_in` does it on a socket that blocks, for who starts a cluster and asks its brokers.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from controller.broker.security.oauth import (
    DUMMY,
    OAUTHBEARER,
    TOKEN_MAX,
    OAuthSettings,
    first_message,
    unsecured_token,
)
from controller.broker.security.sasl_settings import PLAIN, SaslSettings
from controller.broker.security.scram import ScramClient, ScramFailed
from controller.protocol.codec import (
    ApiKey,
    RequestHeader,
    decode_response_body,
    encode_request_body,
    request_head,
    response_body,
)
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.framing import SIZE_BYTES, frame_size, framed
from controller.protocol.schema import RequestValue
from controller.protocol.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

Ask: TypeAlias = Callable[[RequestHeader, bytes], Awaitable[bytes]]
"""(header, body): sends a request on the connection, and returns the response's body."""
_VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 1}

AGAIN_AFTER = 0.85
"""Of a session's time, as Kafka at the earliest: a request that is sent then still arrives in time."""


class LoginFailed(ProtocolError):
    """The other broker does not let this one in; says why."""


class Login:
    """`settings` of the listener: the mechanism between brokers, user and password, or where its token is."""

    def __init__(self, settings: SaslSettings) -> None:
        self._mechanism = settings.own_mechanism
        self._oauth = settings.oauth
        assert settings.own is not None or self._mechanism == OAUTHBEARER
        self._user, self._password = settings.own or ("the token's principal", "")

    async def on(self, ask: Ask) -> float | None:
        """Log in, on a new connection or again on one that is. Return the milliseconds after which to do so again,
        before the session ends; None if it does not (KIP-368). Raises LoginFailed.
        """
        lifetime_ms = 0

        async def asked(key: ApiKey, value: RequestValue) -> object:
            version = _VERSIONS[key]
            body = await ask(RequestHeader(key, version, 0, "login"), encode_request_body(key, version, value))
            return decode_response_body(key, version, body)

        async def sent(message: bytes) -> bytes:
            nonlocal lifetime_ms
            answer = await asked(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message))
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code != ErrorCode.NONE:
                raise LoginFailed(f"{self._mechanism} as {self._user}: {answer.error_message}")
            lifetime_ms = answer.session_lifetime_ms
            return bytes(answer.auth_bytes)  # type: ignore[arg-type]

        answer = await asked(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(self._mechanism))
        assert isinstance(answer, SaslHandshakeResponse)
        if answer.error_code != ErrorCode.NONE:
            raise LoginFailed(f"{self._mechanism} is not enabled there, but {', '.join(answer.mechanisms)}")
        if self._mechanism == OAUTHBEARER:
            assert self._oauth is not None
            if await sent(first_message(read_token(self._oauth))):
                await sent(DUMMY)
                raise LoginFailed("OAUTHBEARER: the token was refused")
            return AGAIN_AFTER * lifetime_ms or None
        if self._mechanism == PLAIN:
            await sent(f"\0{self._user}\0{self._password}".encode())
            return AGAIN_AFTER * lifetime_ms or None
        scram = ScramClient(self._mechanism, self._user, self._password, secrets.token_urlsafe(24))
        try:
            scram.check(await sent(scram.final(await sent(scram.first()))))
        except ScramFailed as error:
            raise LoginFailed(f"{self._mechanism} as {self._user}: {error}") from error
        return AGAIN_AFTER * lifetime_ms or None


def read_token(settings: OAuthSettings) -> str:
    """Return this broker's token, read from its file each time, so that another program may renew it; or a new
    unsecured one. Raises LoginFailed."""
    if not settings.token_file:
        now_s = int(time.time())
        return unsecured_token({**settings.own_claims, "iat": now_s, "exp": now_s + settings.own_lifetime_s})
    try:
        with Path(settings.token_file).open("rb") as file:
            return file.read(TOKEN_MAX + 1).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise LoginFailed(f"OAUTHBEARER: {settings.token_file}: expected a token: {error}") from error


def log_in(connection: socket.socket, login: Login) -> None:
    """Log in on a socket that blocks. Raises OSError, ProtocolError."""

    async def ask(header: RequestHeader, body: bytes) -> bytes:
        connection.sendall(framed(request_head(header) + body))
        return response_body(header.api_key, header.api_version, read_frame(connection))[1]

    try:
        login.on(ask).send(None)  # `ask` blocks, so that nothing is waited for
    except StopIteration:
        return
    raise AssertionError("a login that waits")


def read_frame(connection: socket.socket) -> bytes:
    """Read one whole frame from a socket that blocks. Raises OSError, MalformedFrame."""
    return _read(connection, frame_size(_read(connection, SIZE_BYTES)))


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts += part
    return bytes(parts)
