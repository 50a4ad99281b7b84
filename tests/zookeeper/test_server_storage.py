"""A ZooKeeper server that keeps its data: what clients see over restarts, before a sync, and when the disk fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl

from controller.zookeeper.server.files import AppendedFile, DataDirectory, DataDirectoryInUse
from controller.zookeeper.server.log import DamagedDataFile
from controller.zookeeper.server.requests import CONTAINER_OWNER
from controller.zookeeper.server.server import ZooKeeperServer
from tests.processes import eventually

DEADLINE_S = 30.0


def connected(server: ZooKeeperServer, client_id: tuple[int, bytes] | None = None) -> KazooClient:
    client = KazooClient(server.connect_string, timeout=20.0, client_id=client_id)
    client.start(DEADLINE_S)
    return client


def ended(*clients: KazooClient) -> None:
    for client in clients:
        client.stop()
        client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(data_dir=tmp_path / "data", max_session_timeout_ms=60_000) as running:
        yield running


def test_a_new_server_on_the_directory_has_all_that_clients_could_see(tmp_path: Path) -> None:
    first = ZooKeeperServer(data_dir=tmp_path, max_session_timeout_ms=60_000, snapshot_transactions=5)
    with first:
        client = connected(first)
        client.create("/kept", b"1")
        client.set("/kept", b"2")
        client.create("/kept/none", None)
        client.create("/kept/s-", sequence=True)
        client.delete(client.create("/kept/s-", sequence=True))
        client.create("/secret", b"3", acl=[make_digest_acl("user", "word", all=True)])
        client.set_acls("/kept/none", READ_ACL_UNSAFE)
        client.create("/mine", ephemeral=True)
        other = connected(first)
        other.create("/gone", ephemeral=True)
        ended(other)
        with pytest.raises(NoNodeError):
            client.set("/absent", b"")
        zxid = first.core.zxid
        seen = {path: (client.exists(path), client.get_acls(path)) for path in ("/kept", "/kept/none", "/mine")}
        identity = client.client_id
        first.stop()
        ended(client)
    second = ZooKeeperServer(data_dir=tmp_path, max_session_timeout_ms=60_000)
    with second:
        assert second.core.zxid == zxid
        client = connected(second, identity)
        assert client.client_id == identity
        assert {path: (client.exists(path), client.get_acls(path)) for path in seen} == seen
        assert client.exists("/gone") is None
        assert client.create("/kept/s-", sequence=True) == "/kept/s-0000000003"
        client.add_auth("digest", "user:word")
        assert client.get("/secret")[0] == b"3"
        ended(client)
        other = connected(second)
        assert other.exists("/mine") is None
        assert other.client_id[0] > identity[0]
        ended(other)


def test_containers_are_still_deleted_after_their_last_child(tmp_path: Path) -> None:
    options = {"data_dir": tmp_path, "max_session_timeout_ms": 60_000}
    with ZooKeeperServer(**options, container_check_ms=3_600_000) as server:  # type: ignore[arg-type]
        client = connected(server)
        client.create("/held", b"")
        client.delete(client.create("/held/child"))
        # As a container's, whose flag kazoo can't set; a write of its ACL logs the whole znode.
        server.core.processor.tree.nodes["/held"].extended = CONTAINER_OWNER
        client.set_acls("/held", OPEN_ACL_UNSAFE)
        ended(client)
    with ZooKeeperServer(**options, container_check_ms=1, tick_ms=50) as server:  # type: ignore[arg-type]
        eventually(lambda: "/held" not in server.core.processor.tree.nodes, "the container is deleted")


class Gate:
    """Holds back every sync of a log while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()
        sync = AppendedFile.sync

        def held(file: AppendedFile) -> None:
            if not self.open.is_set():
                self.waiting.set()
                assert self.open.wait(DEADLINE_S)
            sync(file)

        monkeypatch.setattr(AppendedFile, "sync", held)

    def close(self) -> None:
        self.waiting.clear()
        self.open.clear()


def test_nothing_of_a_write_is_seen_before_it_is_synced(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    writer, reader = connected(server), connected(server)
    writer.create("/a", b"old")
    events: list[str] = []
    reader.get("/a", watch=lambda event: events.append(event.path))
    gate.close()
    write = writer.set_async("/a", b"new")
    assert gate.waiting.wait(DEADLINE_S)
    read = reader.get_async("/a")
    ping = reader.exists_async("/b")
    storage = server.core.storage
    assert storage is not None
    eventually(lambda: len(storage._held) == 4, "two replies, an event and the reply to another read wait")
    assert not write.ready()
    assert not read.ready()
    assert not ping.ready()
    assert events == []
    gate.open.set()
    assert read.get(timeout=DEADLINE_S)[0] == b"new"
    assert write.get(timeout=DEADLINE_S).version == 1
    eventually(lambda: events == ["/a"], "the event")
    ended(writer, reader)


def test_writes_that_come_during_a_sync_share_the_next(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    client = connected(server)
    storage = server.core.storage
    assert storage is not None
    groups = storage.groups
    gate.close()
    first = client.create_async("/a")
    assert gate.waiting.wait(DEADLINE_S)
    others = [client.create_async(f"/a/{number}") for number in range(900)]
    eventually(lambda: len(storage._held) == 901, "all have come, and wait")
    gate.open.set()
    assert [each.get(timeout=DEADLINE_S) for each in (first, *others)][-1] == "/a/899"
    assert storage.groups - groups == 2
    ended(client)


def test_replies_that_wait_for_the_log_are_limited_and_so_are_the_requests_that_are_served(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    client = connected(server)
    storage = server.core.storage
    assert storage is not None
    gate.close()
    pending = [client.create_async(f"/{number}") for number in range(2_000)]
    eventually(lambda: len(storage._held) == 1_000, "as many replies wait as may")
    gate.open.set()
    assert [each.get(timeout=DEADLINE_S) for each in pending][-1] == "/1999"
    ended(client)


@pytest.mark.parametrize("failing", ["append", "sync"])
def test_a_disk_that_fails_ends_the_server_and_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    server = ZooKeeperServer(data_dir=tmp_path, max_session_timeout_ms=60_000)
    server.start()
    client = connected(server)
    client.create("/a", b"before")
    states: list[str] = []
    client.add_listener(states.append)

    def full(_file: AppendedFile, *_data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(AppendedFile, failing, full)
        write = client.set_async("/a", b"after")
        with pytest.raises(ConnectionLoss):
            write.get(timeout=DEADLINE_S)
        eventually(lambda: not server.running, "the server has stopped")
    assert isinstance(server.failure, OSError)
    assert server.failure.errno == errno.ENOSPC
    assert KazooState.SUSPENDED in states
    server.start()
    # Without an answer either may be; a write that never reached the file is not.
    assert client.retry(client.get, "/a")[0] in ((b"before",) if failing == "append" else (b"before", b"after"))
    ended(client)
    server.stop()


def test_a_snapshot_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_directory: DataDirectory, _name: str, _new_name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DataDirectory, "rename", refused)
    with ZooKeeperServer(data_dir=tmp_path, snapshot_transactions=3) as server:
        client = connected(server)
        for number in range(5):
            client.create(f"/{number}")
        eventually(lambda: bool(server.warnings), "the warning")
        assert server.warnings[0].endswith("the snapshot failed: No space left on device")
        assert client.create("/a")
        ended(client)


def test_a_session_ends_if_its_client_stays_away(tmp_path: Path) -> None:
    server = ZooKeeperServer(data_dir=tmp_path, tick_ms=50)
    with server:
        client = KazooClient(server.connect_string, timeout=0.4)
        client.start(DEADLINE_S)
        client.create("/mine", ephemeral=True)
        identity = client.client_id
        server.stop()
        ended(client)
        server.start()
        eventually(lambda: not server.core.sessions, "the session has ended")
        server.stop()
        server.start()
        assert "/mine" not in server.core.processor.tree.nodes
        assert identity[0] not in server.core.sessions


def test_a_second_server_is_refused_and_a_damaged_directory_too(tmp_path: Path) -> None:
    with ZooKeeperServer(data_dir=tmp_path) as server:
        with pytest.raises(DataDirectoryInUse, match="another ZooKeeper server"):
            ZooKeeperServer(data_dir=tmp_path).start()
        client = connected(server)
        client.create("/a")
        client.create("/b")
        ended(client)
    log = tmp_path / "log.0000000000000001"
    content = bytearray(log.read_bytes())
    content[40] ^= 1
    log.write_bytes(bytes(content))
    with pytest.raises(DamagedDataFile, match="offset 24: expected a frame with a valid CRC"):
        ZooKeeperServer(data_dir=tmp_path).start()
    log.unlink()
    with ZooKeeperServer(data_dir=tmp_path) as server:
        assert server.core.zxid == 0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="snapshot_transactions 0: expected more than 0"):
        ZooKeeperServer(snapshot_transactions=0)


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "controller.zookeeper.server", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_says_what_is_wrong(server: ZooKeeperServer, tmp_path: Path) -> None:
    for words, status, complaint in (
        (("--data", str(tmp_path / "data")), 3, f"{tmp_path / 'data'}: another ZooKeeper server uses this data"),
        (("--data", "/dev/null/data"), 3, "/dev/null/data: Not a directory"),
        (("--port", "70000"), 2, "--port 70000: expected 0 to 65535"),
    ):
        result = ran(*words)
        assert result.returncode == status, result.stderr
        assert complaint in result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_the_program_serves_until_a_signal_and_warns_of_what_it_cut(tmp_path: Path) -> None:
    (tmp_path / "log.0000000000000001").write_bytes(b"half a header")
    process = subprocess.Popen(
        [sys.executable, "-m", "controller.zookeeper.server", "--data", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    client = KazooClient(line.strip().partition("=")[2])
    client.start(DEADLINE_S)
    client.create("/a")
    ended(client)
    assert "warning: " in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    process.stderr.close()
