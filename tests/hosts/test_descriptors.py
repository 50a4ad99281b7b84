"""A broker process with few file descriptors: connections are refused first, its logs go on, and it says so once."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from controller.hosts.listening import reserved_descriptors
from controller.hosts.process import COULD_NOT_RUN
from controller.hosts.server import ServerLimits
from controller.protocol.client import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest, MetadataRequest
from controller.protocol.codec import ApiKey, decode_response, encode_request
from controller.protocol.framing import framed
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.protocol.schema import RequestValue, ResponseValue
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.launch import Process, kill, launch
from tests.broker.harness import header
from tests.cli.test_broker_command import COMMAND
from tests.hosts.test_server import read, serving_with
from tests.processes import DEADLINE_S, eventually
from tests.storage.batches import batch

LIMIT = 160
PARTITIONS = 4


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tick_ms=2_000) as server:
        yield server


class FewDescriptors:
    """A broker under `ulimit -n`."""

    def __init__(self, zookeeper: EmbeddedZooKeeper, folder: Path, limit: int, log_dirs: int = 1) -> None:
        self.log_file = folder / "broker.log"
        settings = {
            "broker.id": "1",
            "zookeeper.connect": f"{zookeeper.connect_string}/{folder.name}",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": ",".join(str(folder / "logs" / str(number)) for number in range(log_dirs))
            if log_dirs > 1
            else str(folder / "logs"),
            "log.segment.bytes": "10000",
        }
        given = [part for name, value in settings.items() for part in ("--override", f"{name}={value}")]
        with self.log_file.open("wb") as out:
            limited = ["bash", "-c", f'ulimit -n {limit} && exec "$@"', "bash", *COMMAND, *given]
            self.process: Process = launch(limited, stdout=out, stderr=out)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        return self.log_file.read_text()

    def address(self) -> tuple[str, int]:
        ready = re.compile(r"^broker 1 ready at (\S+):(\d+)$", re.MULTILINE)
        eventually(lambda: ready.search(self.log()) is not None or not self.running, "the broker is ready")
        found = ready.search(self.log())
        assert found is not None, self.log()
        return found[1], int(found[2])

    def close(self) -> None:
        if self.running:
            kill(self.process)


def ask(connection: socket.socket, key: ApiKey, version: int, value: RequestValue) -> ResponseValue:
    connection.sendall(framed(encode_request(header(key, version), value)))
    answer = read(connection)
    assert answer, f"the broker closed the connection instead of answering {key.name}"
    return decode_response(key, version, answer)[1]


def is_open(connection: socket.socket) -> bool:
    """Whether the broker answers on it, rather than having closed it."""
    try:
        ask(connection, ApiKey.METADATA, 9, MetadataRequest(()))
    except (AssertionError, OSError):
        return False
    return True


def test_connections_are_refused_and_records_are_still_taken(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    broker = FewDescriptors(zookeeper, tmp_path, LIMIT)
    try:
        with ExitStack() as opened:
            first = opened.enter_context(socket.create_connection(broker.address(), DEADLINE_S))
            assignments = tuple(CreatableReplicaAssignment(index, (1,)) for index in range(PARTITIONS))
            topic = CreatableTopic("t", -1, -1, assignments)
            eventually(
                lambda: (
                    ask(first, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest((topic,), 30_000)).topics[0].error_code  # type: ignore[attr-defined]
                    in (0, 36)
                ),
                "the topic is there",
            )
            others = [
                opened.enter_context(socket.create_connection(broker.address(), DEADLINE_S)) for _ in range(2 * LIMIT)
            ]
            answered = sum(map(is_open, others))
            assert LIMIT // 4 < answered < LIMIT
            parts = tuple(ProducePartition(index, batch(1, value=b"x" * 6_000)) for index in range(PARTITIONS))

            def errors() -> set[int]:
                """One batch fills a segment: each request needs a new file for each partition."""
                response = ask(first, ApiKey.PRODUCE, 8, ProduceRequest(1, 30_000, (ProduceTopic("t", parts),)))
                return {one.error_code for each in response.responses for one in each.partition_responses}  # type: ignore[attr-defined]

            eventually(lambda: errors() == {0}, "the partitions are led")
            assert [errors() for _ in range(4)] == [{0}] * 4
            assert broker.log().count("connections are turned away") == 1
            assert broker.log().count("not accepted") == 0
        eventually(lambda: connects(broker), "there is room again")
        assert broker.running
        assert "offline" not in broker.log()
    finally:
        broker.close()


def connects(broker: FewDescriptors) -> bool:
    with closing(socket.create_connection(broker.address(), DEADLINE_S)) as connection:
        return is_open(connection)


def test_more_logs_than_descriptors_are_opened(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    for number in range(60):
        folder = tmp_path / "logs" / f"t-{number}"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.log").write_bytes(batch())
    broker = FewDescriptors(zookeeper, tmp_path, 48)
    try:
        broker.address()
        assert "60 logs, recovered" in broker.log()
        assert "Too many open files" not in broker.log()
    finally:
        broker.close()


def test_a_broker_that_cannot_open_its_directories_names_the_limit(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Each directory has a lock file, which stays open."""
    broker = FewDescriptors(zookeeper, tmp_path, 48, log_dirs=60)
    try:
        eventually(lambda: not broker.running, "it ends")
        assert broker.process.poll() == COULD_NOT_RUN
        assert re.search(r"broker 1 can't start: .*Too many open files.*; the limit is 48 file desc", broker.log())
    finally:
        broker.close()


@pytest.mark.parametrize(("limit", "reserve"), [(64, 32), (1_024, 256), (4_096, 1_024), (1_048_576, 4_096)])
def test_a_quarter_of_the_descriptors_is_no_clients(limit: int, reserve: int) -> None:
    assert reserved_descriptors(limit) == reserve


def test_refused_connections_are_said_once() -> None:
    with serving_with(ServerLimits(1_000, descriptors=0)) as serving:
        for _ in range(20):
            with closing(serving.connect()) as connection:
                assert connection.recv(1) == b""
        notes = serving.trace.notes("warning")
        assert len(notes) == 1
        assert "kept for logs and ZooKeeper" in notes[0]
