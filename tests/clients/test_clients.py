"""Real clients on a real cluster: what they produce, in each manner that they have, they and each other consume; also
while the leader, or the controller, is killed under them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from controller.hosts.local_cluster import LocalCluster
from tests.clients.asking import answers_of_all
from tests.clients.clients import CLIENTS, KCAT, MANNERS, Client, Manner
from tests.processes import DEADLINE_S, eventually
from tests.programs import needs_programs

RECORDS = 500
KILL_AFTER = 200
LIVE_RECORDS = 1_000


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, session_timeout_ms=10_000, settings={"min.insync.replicas": "2"}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: LocalCluster) -> LocalCluster:
    """With all its brokers, whatever the test before did to them."""
    for broker in running.brokers.values():
        if not broker.running:
            broker.start()
    deadline = time.monotonic() + DEADLINE_S
    for broker in running.brokers.values():
        broker.await_ready(deadline)
    running.await_metadata(deadline)
    return running


def seen(cluster: LocalCluster, topic: str) -> ClusterMetadata:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    return client.list_topics(topic, DEADLINE_S)


def create(cluster: LocalCluster, topic: str) -> None:
    """Replicated thrice, with an ISR of three."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    eventually(lambda: len(client.list_topics(timeout=DEADLINE_S).brokers) == 3, "all brokers are there")
    client.create_topics([NewTopic(topic, 1, 3)])[topic].result(DEADLINE_S)

    def complete() -> bool:
        """By all of them: kcat asks one, once."""
        found = [[one.partitions for one in answer.topics if one.name == topic] for answer in answers_of_all(cluster)]
        return all([[len(part.isr_nodes) for part in parts] for parts in told] == [[3]] for told in found)

    eventually(complete, "its ISR has all three")


def values_of(name: str, count: int) -> list[bytes]:
    """Of many lengths, so that batches begin and end anywhere."""
    return [b"%s-%d-%s" % (name.encode(), number, b"x" * (number * 37 % 1_500)) for number in range(count)]


PAIRS = [
    *((client, CLIENTS[(index + 1) % len(CLIENTS)]) for index, client in enumerate(CLIENTS)),
    pytest.param(CLIENTS[-1], KCAT, marks=needs_programs),
    pytest.param(KCAT, CLIENTS[0], marks=needs_programs),
]


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(("client", "another"), PAIRS, ids=lambda one: str(one.name))
def test_what_a_client_produced_it_and_another_consume(
    cluster: LocalCluster, client: Client, another: Client, manner: str
) -> None:
    topic = f"{client.name}-{another.name}-{manner}"
    create(cluster, topic)
    values = values_of(topic, RECORDS)
    client.produce(cluster.bootstrap_servers, topic, values, MANNERS[manner])
    for reader in (client, another):
        assert reader.consume(cluster.bootstrap_servers, topic, RECORDS) == values


def readme_blocks() -> list[tuple[str, str]]:
    """The README's blocks (language, code) about using a cluster, after the one that starts it."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = text[text.index("A cluster to use with any Kafka client") : text.index("Kill a broker's process")]
    return re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)[1:]


@pytest.mark.parametrize(
    ("topic", "languages"),
    [
        ("payments", ["python", "python"]),
        pytest.param("by-kcat-too", ["python", "python", "sh"], marks=needs_programs),
    ],
)
def test_what_the_readme_shows_is_so(cluster: LocalCluster, topic: str, languages: list[str]) -> None:
    """Each block prints what its comments say."""
    environment = os.environ | {"SERVERS": cluster.bootstrap_servers}
    printed = []
    blocks = readme_blocks()
    assert [language for language, _ in blocks] == ["python", "python", "sh"]
    for language, written in blocks[: len(languages)]:
        code = written.replace("payments", topic)
        command = [sys.executable, "-c", code] if language == "python" else ["sh", "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
        said = re.findall(r"  # (.*)", code)
        assert printed[-1] == said or not said
    assert printed == [["0", "b'one'"], ["1", "[b'one', b'two']"], ["one", "two", "three", "four"]][: len(languages)]


class Live:
    """One client that produces slowly and consumes, on threads of their own. The last value is held back until
    `let_go`, so that whatever happens meanwhile happens under it."""

    def __init__(self, cluster: LocalCluster, topic: str, client: Client) -> None:
        self.values = values_of(topic, LIVE_RECORDS)
        self.sent = 0
        self.read: Sequence[bytes] = ()
        self.errors: list[BaseException] = []
        self._last = threading.Event()
        servers = cluster.bootstrap_servers
        self._threads = [
            self._thread(lambda: client.produce(servers, topic, self._slowly(), Manner(idempotent=True))),
            self._thread(lambda: self._consume(client, servers, topic)),
        ]

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised where the test waits
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _slowly(self) -> Iterator[bytes]:
        for number, value in enumerate(self.values):
            if number == LIVE_RECORDS - 1:
                self._last.wait(DEADLINE_S)
            elif number % 10 == 0:
                time.sleep(0.01)  # the pace of a client, not a wait for something
            self.sent = number + 1
            yield value

    def _consume(self, client: Client, servers: str, topic: str) -> None:
        self.read = client.consume(servers, topic, LIVE_RECORDS)

    def let_go(self) -> None:
        self._last.set()

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(2 * DEADLINE_S)
            assert not thread.is_alive(), "it is not done in time"
        if self.errors:
            raise self.errors[0]


@pytest.mark.parametrize("role", ["leader", "controller"])
@pytest.mark.parametrize(
    "clients", [pytest.param(CLIENTS, id="libraries"), pytest.param((KCAT,), id="kcat", marks=needs_programs)]
)
def test_clients_go_on_when_a_broker_is_killed_under_them(
    cluster: LocalCluster, clients: Sequence[Client], role: str
) -> None:
    topics = {client: f"{role}-killed-under-{client.name}" for client in clients}
    for topic in topics.values():
        create(cluster, topic)
    lives = {client: Live(cluster, topic, client) for client, topic in topics.items()}
    eventually(lambda: all(live.sent >= KILL_AFTER for live in lives.values()), "all are under way")
    first = seen(cluster, topics[clients[0]])
    doomed = first.topics[topics[clients[0]]].partitions[0].leader if role == "leader" else first.controller_id
    cluster.brokers[doomed].kill()

    def moved() -> bool:
        now = [seen(cluster, topic) for topic in topics.values()]
        return all(
            one.controller_id not in (-1, doomed) and part.partitions[0].leader not in (-1, doomed)
            for one in now
            for part in one.topics.values()
        )

    eventually(moved, "others lead")
    for live in lives.values():
        live.let_go()
    for client, live in lives.items():
        live.finish()
        assert live.read == live.values, client.name
