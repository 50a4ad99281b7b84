"""The connection to ZooKeeper over TLS, and the ACLs of zookeeper.set.acl."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.hosts.listener_security import report_open_znodes
from controller.hosts.network import RealClock
from controller.log import logger
from controller.system import HeldPorts
from controller.zookeeper import digest_md5, launch, paths
from controller.zookeeper.blocking import wait
from controller.zookeeper.digest_md5 import DigestClient, DigestFailed, DigestServer, fields_of
from controller.zookeeper.embedded import find_jars, find_java
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.kazoo_session import NoCallbackThreads, ask_version
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    PERM_ALL,
    AuthenticationFailed,
    Create,
    InvalidACL,
    MultiFailed,
    NoAuth,
)
from controller.zookeeper.server.server import ZooKeeperServer
from tests.fuzz.mutations import malformed
from tests.hosts.certificates import Authority
from tests.hosts.harness import running_network
from tests.processes import eventually

LIMIT_S = 20.0
TIMEOUT_MS = 6_000


class Pki:
    def __init__(self, folder: Path) -> None:
        self.authority, self.other = Authority(folder), Authority(folder, "other")
        self.server = self.authority.sign("server", "/CN=zookeeper")
        self.client = self.authority.sign("client", "/CN=broker")

    def context(self, *, asks_clients: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        if asks_clients:
            context.load_verify_locations(self.authority.certificate)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class Encrypting:
    """What `ListenerSecurity.zookeeper` makes of the settings."""

    def __init__(self, authority: Path, client: Path | None = None) -> None:
        self.context = ssl.create_default_context(cafile=str(authority))
        if client is not None:
            self.context.load_cert_chain(client)
        self.hosts: list[str] = []

    def __call__(self, plain: socket.socket, host: str) -> socket.socket:
        self.hosts.append(host)
        return self.context.wrap_socket(plain, server_hostname=host)


@contextmanager
def clock() -> Iterator[RealClock]:
    with running_network() as network:
        yield network.clock


@contextmanager
def connected(hosts: str, encrypt: Encrypting | None = None, **options: object) -> Iterator[KazooConnection]:
    with clock() as time:
        connection = KazooConnection(hosts, time, TIMEOUT_MS, encrypt=encrypt, **options)  # type: ignore[arg-type]
        try:
            wait(connection.start(), LIMIT_S)
            yield connection
        finally:
            wait(connection.close(), LIMIT_S)


@pytest.mark.parametrize("asks_clients", [False, True])
def test_requests_and_large_answers_go_through_tls(pki: Pki, asks_clients: bool) -> None:
    encrypt = Encrypting(pki.authority.certificate, pki.client if asks_clients else None)
    with (
        ZooKeeperServer(tls=pki.context(asks_clients=asks_clients)) as server,
        connected(f"localhost:{server.port}/chroot", encrypt, create_chroot=True) as connection,
    ):
        data = bytes(100_000)
        wait(connection.multi([Create("/a", data), Create("/b", b"1")]), LIMIT_S)
        reads = [connection.read(["/b"]) for _ in range(50)] + [connection.read(["/a", "/b"])]
        rows = [wait(read, LIMIT_S).rows for read in reads]
        assert [row.data for row in rows[-1] if row is not None] == [data, b"1"]
        assert set(encrypt.hosts) == {"localhost"}, "the name is checked that was configured"
        assert ask_version("127.0.0.1", server.port, 5.0, lambda plain: encrypt(plain, "localhost")) == (3, 9)


def test_what_tls_holds_is_readable_though_the_system_shows_nothing() -> None:
    ours, theirs = socket.socketpair()

    class Held:
        def __init__(self, size: int) -> None:
            self._size = size

        def pending(self) -> int:
            return self._size

        def fileno(self) -> int:
            return ours.fileno()

    with ours, theirs:
        held, empty = Held(5), Held(0)
        handler = NoCallbackThreads(None)
        assert handler.select([empty, held], [], [], LIMIT_S) == ([held], [], [])
        assert handler.select([empty], [], [], 0.0) == ([], [], [])


def refused(pki: Pki, encrypt: Encrypting, *, asks_clients: bool = False) -> list[str]:
    """The warnings of a connection that is not made, which does not start."""
    lines: list[str] = []
    logger.enable("controller")
    sink = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    try:
        with ZooKeeperServer(tls=pki.context(asks_clients=asks_clients)) as server, clock() as time:
            connection = KazooConnection(f"localhost:{server.port}", time, TIMEOUT_MS, encrypt=encrypt)
            started = connection.start()
            with pytest.raises(TimeoutError):
                wait(started, 0.5)
            wait(connection.close(), LIMIT_S)
    finally:
        logger.remove(sink)
        logger.disable("controller")
    return lines


def test_a_server_of_an_unknown_authority_is_refused_and_one_line_says_so(pki: Pki) -> None:
    (line,) = refused(pki, Encrypting(pki.other.certificate))
    assert "TLS with ZooKeeper failed" in line
    assert "certificate verify failed" in line


ACLS = [
    ("/consumers", "world:anyone:31"),
    ("/consumers/g", "auth::31 world:anyone:1"),
    ("/brokers/ids/1", "auth::31 world:anyone:1"),
    ("/config/topics/t", "auth::31 world:anyone:1"),
    ("/config/users", "auth::31"),
    ("/config/users/alice", "auth::31"),
    ("/config/brokers/<default>", "auth::31"),
    ("/delegation_token/tokens/1", "auth::31"),
    ("/kafka-acl/Topic/t", "auth::31 world:anyone:1"),
]


@pytest.mark.parametrize(("path", "expected"), ACLS)
def test_each_znode_gets_kafkas_acl(path: str, expected: str) -> None:
    assert " ".join(f"{one.scheme}:{one.id}:{one.permissions}" for one in paths.secure_acl(path)) == expected


def test_credentials_are_hidden_and_what_was_made_open_is_reported() -> None:
    own: dict[str, Any] = {"auth": (("digest", "kafka:secret"),), "acl_of": paths.secure_acl}
    lines: list[str] = []
    with ZooKeeperServer() as server, connected(server.connect_string, **own) as broker:
        made = [Create("/config", None), Create("/config/users", None), Create("/config/users/alice", b"hidden")]
        made += [Create("/brokers", None), Create("/brokers/ids", None, acl=OPEN_ACL), Create("/consumers", None)]
        wait(broker.multi(made), LIMIT_S)
        with connected(server.connect_string) as stranger:
            assert wait(stranger.read(["/brokers"]), LIMIT_S).rows[0] is not None
            with pytest.raises(NoAuth):
                wait(stranger.read(["/config/users/alice"]), LIMIT_S)
            with pytest.raises(MultiFailed) as failed:
                wait(stranger.multi([Create("/config/users/eve", b"{}")]), LIMIT_S)
            assert isinstance(failed.value.error, NoAuth)
        report_open_znodes(broker, lambda _level, text: lines.append(text))
        eventually(lambda: bool(lines), "it is reported")
    assert lines == ["zookeeper.set.acl=true, but everyone may change or read /brokers/ids: made without it"]


def test_a_certificate_is_an_identity(pki: Pki) -> None:
    encrypt = Encrypting(pki.authority.certificate, pki.client)
    with ZooKeeperServer(tls=pki.context(asks_clients=True), sasl_users=USERS) as server:
        hosts = f"localhost:{server.port}"
        with connected(hosts, encrypt, acl_of=paths.secure_acl, sasl=("kafka", USERS["kafka"])) as broker:
            wait(broker.multi([Create("/brokers", b"1")]), LIMIT_S)
            entries = [(one.scheme, one.id) for one in wait(broker.acl("/brokers"), LIMIT_S)]
            assert entries == [("x509", "CN=broker"), ("sasl", "kafka"), ("world", "anyone")], "as Apache's"
        with connected(hosts, encrypt) as by_certificate:
            wait(
                by_certificate.multi([Create("/brokers/ids", b"1", acl=(ACL(PERM_ALL, "x509", "CN=other"),))]), LIMIT_S
            )
            with pytest.raises(NoAuth):
                wait(by_certificate.read(["/brokers/ids"]), LIMIT_S)
        with connected(hosts, Encrypting(pki.authority.certificate, pki.server)) as other, pytest.raises(MultiFailed):
            wait(other.multi([Create("/brokers/seqid", b"1")]), LIMIT_S)
    with ZooKeeperServer() as plain, connected(plain.connect_string) as client, pytest.raises(MultiFailed) as failed:
        wait(client.multi([Create("/a", b"", acl=(ACL(PERM_ALL, "x509", "CN=broker"),))]), LIMIT_S)
    assert isinstance(failed.value.error, InvalidACL)


@pytest.mark.programs
def test_apache_zookeeper_is_reached_over_tls_and_takes_the_login(pki: Pki, tmp_path: Path) -> None:
    """secureClientPort needs Netty, whose jars PySpark has."""
    jars, held = find_jars(), HeldPorts(1)
    (port,) = held.numbers
    (tmp_path / "server.pem").write_bytes(pki.server.read_bytes())
    (tmp_path / "authority.pem").write_bytes(pki.authority.certificate.read_bytes())
    settings = {
        "tickTime": "500",
        "dataDir": str(tmp_path / "data"),
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(tmp_path / "server.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(tmp_path / "authority.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    (tmp_path / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    netty = sorted(jars.required[0].parent.glob("netty-*.jar"))
    path = ":".join([jars.class_path(), *map(str, netty)])
    login = "org.apache.zookeeper.server.auth.DigestLoginModule"
    (tmp_path / "jaas.conf").write_text(f'Server {{ {login} required user_kafka="secret"; }};\n')
    sasl = "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    options = [f"-Djava.security.auth.login.config={tmp_path / 'jaas.conf'}", sasl]
    options += ["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=*"]
    argv = [str(find_java()), *options, "-cp", path, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
    encrypt = Encrypting(pki.authority.certificate, pki.client)
    with (tmp_path / "log").open("wb") as log:
        process = launch.launch([*argv, str(tmp_path / "zoo.cfg")], stdout=log, stderr=log)
    try:
        own: dict[str, Any] = {"sasl": ("kafka", "secret"), "acl_of": paths.secure_acl}
        with connected(f"localhost:{port}", encrypt, **own) as connection:
            # The certificate is an identity, too: the creator of a znode is who it names.
            wait(connection.multi([Create("/brokers", b"1")]), LIMIT_S)
            entries = {(one.scheme, one.id) for one in wait(connection.acl("/brokers"), LIMIT_S)}
            assert entries == {("x509", "CN=broker"), ("sasl", "kafka"), ("world", "anyone")}
            reads = [connection.read(["/brokers"]) for _ in range(50)]
            assert all(wait(read, LIMIT_S).rows[0] is not None for read in reads)
        wrong = connected(f"localhost:{port}", encrypt, sasl=("kafka", "guess"))
        with pytest.raises(AuthenticationFailed), wrong:
            pass
    finally:
        launch.kill(process)
        held.release()


USERS = {"kafka": 'se"cret'}


def challenged() -> tuple[DigestClient, DigestServer, bytes]:
    client, server = DigestClient("kafka", USERS["kafka"], "ours"), DigestServer(USERS, "theirs")
    return client, server, client.answer(server.answer(b""))


def test_both_ends_of_digest_md5_prove_the_password() -> None:
    client, server, proof = challenged()
    client.check(server.answer(proof))
    assert server.user == "kafka"
    with pytest.raises(DigestFailed):
        client.check(b"rspauth=0")
    with pytest.raises(DigestFailed):  # not again
        server.answer(proof)


def test_the_proof_is_that_of_rfc_2831s_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_md5, "URI", "imap/elwood.innosoft.com")
    given = ("chris", "secret", "elwood.innosoft.com", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk")
    assert digest_md5._proof(*given, "AUTHENTICATE") == "d388dad90d4bbd760a152321f2143af7"
    assert digest_md5._proof(*given, "") == "ea40f60335c427b5527b84dbabcdfffd"


def test_no_mutation_of_a_proof_is_taken_and_nothing_else_is_raised() -> None:
    rng = random.Random(5)
    for _ in range(2_000):
        _, server, proof = challenged()
        made = malformed(rng, [proof])
        try:
            server.answer(made)
        except DigestFailed:
            continue
        assert fields_of(made)["response"] == fields_of(proof)["response"]


def test_sasl_gives_an_identity_and_a_wrong_password_none() -> None:
    own: dict[str, Any] = {"sasl": ("kafka", USERS["kafka"]), "acl_of": paths.secure_acl}
    with ZooKeeperServer(sasl_users=USERS) as server:
        with connected(server.connect_string, **own) as broker:
            wait(broker.multi([Create("/brokers", b"1")]), LIMIT_S)
            assert wait(broker.acl("/brokers"), LIMIT_S)[0] == ACL(PERM_ALL, "sasl", "kafka")
            wait(broker.multi([Create("/brokers/ids", b"1")]), LIMIT_S)
        with connected(server.connect_string) as stranger, pytest.raises(MultiFailed):
            wait(stranger.multi([Create("/brokers/seqid", b"1")]), LIMIT_S)
        with ZooKeeperServer() as other, pytest.raises(AuthenticationFailed):  # which knows no users
            with connected(other.connect_string, sasl=("kafka", USERS["kafka"])):
                pass
        for wrong in (("kafka", "guess"), ("eve", "guess")):
            with pytest.raises(AuthenticationFailed), connected(server.connect_string, sasl=wrong):
                pass
