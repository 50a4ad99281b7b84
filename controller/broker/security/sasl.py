"""SASL on a broker's listener: who a connection is, before anything else that it asks.

A connection asks SaslHandshake for a mechanism and then SaslAuthenticate with the mechanism's messages (KIP-43,
KIP-152); before that only ApiVersions is answered. After a failure nothing more is. With connections.max.reauth.ms a
session ends, and the client authenticates again on the same connection, as the same principal (KIP-368). All of it runs
on the broker's thread.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from controller.broker.request_context import Respond, Steps, on_broker_thread
from controller.broker.security.oauth import INVALID_TOKEN, OAUTHBEARER, CheckToken, TokenRefused, parse_first_message
from controller.broker.security.principal import USER, Principal, Requester
from controller.broker.security.sasl_settings import PLAIN
from controller.broker.security.scram import MECHANISMS, ScramCredential, ScramFailed, ScramServer
from controller.clock import Clock, Future
from controller.protocol.codec import ApiKey, Request, decode_request, encode_response_parts
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.schema import ResponseValue
from controller.protocol.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

SASL_APIS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_HEADS = {key.to_bytes(2, "big"): key for key in (*SASL_APIS, ApiKey.API_VERSIONS)}
FIRST_BYTES_MAX = 524_288
"""Of a frame before authentication: sasl.server.max.receive.size."""
TOKEN_FAILED = "Authentication failed"
FAILED = f"{TOKEN_FAILED}: Invalid username or password"

PassOn: TypeAlias = Callable[[bytes, Respond, Requester], Steps | None]
ReadCredential: TypeAlias = Callable[[str, str], Future[ScramCredential | None]]
"""(user, mechanism); answered on any thread."""


class SaslListener(msgspec.Struct):
    """What all connections of one listener share. `users`: the passwords of PLAIN. `max_session_ms`:
    connections.max.reauth.ms by mechanism, 0 for sessions without an end. `check_token`: of OAUTHBEARER.
    `authenticated`, `authenticated_again` and `failed` count what came of all attempts."""

    mechanisms: tuple[str, ...]
    users: Mapping[str, str]
    read_credential: ReadCredential
    new_nonce: Callable[[], str]
    clock: Clock
    note: Callable[[str, str], None]
    max_session_ms: Mapping[str, int] = {}
    check_token: CheckToken | None = None
    authenticated: int = 0
    authenticated_again: int = 0
    failed: int = 0


class SaslSession:
    """One connection. `pass_on` takes what an authenticated client asks."""

    def __init__(self, listener: SaslListener, client: Requester, pass_on: PassOn) -> None:
        self._listener = listener
        self._client = client
        self._pass_on = pass_on
        self._authenticated = self._failed = self._busy = False
        self._mechanism: str | None = None
        self._scram: ScramServer | None = None
        self._raw = False
        self._refused_token: str | None = None
        self._ends_ms: float | None = None
        self._session_ms = 0

    def receive(self, frame: bytes, respond: Respond, _client: object = None) -> Steps | None:
        """As a broker's: the client is the one that this session has authenticated."""
        if self._failed or self._busy:
            respond(None)
            return None
        if self._raw and self._mechanism is not None:
            self._message(bytes(frame), lambda answer: respond([answer]), lambda _error: respond(None))
            return None
        key = _HEADS.get(bytes(frame[:2]))
        if self._refused_token is not None and key is not ApiKey.SASL_AUTHENTICATE:
            self._failed = True  # a client that takes the error for success; it is in the log
            respond(None)
        elif key in SASL_APIS:
            self._asked(frame, respond)
        elif key is ApiKey.API_VERSIONS or self._may_ask():
            return self._pass_on(frame, respond, self._client)
        else:
            self._fail(f"API {int.from_bytes(frame[:2], 'big')} before authentication", respond)
        return None

    def _may_ask(self) -> bool:
        in_time = self._ends_ms is None or self._listener.clock.now_ms() < self._ends_ms
        return self._authenticated and self._mechanism is None and in_time

    def _fail(self, why: str, respond: Respond) -> None:
        """One line of the log; the answer, if any, was given before."""
        self._failed = True
        self._count_failure(why)
        respond(None)

    def _count_failure(self, why: str) -> None:
        self._listener.failed += 1
        who = f"{self._client.host} on listener {self._client.listener}"
        self._listener.note("warning", f"authentication of {who} failed: {why}")

    def _asked(self, frame: bytes, respond: Respond) -> None:
        try:
            if len(frame) > FIRST_BYTES_MAX:
                raise ProtocolError(f"a frame of {len(frame)} bytes")
            request = decode_request(frame, SASL_APIS)
        except ProtocolError as error:
            self._fail(str(error), respond)
            return
        value = request.value
        if isinstance(value, SaslHandshakeRequest):
            self._handshake(request, value, respond)
        elif isinstance(value, SaslAuthenticateRequest):
            self._authenticate(request, bytes(value.auth_bytes), respond)  # type: ignore[arg-type]

    def _handshake(self, request: Request, value: SaslHandshakeRequest, respond: Respond) -> None:
        known = value.mechanism in self._listener.mechanisms
        error = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self._mechanism is not None:
            error = ErrorCode.ILLEGAL_SASL_STATE
        _send(request, SaslHandshakeResponse(error, self._listener.mechanisms), respond)
        if error is not ErrorCode.NONE:
            self._fail(f"mechanism {value.mechanism[:50]!r}: {error.name}", lambda _parts: None)
            return
        self._mechanism, self._scram = value.mechanism, None
        self._raw = request.header.api_version == 0

    def _authenticate(self, request: Request, message: bytes, respond: Respond) -> None:
        if self._mechanism is None:
            _send(request, SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, "expected SaslHandshake"), respond)
            self._fail("SaslAuthenticate before SaslHandshake", lambda _parts: None)
            return

        def answered(answer: bytes) -> None:
            lifetime = self._session_ms if self._mechanism is None else 0
            _send(request, SaslAuthenticateResponse(ErrorCode.NONE, None, answer, lifetime), respond)

        def refused(error: str) -> None:
            _send(request, SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, error), respond)

        self._message(message, answered, refused)

    # -- the mechanisms' messages

    def _message(self, message: bytes, answered: Callable[[bytes], None], refused: Callable[[str], None]) -> None:
        try:
            if self._mechanism == PLAIN:
                self._done(self._plain(message))
                answered(b"")
            elif self._mechanism == OAUTHBEARER:
                self._token(message, answered, refused)
            elif self._scram is None:
                self._begin_scram(message, answered, refused)
            else:
                last, user = self._scram.final(message), self._scram.user
                self._done(user)
                answered(last)
        except ScramFailed as error:
            self._refuse(str(error), refused)

    def _refuse(self, why: str, refused: Callable[[str], None]) -> None:
        """The client does not learn what was wrong, besides with a token."""
        who = f"{self._mechanism} of {self._scram.user[:100]!r}" if self._scram is not None else str(self._mechanism)
        refused(f"{TOKEN_FAILED}: {why}" if self._mechanism == OAUTHBEARER else FAILED)
        self._fail(f"{who}: {why}", lambda _parts: None)

    def _plain(self, message: bytes) -> str:
        parts = message.split(b"\0")
        try:
            authzid, user, password = (part.decode() for part in parts)
        except ValueError:
            raise ScramFailed("expected an authorization id, a user and a password") from None
        expected = self._listener.users.get(user)
        right = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not right:
            raise ScramFailed(f"a wrong password, or no user {user[:100]!r}")
        if authzid not in ("", user):
            raise ScramFailed("an authorization id that is not the user")
        return user

    def _token(self, message: bytes, answered: Callable[[bytes], None], refused: Callable[[str], None]) -> None:
        """A token that is refused is answered as RFC 7628 has it: by an error, which the client acknowledges, and by
        the failure of the exchange then."""
        if self._refused_token is not None:
            refused(self._refused_token)
            self._failed = True
            return
        assert self._listener.check_token is not None, "checked with the settings"
        try:
            text, authzid = parse_first_message(message)
        except TokenRefused as error:
            self._refuse(str(error), refused)
            return
        try:
            token = self._listener.check_token(text)
        except TokenRefused as error:
            self._refused_token = f"{TOKEN_FAILED}: {error.says}"
            self._count_failure(f"{OAUTHBEARER}: {error}")
            answered(INVALID_TOKEN)
            return
        if authzid not in ("", token.principal.name):
            raise ScramFailed(f"authorization id {authzid[:100]!r} for a token of {token.principal}")
        self._done(token.principal.name, token.left_ms)
        answered(b"")

    def _begin_scram(self, message: bytes, answered: Callable[[bytes], None], refused: Callable[[str], None]) -> None:
        mechanism = self._mechanism
        assert mechanism in MECHANISMS
        scram = ScramServer(mechanism, self._listener.new_nonce())
        user = scram.first(message)
        self._scram, self._busy = scram, True
        reading = self._listener.read_credential(user, mechanism)

        def read() -> None:
            self._busy = False
            try:
                credential = reading.result()
            except Exception as error:  # noqa: BLE001 - ZooKeeper's, or a credential that can't be read
                self._refuse(f"the credential was not read: {error}", refused)
                return
            if credential is None:
                self._refuse("no such user", refused)
            else:
                answered(scram.challenge(credential))

        on_broker_thread(reading, self._listener.clock, read)

    def _done(self, user: str, credential_ms: int | None = None) -> None:
        """`credential_ms`: the credential expires then."""
        principal = Principal(USER, user)
        if self._authenticated and principal != self._client.principal:
            raise ScramFailed(f"{principal} in place of {self._client.principal}")
        if self._authenticated:
            self._listener.authenticated_again += 1
        else:
            self._listener.authenticated += 1
        self._client = replace(self._client, principal=principal)
        session_ms = self._listener.max_session_ms.get(self._mechanism or "", 0)
        self._session_ms = session_ms if credential_ms is None else min(session_ms, credential_ms)
        self._ends_ms = self._listener.clock.now_ms() + self._session_ms if session_ms else None
        self._authenticated, self._mechanism, self._scram, self._raw = True, None, None, False


def _send(request: Request, value: ResponseValue, respond: Respond) -> None:
    respond(encode_response_parts(request.header, value))
