"""TLS between a client and the socket server: what goes through, who the client is, and what is refused, and why."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from controller.broker.request_context import Respond
from controller.broker.security.principal import Requester
from controller.broker.security.tls_settings import mapping_rules, principal_of, tls_settings
from controller.broker.settings import Listener
from controller.distinguished_names import distinguished_name
from controller.hosts.server import ServerLimits, SocketServer
from controller.hosts.tls import BadCertificates, TlsContext, TlsListener
from controller.protocol.framing import framed
from controller.storage.disk import FileRange
from controller.storage.disk_files import FileDisk
from tests.hosts.certificates import Authority
from tests.hosts.harness import KeptTrace, running_network
from tests.hosts.test_server import DEADLINE_S, read
from tests.processes import eventually

LARGE = 3 * 1024 * 1024


class Pki:
    """An authority with a server's and a client's certificate, and another one that the server does not know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.other = Authority(folder), Authority(folder, "other")
        self.server = self.authority.sign("server", "/O=acme/CN=broker")
        self.client = self.authority.sign("client", "/O=acme/OU=x, y/CN=alice")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class Served:
    def __init__(self, port: int, trace: KeptTrace) -> None:
        self.port, self.trace = port, trace
        self.clients: list[Requester] = []
        self.file: Any = None

    def receive(self, frame: bytes, respond: Respond, client: Requester) -> None:
        self.clients.append(client)
        respond([FileRange(self.file, 0, LARGE)] if frame == b"records" else [frame])


@contextmanager
def served(keystore: Path, **given: str) -> Iterator[Served]:
    names = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM", "ssl.keystore.location": str(keystore)}
    names |= {"ssl." + name.replace("_", "."): value for name, value in given.items()}
    settings, problems = tls_settings(names, "SSL")
    assert settings is not None, problems
    trace = KeptTrace()
    with running_network() as network:
        server = SocketServer(network, ServerLimits(1 << 24, stall_ms=1_000), trace)
        port = server.bind([Listener("SSL", "127.0.0.1", 0)])["SSL"]
        context = TlsContext(settings, server=True, now_s=time.monotonic, note=server.note)
        server.tls["SSL"] = TlsListener(context)
        made = Served(port, trace)
        server.serve(made.receive)
        yield made
        server.close()


def connect(port: int, trusted: Path, certificate: Path | None = None, version: Any = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(trusted))
    if certificate is not None:
        context.load_cert_chain(certificate)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    return context.wrap_socket(sock, server_hostname="127.0.0.1")


def warned(server: Served, *words: str) -> None:
    eventually(lambda: any(all(word in line for word in words) for line in server.trace.notes("warning")), str(words))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_frames_of_any_size_go_through(pki: Pki, version: Any, tmp_path: Path) -> None:
    with served(pki.server) as server:
        data = os.urandom(LARGE)
        (tmp_path / "records").write_bytes(data)
        server.file = FileDisk().open(str(tmp_path / "records"))
        with closing(connect(server.port, pki.authority.certificate, version=version)) as connection:
            for size in (1, 2_000, 20_000, 1_000_000):
                frame = os.urandom(size)
                connection.sendall(framed(frame))
                assert read(connection) == frame
            many = [b"%d" % n for n in range(300)]
            connection.sendall(b"".join(framed(frame) for frame in many))
            assert [read(connection) for _ in many] == many
            connection.sendall(framed(b"records"))
            assert read(connection) == data
        assert {str(one.principal) for one in server.clients} == {"User:ANONYMOUS"}


def test_the_principal_is_the_certificates_subject(pki: Pki) -> None:
    trusted = {"client_auth": "required", "truststore_location": str(pki.authority.certificate)}
    rules = {"principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/U, DEFAULT"}
    for given, expected in ((trusted, "User:CN=alice,OU=x\\, y,O=acme"), (trusted | rules, "User:ALICE")):
        with served(pki.server, **given) as server:
            with closing(connect(server.port, pki.authority.certificate, pki.client)) as connection:
                connection.sendall(framed(b"a"))
                assert read(connection) == b"a"
            assert str(server.clients[0].principal) == expected


def refused(server: Served, trusted: Path, certificate: Path | None = None, version: Any = None) -> None:
    """The handshake fails, at this end or at the first read (TLS 1.3)."""
    with pytest.raises(OSError):  # noqa: PT012
        connection = connect(server.port, trusted, certificate, version)
        connection.sendall(framed(b"a"))
        if not connection.recv(1):
            raise ConnectionResetError
    assert not server.clients


def test_a_client_that_can_not_show_who_it_is_is_refused(pki: Pki) -> None:
    trusted = str(pki.authority.certificate)
    expired = pki.authority.sign("expired", "/CN=late", days=-1)
    unknown = pki.other.sign("unknown", "/CN=eve")
    for certificate, words in ((None, "PEER_DID_NOT_RETURN"), (expired, "VERIFY_FAILED"), (unknown, "VERIFY_FAILED")):
        with served(pki.server, client_auth="required", truststore_location=trusted) as server:
            refused(server, pki.authority.certificate, certificate)
            warned(server, "TLS handshake with 127.0.0.1 on listener SSL failed", words)
    with served(
        pki.server, client_auth="required", truststore_location=trusted, principal_mapping_rules="RULE:^CN=bob$/bob/"
    ) as server:
        refused(server, pki.authority.certificate, pki.client)
        warned(server, "no rule of ssl.principal.mapping.rules is for CN=alice")


def test_a_client_does_not_trust_an_unknown_authority(pki: Pki) -> None:
    with served(pki.server) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(server.port, pki.other.certificate)
        warned(server, "UNKNOWN_CA")


def test_an_older_protocol_and_no_protocol_are_refused(pki: Pki) -> None:
    with served(pki.server, enabled_protocols="TLSv1.3") as server:
        refused(server, pki.authority.certificate, version=ssl.TLSVersion.TLSv1_2)
        warned(server, "UNSUPPORTED_PROTOCOL")
        with closing(socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)) as plain:
            plain.sendall(framed(b"a" * 100))
            with suppress(ConnectionResetError):
                assert not plain.recv(100).startswith(b"\0")
        warned(server, "what the client sends is not TLS")
        with closing(socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)) as silent:
            assert silent.recv(1) == b"", "closed after its time"
        warned(server, "not done in 1000 ms")


def test_certificates_are_loaded_again(pki: Pki, tmp_path: Path) -> None:
    keystore = tmp_path / "server.pem"
    keystore.write_bytes(pki.server.read_bytes())
    settings, _ = tls_settings({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}, "SSL")
    assert settings is not None
    now: list[float] = [0.0]
    levels: list[str] = []
    context = TlsContext(settings, server=True, now_s=lambda: now[0], note=lambda level, _: levels.append(level))
    first = context.current()
    now[0] += 10.0
    assert context.current() is first
    keystore.write_bytes(pki.client.read_bytes())
    os.utime(keystore, ns=(1, 1))
    now[0] += 10.0
    second = context.current()
    assert second is not first
    keystore.write_text("no certificate")
    os.utime(keystore, ns=(2, 2))
    now[0] += 10.0
    assert context.current() is second
    assert levels == ["info", "error"]


def test_certificates_that_can_not_be_loaded_are_named(pki: Pki, tmp_path: Path) -> None:
    settings, _ = tls_settings({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "none")}, "SSL")
    assert settings is not None
    with pytest.raises(BadCertificates, match="none"):
        TlsContext(settings, server=True, now_s=lambda: 0.0, note=lambda _level, _text: None)
    text = pki.server.read_text()
    key, chain = text[: text.index("-----BEGIN CERT")], text[text.index("-----BEGIN CERT") :]
    inline = {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
    settings, _ = tls_settings(inline, "SSL")
    assert settings is not None
    TlsContext(settings, server=True, now_s=lambda: 0.0, note=lambda _level, _text: None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "expected ssl.keystore.location"),
        ({"ssl.keystore.location": "k"}, "ssl.keystore.type=JKS: expected PEM"),
        ({"ssl.client.auth": "maybe"}, "none, requested, required"),
        ({"ssl.client.auth": "required"}, "expected ssl.truststore.location"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2 or TLSv1.3"),
        ({"ssl.principal.mapping.rules": "RULE:("}, "expected DEFAULT or RULE:"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, str], says: str) -> None:
    settings, problems = tls_settings(given, "SSL")
    assert settings is None
    assert any(says in problem for problem in problems)


def test_a_listener_has_its_own_settings() -> None:
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "all",
        "listener.name.out.ssl.keystore.location": "own",
    }
    for listener, expected in (("OUT", "own"), ("IN", "all")):
        settings, _ = tls_settings(given, listener)
        assert settings is not None
        assert settings.keystore == expected


def test_names_are_mapped_by_the_first_rule_that_fits() -> None:
    rules = mapping_rules("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT")
    assert str(principal_of("CN=kafka,OU=ServiceUsers,O=x", rules)) == "User:kafka"
    assert str(principal_of("CN=Admin.One,OU=Other", rules)) == "User:admin.one"
    assert str(principal_of("O=acme", rules)) == "User:O=acme"
    assert distinguished_name(((("countryName", "DE"),), (("commonName", "#a+b "),))) == "CN=\\#a\\+b\\ ,C=DE"
