"""Garbage for what decides who may come in: SASL sequences, znodes of credentials, ACLs and quotas, TLS handshakes.

No broker process is needed: each input goes to the code that a broker runs, and after it a sound one must still work.
An input of several messages is cut at `NEXT`, so that most mutations leave the others whole.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from controller.broker.entity_configs import EntityConfigReader
from controller.broker.quotas.clients import ClientQuotas
from controller.broker.quotas.quota_settings import QuotaSettings
from controller.broker.quotas.store import QuotaStore
from controller.broker.security.acl_store import AclStore
from controller.broker.security.acls import AclOperation, AclRules, ResourceType
from controller.broker.security.oauth import OAUTHBEARER, Token, TokenRefused, first_message
from controller.broker.security.principal import ANONYMOUS, USER, Principal, Requester
from controller.broker.security.sasl import SaslListener, SaslSession
from controller.broker.security.scram import MECHANISMS, ScramClient, credential_of, salted
from controller.broker.security.scram_store import ScramStore, user_path
from controller.broker.security.tls_settings import TlsSettings
from controller.clock import Future, VirtualClock
from controller.hosts.tls import HandshakeFailed, TlsContext, TlsListener
from controller.protocol.client import ApiVersionsRequest, MetadataRequest
from controller.protocol.codec import ApiKey, RequestHeader, encode_request
from controller.protocol.framing import joined
from controller.protocol.security import SaslAuthenticateRequest, SaslHandshakeRequest
from controller.trace import Noted
from controller.zookeeper import paths
from controller.zookeeper.acl_znodes import AclResource as Resource
from controller.zookeeper.acl_znodes import AclRow, encode_acl_change, encode_acls
from controller.zookeeper.codecs import ConfigZnode, encode_config
from controller.zookeeper.operations import Listing, ReadResult, Stat, Znode
from tests.fuzz.crash import Crash

NEXT = b"\xfe\xff\xfe"
USER_NAME, PASSWORD, OTHER = "alice", "pencil-9f", "bob"
SERVER_NONCE = "server-nonce"
LINE_MAX = 1_000
"""Characters of a line of the log about one input: names in it come from the client."""
LIFE = 1_000
"""Inputs after which what keeps state is made anew."""


class BoundedLog:
    """The lines that the code under test has logged about one input."""

    enabled = True

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def emit(self, event: Any) -> None:
        if isinstance(event, Noted):
            self.lines.append((event.level, event.message))

    def note(self, level: str, message: str) -> None:
        self.lines.append((level, message))

    def take(self, most: int, given: bytes = b"") -> list[str]:
        """The lines so far, which are forgotten. Crash: too many, too long, a traceback, or a password that is not in
        what was `given`."""
        lines, self.lines = [message for _, message in self.lines], []
        if len(lines) > most:
            raise Crash(f"{len(lines)} lines of the log: {lines[:3]}")
        for line in lines:
            if len(line) > LINE_MAX or "Traceback" in line or (PASSWORD in line and PASSWORD.encode() not in given):
                raise Crash(f"a line of {len(line)} characters in the log: {line[:LINE_MAX]}")
        return lines


# -- SASL


def frame(key: ApiKey, value: Any, version: int = 1) -> bytes:
    return encode_request(RequestHeader(key, version, 1, "c"), value)


def scram_messages(mechanism: str, user: str = USER_NAME, password: str = PASSWORD) -> tuple[bytes, bytes]:
    """The client's messages in an exchange with the nonces of these tests."""
    credential = CREDENTIALS[USER_NAME, mechanism]
    client = ScramClient(mechanism, user, password, "client-nonce")
    first = client.first()
    salt = SALT_TEXT
    challenge = f"r=client-nonce{SERVER_NONCE},s={salt},i={credential.iterations}"
    return first, client.final(challenge.encode())


SALT, SALT_TEXT = b"salt", "c2FsdA=="
CREDENTIALS = {
    (user, mechanism): credential_of(mechanism, salted(mechanism, password, SALT, 4_096), SALT, 4_096)
    for mechanism in MECHANISMS
    for user, password in ((USER_NAME, PASSWORD), (OTHER, "other"))
}
TOKEN = "a-header.some-claims.its_signature"
PLAIN_MESSAGE = f"\0{USER_NAME}\0{PASSWORD}".encode()
SCRAM_MESSAGES = {mechanism: scram_messages(mechanism) for mechanism in MECHANISMS}
PROOFS = {mechanism: final.rpartition(b"p=")[2] for mechanism, (_, final) in SCRAM_MESSAGES.items()}


def sasl_listener(log: BoundedLog, clock: VirtualClock, read: Any = None) -> SaslListener:
    def known(user: str, mechanism: str) -> Any:
        return Future.resolved(CREDENTIALS.get((user, mechanism)))

    def check(token: str) -> Token:
        if token != TOKEN:
            raise TokenRefused("no such token", f"{token!r:.100}")
        return Token(Principal(USER, USER_NAME), 2_000)

    mechanisms = ("PLAIN", *MECHANISMS, OAUTHBEARER)
    sessions = dict.fromkeys(mechanisms, 1_000)
    users = {USER_NAME: PASSWORD}
    return SaslListener(mechanisms, users, read or known, lambda: SERVER_NONCE, clock, log.note, sessions, check)


class SaslConnection:
    """One connection, whose answers are decoded. `asked_by`: the principals for whom requests were passed on."""

    def __init__(self, listener: SaslListener, clock: VirtualClock) -> None:
        self._clock = clock
        self._session = SaslSession(listener, Requester("SASL", "10.0.0.9"), self._pass_on)
        self.asked_by: list[Principal] = []
        self.closed = False

    def _pass_on(self, _frame: bytes, respond: Any, client: Requester) -> None:
        self.asked_by.append(client.principal)
        respond(())

    def send(self, data: bytes) -> bytes | None:
        """Crash unless it is answered exactly once; None: the connection is closed."""
        answers: list[Any] = []
        self._session.receive(data, answers.append)
        self._clock.advance_to(self._clock.now_ms() + 1)
        # An answer that refuses is followed by the end of the connection.
        if len(answers) != 1 and not (len(answers) == 2 and answers[1] is None):
            raise Crash(f"{len(answers)} answers")
        if answers[-1] is None:
            self.closed = True
        return None if answers[0] is None else joined(answers[0])


class SaslFrames:
    """Sequences of whole frames on one connection, raw exchanges of SaslHandshake 0 among them."""

    def __init__(self) -> None:
        self.log, self.clock = BoundedLog(), VirtualClock()
        self.listener = sasl_listener(self.log, self.clock)
        self._fed = 0

    @property
    def sound(self) -> list[bytes]:
        asks = frame(ApiKey.METADATA, MetadataRequest(None))
        versions = frame(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        logins = [[handshake("PLAIN"), authenticate(PLAIN_MESSAGE)]]
        logins += [[handshake(name), *map(authenticate, both)] for name, both in SCRAM_MESSAGES.items()]
        logins += [[handshake(OAUTHBEARER), authenticate(first_message(TOKEN))]]
        raw = [frame(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN"), 0), PLAIN_MESSAGE]
        again = [*logins[1], asks, *logins[0], asks]
        return [NEXT.join(one) for one in (*([versions, *login, asks] for login in logins), [*raw, asks], again)]

    def messages(self, data: bytes) -> list[bytes]:
        return data.split(NEXT)[:16]

    def feed(self, data: bytes) -> str:
        connection = SaslConnection(self.listener, self.clock)
        messages = self.messages(data)
        for message in messages:
            connection.send(message)
        self.log.take(1, data)
        self._judge(connection, messages)
        self._fed += 1
        if self._fed % 16 == 0:
            self._log_in()
        if not connection.closed:
            return "answered"
        return "closed after log-in" if connection.asked_by else "closed"

    def _judge(self, connection: SaslConnection, messages: Sequence[bytes]) -> None:
        """Who is let in has shown a password, or a proof of it. Base64 has several texts for the last bytes."""
        secrets = (PASSWORD.encode(), TOKEN.encode(), *(proof[:40] for proof in PROOFS.values()))
        shown = any(secret in one for one in messages for secret in secrets)
        for principal in connection.asked_by:
            if principal != ANONYMOUS and not (shown and principal == Principal(USER, USER_NAME)):
                raise Crash(f"{principal} was let in")

    def _log_in(self) -> None:
        connection = SaslConnection(self.listener, self.clock)
        for message in self.sound[self._fed // 16 % len(self.sound)].split(NEXT):
            connection.send(message)
        if connection.closed or not connection.asked_by or connection.asked_by[-1].name != USER_NAME:
            raise Crash(f"a sound log-in was refused: {self.log.lines}")
        self.log.take(0)


def handshake(mechanism: str) -> bytes:
    return frame(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism))


def authenticate(message: bytes) -> bytes:
    return frame(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(message))


class SaslMessages(SaslFrames):
    """As SaslFrames, but the frames are sound: what is malformed is the mechanism's name and its messages. The first
    byte of a message says what it is."""

    @property
    def sound(self) -> list[bytes]:
        logins = [[b"HPLAIN", b"A" + PLAIN_MESSAGE]]
        logins += [[b"H" + name.encode(), *(b"A" + one for one in both)] for name, both in SCRAM_MESSAGES.items()]
        again = [*logins[0], b"M", b"T", *logins[2], b"M"]
        return [NEXT.join(one) for one in (*([*login, b"M"] for login in logins), again)]

    def messages(self, data: bytes) -> list[bytes]:
        return [self._framed(one) for one in super().messages(data)]

    def _framed(self, message: bytes) -> bytes:
        kind, rest = message[:1], message[1:]
        if kind == b"H":
            return handshake(rest.decode(errors="replace")[:32_000])
        if kind == b"M":
            return frame(ApiKey.METADATA, MetadataRequest(None))
        if kind == b"T":  # the session's end comes near
            self.clock.advance_to(self.clock.now_ms() + 600)
            return frame(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        return authenticate(rest)

    def _log_in(self) -> None:
        connection = SaslConnection(self.listener, self.clock)
        for message in SaslMessages.sound.fget(self)[self._fed // 16 % 4].split(NEXT):  # type: ignore[attr-defined]
            connection.send(self._framed(message))
        if connection.closed or not connection.asked_by or connection.asked_by[-1].name != USER_NAME:
            raise Crash(f"a sound log-in was refused: {self.log.lines}")
        self.log.take(0)


# -- znodes


class ReadZnodes:
    """A ZooKeeper that is only read: data by path."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.data: dict[str, bytes | None] = {}

    def session(self) -> int:
        return 1

    def read(self, asked: Sequence[str]) -> Future[ReadResult]:
        now = self._clock.wall_ms()
        stat = Stat(1, 1, now, now, 0, 0, 0, 0, 0, 0, 1)
        rows = tuple(Znode(path, self.data[path], stat) if path in self.data else None for path in asked)
        return Future.resolved(ReadResult(rows, 1))

    def children(self, asked: Sequence[str]) -> Future[Listing]:
        found = tuple(
            tuple(sorted(path[len(one) + 1 :] for path in self.data if path.rpartition("/")[0] == one)) for one in asked
        )
        return Future.resolved(Listing(found, 1))


class CredentialZnode:
    """The znode of a user's credentials, as brokers follow it. One that can't be read changes nothing."""

    def __init__(self) -> None:
        self.log, self.clock = BoundedLog(), VirtualClock()
        self._znodes = ReadZnodes(self.clock)
        client = cast(Any, self._znodes)
        store = ScramStore(client, self.clock, self.log)
        self._configs = EntityConfigReader(client, self.clock, self.log, [store.take])
        self._configs.changed(None)
        self._listener = sasl_listener(self.log, self.clock, store.read)
        config = {name: CREDENTIALS[USER_NAME, name].text() for name in MECHANISMS}
        self.sound = [
            encode_config(ConfigZnode(config)),
            encode_config(ConfigZnode({**config, "producer_byte_rate": "9"})),
        ]
        self._log_in()

    def feed(self, data: bytes) -> str:
        outcome = self._tried(data)
        self._log_in()
        return outcome

    def _log_in(self) -> None:
        if self._tried(self.sound[0]) != "taken":
            raise Crash("a sound log-in was refused")

    def _tried(self, data: bytes) -> str:
        path = user_path(USER_NAME)
        self._znodes.data[path] = data
        self._configs.changed([path.removeprefix(f"{paths.CONFIG}/")])
        self.clock.advance_to(self.clock.now_ms() + 1)
        connection = SaslConnection(self._listener, self.clock)
        connection.send(handshake("SCRAM-SHA-256"))
        for message in SCRAM_MESSAGES["SCRAM-SHA-256"]:
            connection.send(authenticate(message))
        connection.send(frame(ApiKey.METADATA, MetadataRequest(None)))
        lines = self.log.take(1)
        if connection.closed and len(lines) != 1:
            raise Crash("no line of the log says why")
        if lines and not connection.closed:
            return "damaged"
        return "refused" if connection.closed else "taken"


class AclZnodes:
    """The znode of a resource's ACLs, and the notices of changes. An input: what it is, a name, and data."""

    READ = (AclOperation.READ, ResourceType.TOPIC)
    SOUND = "sound"

    def __init__(self) -> None:
        self.log, self.clock = BoundedLog(), VirtualClock()
        self._fed = 0
        self._begin()
        acls, change = encode_acls([self._row()]), encode_acl_change(Resource("Topic", "t"))
        extended = encode_acl_change(Resource("Topic", "t", "PREFIXED"))
        several = encode_acls([self._row(), AclRow("User:eve", "Deny", "All", "10.0.0.1")])
        number = f"{paths.ACL_CHANGE_PREFIX}00000000%02d"
        self.sound = [
            NEXT.join((kind, name.encode(), data))
            for kind, name, data in (
                (b"L", "t", acls),
                (b"P", "t", several),
                (b"L", "*", acls),
                (b"N", number % 7, change),
                (b"E", number % 8, extended),
            )
        ]

    def _row(self) -> AclRow:
        return AclRow(f"User:{USER_NAME}", "Allow", "Read", "*")

    def _begin(self) -> None:
        self._znodes = ReadZnodes(self.clock)
        self._znodes.data[Resource("Topic", self.SOUND).path] = encode_acls([self._row()])
        self._rules = AclRules([Principal(USER, "root")])
        self._store = AclStore(self._rules, cast(Any, self._znodes), self.clock, self.log)
        self._notices = 0
        self._check()

    def _check(self) -> None:
        self._store.check()
        self.clock.advance_to(self.clock.now_ms() + 1)

    def _notice(self, resource: Resource) -> None:
        parent = paths.ACL_CHANGES if resource.pattern_type == "LITERAL" else paths.EXTENDED_ACL_CHANGES
        self._notices += 1
        path = paths.child(parent, f"{paths.ACL_CHANGE_PREFIX}{self._notices + 1_000:010d}")
        self._znodes.data[path] = encode_acl_change(resource)
        self._check()
        del self._znodes.data[path]

    def _allows(self, user: str, topic: str) -> bool:
        return self._rules.allows(Requester("L", "10.0.0.1", Principal(USER, user)), *self.READ, topic)

    def feed(self, data: bytes) -> str:
        if self._fed % LIFE == LIFE - 1:
            self._begin()
        self._fed += 1
        kind, _, rest = data.partition(NEXT)
        name, _, content = rest.partition(NEXT)
        called = name.decode(errors="replace").replace("/", "_")[:200] or "t"
        if kind in (b"N", b"E"):
            path = paths.child(paths.ACL_CHANGES if kind == b"N" else paths.EXTENDED_ACL_CHANGES, called)
            self._store._seen = {}
            self._znodes.data[path] = content
            self._check()
            del self._znodes.data[path]
        else:
            resource = Resource("Topic", called, "PREFIXED" if kind == b"P" else "LITERAL")
            before = dict(self._znodes.data)
            self._znodes.data[resource.path] = content
            self._notice(resource)
            outcome = "damaged" if self.log.lines else "taken"
            if called not in (self.SOUND, "*") and outcome == "damaged" and self._allows(USER_NAME, called):
                raise Crash(f"{called!r} can be read though its ACLs are damaged")
            self._znodes.data = before
            self._notice(resource)
        lines = self.log.take(2)
        for user, allowed in ((USER_NAME, True), ("root", True), ("mallory", False)):
            if self._allows(user, self.SOUND) is not allowed:
                raise Crash(f"{user} and the sound topic: expected {allowed}")
        return "damaged" if lines else "taken"


class QuotaZnodes:
    """The znodes of client quotas. An input: the path below /config, and data."""

    SOUND_PATH = "users/sound"

    def __init__(self) -> None:
        self.log, self.clock = BoundedLog(), VirtualClock()
        self._fed = 0
        self._begin()
        config = encode_config(ConfigZnode({"producer_byte_rate": "1024", "request_percentage": "12.5"}))
        ip = encode_config(ConfigZnode({"connection_creation_rate": "10"}))
        self.sound = [
            NEXT.join((path.encode(), data))
            for path, data in (
                ("users/alice", config),
                ("users/%3Cdefault%3E/clients/app", config),
                ("clients/<default>", config),
                ("ips/10.0.0.1", ip),
            )
        ]

    def _begin(self) -> None:
        self._znodes = ReadZnodes(self.clock)
        sound: Mapping[str, str] = {"producer_byte_rate": "77"}
        self._znodes.data[f"{paths.CONFIG}/{self.SOUND_PATH}"] = encode_config(ConfigZnode(sound))
        self._quotas = ClientQuotas(QuotaSettings(), self.clock)
        client = cast(Any, self._znodes)
        self._store = QuotaStore(self._quotas, client, self.clock, self.log)
        self._configs = EntityConfigReader(client, self.clock, self.log, [self._store.take])
        self._changed(self.SOUND_PATH)

    def _changed(self, path: str) -> None:
        self._configs.changed([path])
        self.clock.advance_to(self.clock.now_ms() + 1)

    def feed(self, data: bytes) -> str:
        if self._fed % LIFE == LIFE - 1:
            self._begin()
        self._fed += 1
        name, _, content = data.partition(NEXT)
        path = name.decode(errors="replace")[:200]
        if path != self.SOUND_PATH:
            self._znodes.data[f"{paths.CONFIG}/{path}"] = content
            self._changed(path)
        lines = self.log.take(8)
        found = self._quotas.produce.quota("sound", "app")
        if found is None or found[1] != 77.0:
            raise Crash(f"the sound quota is {found}")
        return "damaged" if lines else "taken"


# -- TLS


def client_hello(version: ssl.TLSVersion, server_name: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name).do_handshake()
    return outgoing.read()


class TlsHandshakes:
    """A client's first bytes, through a socket, to what takes a listener's connections through their handshakes."""

    def __init__(self) -> None:
        from controller.hosts.certificates import Authority

        self.log = BoundedLog()
        self._fed = 0
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            key = authority.issue("broker")
            settings = tls_settings_of(key, authority.certificate)
            self._listener = TlsListener(TlsContext(settings, server=True, now_s=lambda: 0.0, note=self.log.note))
            self._trusted = ssl.create_default_context(cafile=str(authority.certificate))
        self._loop = asyncio.new_event_loop()
        self.sound = [
            client_hello(version, name)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
            for name in ("localhost", "broker.example")
        ]

    def __del__(self) -> None:
        self._loop.close()

    def feed(self, data: bytes) -> str:
        self._fed += 1
        if self._fed % LIFE == 1:
            self._sound_handshake()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for one in (ours, theirs):
                one.setblocking(False)
            with suppress(BlockingIOError):
                theirs.send(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                self._loop.run_until_complete(self._listener.upgrade(ours, Requester("SSL", "10.0.0.9")))
            except HandshakeFailed as failed:
                if len(str(failed)) > LINE_MAX:
                    raise Crash(f"a reason of {len(str(failed))} characters") from None
            else:
                raise Crash("a handshake without its end was taken")
            answer = b""
            with suppress(BlockingIOError, ConnectionError):
                answer = theirs.recv(5)
        self.log.take(0)
        return "answered" if answer[:1] == b"\x16" else "refused"

    def _sound_handshake(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            client = self._trusted.wrap_socket(theirs, server_hostname="localhost", do_handshake_on_connect=False)

            async def both() -> None:
                from controller.hosts.tls import _handshake

                await asyncio.gather(self._listener.upgrade(ours, Requester("SSL", "h")), _handshake(client))

            self._loop.run_until_complete(both())
            client.close()


def tls_settings_of(key: Path, authority: Path) -> TlsSettings:
    from controller.broker.security.tls_settings import tls_settings

    found, problems = tls_settings(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority),
            "ssl.client.auth": "requested",
        },
        "SSL",
    )
    assert found is not None, problems
    return found


def security_feeds() -> list[tuple[str, list[bytes], Any]]:
    """(name, sound inputs, feed) of each target."""
    made: list[tuple[str, Any]] = [
        ("SASL frames", SaslFrames()),
        ("SASL messages", SaslMessages()),
        ("znode of credentials", CredentialZnode()),
        ("znodes of ACLs", AclZnodes()),
        ("znodes of quotas", QuotaZnodes()),
        ("TLS handshake", TlsHandshakes()),
    ]
    return [(f"security: {name}", one.sound, one.feed) for name, one in made]
