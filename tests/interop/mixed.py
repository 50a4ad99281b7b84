"""A cluster of both kinds on loopback: brokers 1 and 2 are ours, 3 and 4 are Kafka's, on one embedded ZooKeeper."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from controller.hosts.local_cluster import BrokerChild
from controller.hosts.secured import ADMINISTRATOR, CLIENT, PROTOCOL, ClusterSecurity, Security
from controller.system import LOOPBACK, HeldPorts
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.server.server import ZooKeeperServer
from tests.interop.kafka import Kafka, KafkaBroker
from tests.processes import eventually

START_LIMIT_S = 120.0
HEAL_LIMIT_S = 90.0
SESSION_MS = 10_000


class Kind(enum.Enum):
    OURS = "ours"
    KAFKAS = "kafkas"


KINDS: Mapping[int, Kind] = {1: Kind.OURS, 2: Kind.OURS, 3: Kind.KAFKAS, 4: Kind.KAFKAS}

COMMON = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "60000",
    "replica.lag.time.max.ms": "10000",
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "500",
    "default.replication.factor": "3",
    "log.segment.bytes": "1048576",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
}
FOR_KAFKA = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.enable": "false",
    "log.cleaner.dedupe.buffer.size": "16777216",
}


@dataclass(frozen=True, slots=True)
class State:
    """A partition's state znode."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    version: int


class MixedCluster:
    """`settings` go into every broker's properties, `of` into those of one kind. `zookeeper`: Apache's if not given.
    With `security` all listeners are SASL_SSL, and both kinds have the same users and ACLs."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        of: Mapping[Kind, Mapping[str, str]] | None = None,
        kinds: Mapping[int, Kind] = KINDS,
        zookeeper: EmbeddedZooKeeper | ZooKeeperServer | None = None,
        security: Security | None = None,
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.kinds = dict(kinds)
        self._settings = COMMON | dict(settings or {})
        self._of = of or {}
        self.zookeeper = zookeeper or EmbeddedZooKeeper(kind="java", data_dir=folder / "zookeeper", tick_ms=500)
        self._ports = HeldPorts(len(kinds))
        self.security = None if security is None else ClusterSecurity(folder / "secrets", security, len(kinds))
        self.brokers: dict[int, BrokerChild | KafkaBroker] = {}
        self.client = KazooClient()

    @property
    def servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port}" for port in self._ports.numbers)

    def address(self, broker: int) -> str:
        return f"{LOOPBACK}:{self._ports.numbers[broker - 1]}"

    def data_dir(self, broker: int) -> Path:
        return self.folder / f"logs-{broker}"

    def log_dirs(self, broker: int) -> str:
        return str(self.data_dir(broker))

    def start(self, first: Kind) -> None:
        """Brokers of the kind `first` come before the others, so that one of them is the controller."""
        self.zookeeper.start()
        self.client = KazooClient(self.zookeeper.connect_string, timeout=10.0)
        self.client.start(30)
        if self.security is not None:
            self.security.write_znodes(self.zookeeper.connect_string)
            self.security.write_clients(self.servers)
        for kind in (first, *(one for one in Kind if one is not first)):
            self.start_brokers([broker for broker in self.kinds if self.kinds[broker] is kind])

    def start_brokers(self, numbers: Iterable[int]) -> None:
        """Returns once each of them is ready."""
        numbers = list(numbers)
        for number in numbers:
            self.brokers[number] = self._make(number)
            self.brokers[number].start()
        for number in numbers:
            self.brokers[number].await_ready(time.monotonic() + START_LIMIT_S)

    def _make(self, number: int) -> BrokerChild | KafkaBroker:
        kind = self.kinds[number]
        own = {
            "listeners": f"PLAINTEXT://{self.address(number)}",
            "zookeeper.connect": self.zookeeper.connect_string,
            "log.dirs": self.log_dirs(number),
        }
        if self.security is not None:
            own["listeners"] = f"{PROTOCOL}://{self.address(number)}"
            own |= self.security.broker_settings(number, (PROTOCOL,)) | {"security.inter.broker.protocol": PROTOCOL}
            if kind is Kind.KAFKAS:  # it reads files only of keys that are encrypted
                keystore = Path(own.pop("ssl.keystore.location")).read_text()
                key, begin, chain = keystore.partition("-----BEGIN CERTIFICATE-----")
                own |= {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": begin + chain}
        settings = self._settings | (FOR_KAFKA if kind is Kind.KAFKAS else {}) | dict(self._of.get(kind, {})) | own
        if kind is Kind.OURS:
            return BrokerChild(number, settings, self.folder)
        return KafkaBroker(self.kafka, number, settings, self.folder)

    # -- what ZooKeeper has

    def json(self, path: str) -> Any:
        """The znode's value, None if there is none."""
        try:
            return json.loads(self.client.get(path)[0])
        except NoNodeError:
            return None

    def controller(self) -> int | None:
        found = self.json("/controller")
        return None if found is None else int(found["brokerid"])

    def move_controller(self, kind: Kind) -> None:
        """Deletes /controller until a broker of this kind has it."""

        def moved() -> bool:
            now = self.controller()
            if now is not None and self.kinds[now] is kind:
                return True
            if now is not None:
                self.client.delete("/controller")
            time.sleep(0.3)
            return False

        eventually(moved, f"a controller of {kind.value}", HEAL_LIMIT_S)

    def assignment(self, topic: str) -> dict[int, tuple[int, ...]]:
        found = self.json(f"/brokers/topics/{topic}")
        return {} if found is None else {int(one): tuple(ids) for one, ids in found["partitions"].items()}

    def state(self, topic: str, partition: int) -> State | None:
        try:
            data, stat = self.client.get(f"/brokers/topics/{topic}/partitions/{partition}/state")
        except NoNodeError:
            return None
        found = json.loads(data)
        return State(found["leader"], found["leader_epoch"], tuple(found["isr"]), stat.version)

    def states(self, topic: str) -> dict[int, State | None]:
        return {partition: self.state(topic, partition) for partition in self.assignment(topic)}

    def unhealed(self, topics: Sequence[str]) -> list[str]:
        """Partitions without a leader, or with an ISR that lacks a replica."""
        return [
            f"{topic}-{partition}: {state}, assigned {assigned}"
            for topic in topics
            for partition, assigned in self.assignment(topic).items()
            for state in [self.state(topic, partition)]
            if state is None or state.leader < 0 or set(state.isr) != set(assigned)
        ]

    def await_healed(self, *topics: str, limit_s: float = HEAL_LIMIT_S) -> None:
        until = time.monotonic() + limit_s
        while wrong := self.unhealed(topics):
            assert time.monotonic() < until, f"not in sync after {limit_s:g} s: {wrong}"
            time.sleep(0.1)

    # -- requests

    def options(self, user: str = CLIENT) -> dict[str, Any]:
        """By which librdkafka connects: as this user, where the cluster is secured."""
        plain = {"bootstrap.servers": self.servers}
        return plain if self.security is None else dict(self.security.client(self.servers, user).confluent)

    def admin(self) -> AdminClient:
        return AdminClient(self.options(ADMINISTRATOR) | {"log_level": 2})

    def ask(self, request: Callable[[AdminClient], Future[Any]]) -> Any:
        """What a request comes to; made again where the client's metadata still names a controller of the past."""
        until = time.monotonic() + HEAL_LIMIT_S
        while True:
            admin = self.admin()  # its requests fail when it is collected
            try:
                return request(admin).result(60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_CONTROLLER or time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def delete(self, topic: str) -> None:
        self.ask(lambda admin: admin.delete_topics([topic], operation_timeout=30)[topic])
        eventually(lambda: self.json(f"/brokers/topics/{topic}") is None, f"topic {topic} is deleted")

    def create(self, topic: str, assignment: Sequence[Sequence[int]], **config: str) -> None:
        """Config names with `_` for `.`. Returns once every replica is in sync."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        made = NewTopic(topic, len(assignment), replica_assignment=[list(one) for one in assignment], config=settings)
        self.ask(lambda admin: admin.create_topics([made], operation_timeout=30)[topic])
        eventually(lambda: len(self.assignment(topic)) == len(assignment), f"topic {topic}")
        self.await_healed(topic)

    # -- its end

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()
        self.client.stop()
        self.client.close()
        self.zookeeper.close()
        self._ports.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
