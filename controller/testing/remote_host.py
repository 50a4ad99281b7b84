"""Clusters for tests whose brokers are outside of this process: what processes and containers have in common.

The state is read as an operator would: by a ZooKeeper client, and by requests for metadata to each broker. A wait looks
every 20 ms.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from controller.broker.settings import address as parsed_address
from controller.hosts.local_cluster import Secure, ask_broker, ask_metadata
from controller.protocol.client import CreateTopicsRequest, CreateTopicsResponse, MetadataResponse
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ProtocolError
from controller.testing.host import ClusterHost, ClusterOptions, KnownPartition
from controller.trace import TraceEvent
from controller.trace_records import DamagedRecord, Recorder, TraceRecord, decode_record
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller, decode_partition_state

T = TypeVar("T")

LOOK_S = 0.02
ANSWER_S = 2.0
"""How long a broker may take to answer a request for metadata."""
OBSERVER_SESSION_S = 30.0
CREATE_TOPICS_VERSION = 5


class RemoteHost(ClusterHost):
    """`_connect` begins to observe the cluster's ZooKeeper, and `_disconnect` ends it."""

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options)
        self._lock = threading.RLock()
        self._zookeeper: Any = None
        self._calls = 0
        self._views: dict[int, MetadataResponse | None] = {}
        """What brokers answered, within one call."""
        self._seen_running: dict[int, bool] = {}
        self._paused: set[int] = set()
        self._observed = Recorder()
        self._last_records: tuple[TraceRecord, ...] | None = None

    def _connect(self, connect_string: str) -> None:
        self._zookeeper = KazooClient(
            connect_string, timeout=OBSERVER_SESSION_S, connection_retry={"max_tries": -1, "max_delay": 0.5}
        )
        self._zookeeper.start(self.options.timeout_s)

    def _disconnect(self) -> None:
        """Also keep the events: what they are read from goes."""
        self._last_records = self.records()
        client, self._zookeeper = self._zookeeper, None
        if client is not None:
            client.stop()
            client.close()

    # -- threads and time

    def call(self, action: Callable[[], T]) -> T:
        with self._lock:
            if not self._calls:
                self._views.clear()
                self._seen_running.clear()
            self._calls += 1
            try:
                return action()
            finally:
                self._calls -= 1

    def wait(self, condition: Callable[[], bool], limit_s: float, *, own_thread: bool = False) -> bool:
        until_s = time.monotonic() + limit_s
        while not (condition() if own_thread else self.call(condition)):
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True

    def now_ms(self) -> float:
        return time.monotonic() * 1_000.0

    # -- state

    def controller(self) -> int | None:
        data = self._read(paths.CONTROLLER)
        return None if data is None else decode_controller(paths.CONTROLLER, data).broker_id

    def partition(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]] | None:
        path = paths.partition_state(topic, partition)
        data = self._read(path)
        if data is None:
            return None
        state = decode_partition_state(path, data)
        return state.leader, state.isr

    def partitions(self) -> Iterable[tuple[str, int]]:
        for topic in self._children(paths.BROKER_TOPICS):
            for name in self._children(paths.partitions(topic)):
                yield topic, int(name)

    def registered(self) -> frozenset[int]:
        return frozenset(int(name) for name in self._children(paths.BROKER_IDS))

    def paused(self, broker: int) -> bool:
        return broker in self._paused and self.running(broker)

    def known_brokers(self, broker: int) -> frozenset[int]:
        view = self._view(broker)
        return frozenset() if view is None else frozenset(one.node_id for one in view.brokers)

    def known_partition(self, broker: int, topic: str, partition: int) -> KnownPartition | None:
        view = self._view(broker)
        for one in () if view is None else view.topics:
            for state in one.partitions if one.name == topic else ():
                if state.partition_index == partition:
                    return KnownPartition(state.leader_id, tuple(state.replica_nodes))
        return None

    def started(self, broker: int) -> bool:
        if not self.running(broker):
            raise RuntimeError(f"broker {broker} ended while it was started{self._log_tail(broker)}")
        return broker in self.registered() and broker in self.known_brokers(broker)

    @property
    def _secure(self) -> Secure | None:
        return None if self.security is None else self.security.connect

    def _view(self, broker: int) -> MetadataResponse | None:
        """What the broker answers a client, asked once for each look at the cluster."""
        if broker not in self._views:
            try:
                self._views[broker] = ask_metadata(parsed_address(self.address(broker)), ANSWER_S, self._secure)
            except (OSError, ProtocolError):
                self._views[broker] = None
        return self._views[broker]

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(self._zookeeper.retry(self._zookeeper.get, path)[0])
        except NoNodeError:
            return None

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._zookeeper.retry(self._zookeeper.get_children, path))
        except NoNodeError:
            return []

    def _session(self, broker: int) -> int | None:
        """Return the ZooKeeper session that a broker is registered with."""
        stat = self._zookeeper.retry(self._zookeeper.exists, paths.broker(broker))
        return None if stat is None else int(stat.ephemeralOwner)

    # -- topics

    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse | None:
        controller = self.call(self.controller)
        if controller is None:
            return None
        at = parsed_address(self.address(controller))
        try:
            limit_s = self.options.timeout_s
            answer = ask_broker(at, ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request, limit_s, self._secure)
        except (OSError, ProtocolError):
            return None
        assert isinstance(answer, CreateTopicsResponse)
        return answer

    # -- what happened

    def emit(self, node: int, event: TraceEvent) -> None:
        self._observed.take(self.now_ms(), node, event)

    def records(self) -> tuple[TraceRecord, ...]:
        if self._last_records is not None:
            return self._last_records
        found = list(self._observed.records)
        for line in self._trace_lines():
            try:
                found.append(decode_record(line))
            except DamagedRecord:
                continue  # torn by a kill, or being written
        return tuple(sorted(found, key=lambda record: record.at_ms))

    @abstractmethod
    def _trace_lines(self) -> Iterator[bytes]:
        """Return the lines of the brokers' traces, on this machine's monotonic clock."""

    def _log_tail(self, broker: int) -> str:
        """Return the last lines of a broker's log, to put behind a message."""
        return ""
