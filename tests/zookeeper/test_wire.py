"""The server in Python answers raw requests as a real server does, and what only it has: faults and its words."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from controller.zookeeper.embedded import four_letter_word
from controller.zookeeper.jute import END, INT, MULTI_HEADER, acl_entries, buffer, string
from controller.zookeeper.operations import OPEN_ACL
from controller.zookeeper.server import wire
from controller.zookeeper.server.server import ZooKeeperServer
from controller.zookeeper.server.wire import OpCode
from tests.processes import eventually
from tests.zookeeper.wire_client import RawClient
from tests.zookeeper.wire_fuzz import Pair, pair
from tests.zookeeper.wire_histories import Connect, Request, WireStep

HISTORIES, TCP_HISTORIES = 50, 10
TIMED_HISTORIES = (109, 153)
LONG_AGO_MS = 1
IDLE_CONNECTIONS = 100


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with pair() as running:
        yield running


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tick_ms=100, max_session_timeout_ms=60_000, container_check_ms=1) as running:
        yield running


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    made = KazooClient(server.connect_string, timeout=20.0)
    made.start()
    yield made
    made.stop()
    made.close()


def test_random_histories_have_a_real_servers_answers(servers: Pair) -> None:
    for seed in range(1, HISTORIES + 1):
        found = servers.difference(seed)
        assert found is None, found
    found = servers.clean()
    assert found is None, found


def test_the_parent_of_a_bad_path_is_looked_for_within_its_multi(servers: Pair) -> None:
    created = buffer(b"") + acl_entries(OPEN_ACL) + INT.pack(0)
    for name in ("/m/", "/none/"):
        rows = [MULTI_HEADER.pack(OpCode.CREATE, 0, -1) + string(f"/bad{path}") + created for path in ("/m", name)]
        asked = Request(OpCode.MULTI, b"".join(rows) + END)
        assert servers.compare(name, "/bad", [WireStep(0, (asked,))]) is None
        assert servers.clean() is None


def test_histories_over_tcp_and_of_expiring_sessions_and_timers() -> None:
    with pair(tcp=True) as over_tcp:
        assert [over_tcp.difference(seed) for seed in range(1, TCP_HISTORIES + 1)] == [None] * TCP_HISTORIES
    with pair(timed=True) as timed:
        assert [timed.confirmed_difference(seed) for seed in TIMED_HISTORIES] == [None] * len(TIMED_HISTORIES)


def test_the_comparison_sees_a_fault_of_the_server(servers: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = wire.stat
    monkeypatch.setattr(wire, "stat", lambda value: stat(value._replace(version=value.version + 1)))
    assert any(servers.difference(seed) for seed in range(1_001, 1_011))


@pytest.mark.parametrize("size", [-1, 1 << 24])
def test_a_frame_of_no_size_ends_its_connection(server: ZooKeeperServer, size: int) -> None:
    raw = RawClient(server.connect_string)
    raw.renew()
    raw.write(struct.pack("!i", size))
    assert raw.frame() is None
    raw.disconnect()


def test_a_client_from_the_future_is_sent_away(server: ZooKeeperServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(wire.frame(struct.pack("!iqiq", 0, 1 << 40, 1_000, 0), buffer(bytes(16)), b"\0"))
        assert connection.recv(1) == b""


def test_a_wrong_password_gets_no_session(server: ZooKeeperServer) -> None:
    raw = RawClient(server.connect_string)
    raw.renew()
    raw.password = b"x" * 16
    assert not raw.connect()
    assert raw.frame() is None
    raw.disconnect()


def test_abandoned_containers_and_ttl_nodes_are_deleted(server: ZooKeeperServer, client: KazooClient) -> None:
    raw = RawClient(server.connect_string)
    raw.renew()
    created = buffer(b"") + acl_entries(OPEN_ACL)
    for operation, path, rest in (
        (OpCode.CREATE_CONTAINER, "/used", INT.pack(4)),
        (OpCode.CREATE_CONTAINER, "/unused", INT.pack(4)),
        (OpCode.CREATE_TTL, "/old", INT.pack(5) + struct.pack("!q", LONG_AGO_MS)),
    ):
        raw.send(operation, string(path) + created + rest)
        raw.frame()
    client.create("/used/child")
    client.delete("/used/child")
    eventually(lambda: set(client.get_children("/")) == {"zookeeper", "unused"}, "two nodes are deleted")
    raw.disconnect()


def test_a_paused_server_answers_when_it_goes_on(server: ZooKeeperServer, client: KazooClient) -> None:
    server.pause()
    pending = client.create_async("/a")
    time.sleep(0)
    assert not pending.ready()
    server.resume()
    assert pending.get(10) == "/a"


def test_a_partitioned_client_loses_its_ephemerals_and_hears_of_it_after_the_healing(
    server: ZooKeeperServer, client: KazooClient
) -> None:
    other = KazooClient(server.connect_string, timeout=0.4)
    states: list[str] = []
    other.add_listener(states.append)
    other.start()
    other.create("/mine", ephemeral=True)
    session = other.client_id[0]
    server.partition(session)
    eventually(lambda: client.exists("/mine") is None, "the session has ended")
    assert "LOST" not in states
    server.heal(session)
    eventually(lambda: states[-2:] == ["LOST", "CONNECTED"], "a new session")
    other.stop()
    other.close()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply(server: ZooKeeperServer, client: KazooClient, applied: bool) -> None:
    server.lose_reply(client.client_id[0], applied=applied)
    transaction = client.transaction()
    transaction.create("/a")
    with pytest.raises(ConnectionLoss):
        transaction.commit()
    assert (client.retry(client.exists, "/a") is not None) is applied


def test_an_expired_session_and_a_dropped_connection(server: ZooKeeperServer, client: KazooClient) -> None:
    client.create("/mine", ephemeral=True)
    session = client.client_id[0]
    server.drop_connection(session)
    assert client.retry(client.exists, "/mine").ephemeralOwner == session
    server.expire(session)
    eventually(lambda: client.client_id is not None and client.client_id[0] != session, "a new session")
    with pytest.raises(NoNodeError):
        client.retry(client.get, "/mine")
    with pytest.raises(KeyError):
        server.expire(session)


def test_data_and_sessions_outlive_a_stop(server: ZooKeeperServer, client: KazooClient) -> None:
    client.create("/mine", b"1", ephemeral=True)
    server.slow(5.0)
    server.stop()
    server.start()
    assert client.retry(client.get, "/mine")[0] == b"1"


def test_the_four_letter_words(server: ZooKeeperServer, client: KazooClient) -> None:
    client.create("/mine", ephemeral=True)
    client.exists("/mine", watch=lambda _event: None)
    said = {
        word: four_letter_word(server.port, word, 10.0)
        for word in ("ruok", "isro", "srvr", "stat", "mntr", "conf", "cons", "envi", "dump", "wchs", "wchp", "wchc")
    }
    assert said["ruok"] == "imok"
    assert said["isro"] == "rw"
    assert "Mode: standalone" in said["srvr"]
    assert "Mode: standalone" in said["stat"]
    assert "zk_ephemerals_count\t1\n" in said["mntr"]
    assert f"clientPort={server.port}\n" in said["conf"]
    assert f"sid=0x{client.client_id[0]:x}" in said["cons"]
    assert "zookeeper.version=3.9" in said["envi"]
    assert "\t/mine" in said["dump"]
    assert "Total watches:1\n" in said["wchs"]
    assert said["wchp"].startswith("/mine\n\t0x")
    assert "\t/mine\n" in said["wchc"]


def test_a_step_names_its_request() -> None:
    asked = Request(OpCode.SYNC, b"x"), Request(OpCode.SET_WATCHES, b"", 2)
    assert str(WireStep(1, asked)) == "client 1: SYNC b'x'; SET_WATCHES (2 ago) b''"
    assert str(WireStep(2, connect=Connect.AFTER_CLOSING)) == "client 2 closes its connection and opens another"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"tick_ms": 0}, "tick_ms 0"), ({"min_session_timeout_ms": 9, "max_session_timeout_ms": 8}, "from 9 to 8 ms")],
)
def test_settings_that_make_no_server(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ZooKeeperServer(**settings)  # type: ignore[arg-type]


def test_a_client_that_reads_no_replies_is_read_no_further(server: ZooKeeperServer, client: KazooClient) -> None:
    client.create("/big", bytes(900_000))
    with socket.create_connection((server.host, server.port)) as greedy:
        greedy.sendall(wire.frame(struct.pack(">iqiq", 0, 0, 10_000, 0), buffer(bytes(16))))
        ask = wire.frame(struct.pack(">ii", 1, OpCode.GET_DATA), string("/big"), b"\x00")
        greedy.sendall(ask * 40)
        eventually(lambda: any(one._full for one in server.core.connections), "its replies fill the socket")
        greedy.settimeout(0.5)
        with pytest.raises(TimeoutError):
            greedy.sendall(bytes(64 << 20))
        assert client.get("/big")[1].version == 0


def test_idle_connections_are_bounded_by_address_and_leave_clients_alone() -> None:
    with (
        ZooKeeperServer(max_session_timeout_ms=60_000, max_connections_per_address=IDLE_CONNECTIONS + 1) as bounded,
        contextlib.ExitStack() as open_sockets,
    ):
        client = RawClient(bounded.connect_string)
        client.renew()

        def connect() -> socket.socket:
            return open_sockets.enter_context(socket.create_connection((bounded.host, bounded.port), timeout=20))

        idle = [connect() for _ in range(IDLE_CONNECTIONS)]
        eventually(lambda: len(bounded.core.connections) == IDLE_CONNECTIONS + 1, "all are accepted")
        assert connect().recv(1) == b""
        client.send(OpCode.PING, b"")
        assert client.frame() is not None
        idle[0].close()
        eventually(lambda: four_letter_word(bounded.port, "ruok", 10.0) == "imok", "one may connect again")
        client.disconnect()


def test_idle_connections_are_closed_after_the_longest_session_timeout() -> None:
    with (
        ZooKeeperServer(tick_ms=50, max_session_timeout_ms=200) as brief,
        contextlib.ExitStack() as open_sockets,
    ):
        for _ in range(IDLE_CONNECTIONS):
            silent = open_sockets.enter_context(socket.create_connection((brief.host, brief.port), timeout=20))
        assert silent.recv(1) == b""
        eventually(lambda: not brief.core.connections, "no connection is left")
