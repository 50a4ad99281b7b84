"""The real client of a chaos run: confluent-kafka (librdkafka), which creates the topics and keeps asking for
metadata on a thread of its own, so that recovery is what a client sees."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeAlias

from controller.hosts.local_cluster import Secure, ask_metadata
from controller.scenarios.faults import HostFailure
from controller.scenarios.host import PartitionView, TopicSpec
from controller.scenarios.membership import failed_metadata, judge_metadata
from controller.trace import MetadataSeen

REQUEST_TIMEOUT_S = 1.0
CREATE_TIMEOUT_S = 30.0
ATTEMPT_TIMEOUT_S = 5.0
RENEWAL_S = 1.0
LEFT_OUT_S = 5.0
"""How long a client without a response is skipped."""

_CONFIG = {
    "client.id": "camerlengo-chaos",
    "socket.timeout.ms": 2000,
    "socket.connection.setup.timeout.ms": 1000,
    # A killed broker is to cost the client one attempt, not a back-off that would be measured as recovery.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "log_level": 0,
}


Connect: TypeAlias = Mapping[str, str]
"""How clients connect, in librdkafka's words: bootstrap.servers, and what a secured cluster needs."""


def make_admin(connect: Connect, server: str | None = None) -> Any:
    """A confluent-kafka AdminClient, which begins with `server` if one is given. HostFailure, with the extra to
    install, where the package is missing."""
    return _admin_class()(_CONFIG | dict(connect) | ({} if server is None else {"bootstrap.servers": server}))


def _admin_class() -> Any:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise HostFailure("the chaos client needs confluent-kafka: pip install 'camerlengo[chaos]'") from error
    return AdminClient


def create_topics(connect: Connect, topics: Sequence[TopicSpec]) -> None:
    """Creates the topics, and fails with the cluster's own error if it refuses one. A client keeps to the controller
    that it knows, though that one may be dead or stand still: each attempt is a new client's."""
    deadline_s = time.monotonic() + CREATE_TIMEOUT_S
    left = list(topics)
    attempts = 0
    while left:
        failed = _attempt(make_admin(connect), left, asked_before=attempts > 0)
        attempts += 1
        left = [topic for topic in left if topic.name in failed]
        if left and time.monotonic() > deadline_s:
            raise HostFailure(f"topic {left[0].name} was not created: {failed[left[0].name]}")


def _attempt(admin: Any, topics: Sequence[TopicSpec], *, asked_before: bool) -> dict[str, str]:
    """Try to create the topics, and return those that do not exist yet, each with the error.

    Raises:
        HostFailure: the error is one that another attempt cannot resolve.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    passing = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER)
    requests = []
    for topic in topics:
        placed: dict[str, Any] = {"replication_factor": topic.replication_factor}
        if topic.assignment:
            placed = {"replica_assignment": [list(replicas) for replicas in topic.assignment]}
        requests.append(NewTopic(topic.name, topic.partitions, config=dict(topic.config), **placed))
    with interruptible():
        futures = admin.create_topics(requests, operation_timeout=ATTEMPT_TIMEOUT_S, request_timeout=ATTEMPT_TIMEOUT_S)
    failed = {}
    for name, future in futures.items():
        try:
            future.result(timeout=ATTEMPT_TIMEOUT_S + 5)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS and asked_before:
                continue  # by the attempt whose answer did not come
            if code not in passing:
                raise HostFailure(f"topic {name} was not created: {error}") from error
            failed[name] = str(error)
        except TimeoutError as error:
            failed[name] = str(error)
    return failed


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A KeyboardInterrupt that comes while confluent-kafka is in C may leave it as the cause of a SystemError, or be
    replaced by an error of the call's own: on the main thread, where it comes, it is noted besides."""
    came: list[int] = []
    with _noted(came):
        try:
            yield
        except Exception as error:
            if came or (isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt)):
                raise KeyboardInterrupt from error
            raise


@contextlib.contextmanager
def _noted(came: list[int]) -> Iterator[None]:
    """Where an interrupt is Python's KeyboardInterrupt, its number is in `came` too."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class MetadataClient:
    """Request metadata every `interval_ms` until closed, evaluate each response and pass the result to `seen`.

    A real client keeps using the broker that it has a connection to, and a broker cut off from ZooKeeper responds as
    before. So there is one client for each broker of `connect`; it starts at that broker and may move to others. The
    clients send requests in turn. Every RENEWAL_S one of them is replaced by a new client, which has sent its first
    request to its own broker: otherwise all clients may end at the same broker. A client that got no response is
    skipped for a while, as a client turns away from a silent broker. No request is sent before `begin`. The expected
    topics may be set at any time.
    """

    def __init__(self, connect: Connect, interval_ms: float, seen: Callable[[MetadataSeen], None]) -> None:
        self._interval_s = interval_ms / 1000
        self._seen = seen
        self._topics: tuple[TopicSpec, ...] = ()
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._connect = connect
        self._clients = [_Asking(connect, server) for server in connect["bootstrap.servers"].split(",")]
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("metadata-client", self._run), ("metadata-renewal", self._renew))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Asks from now on, if it does not yet."""
        self._asked.set()

    def expect(self, topics: Sequence[TopicSpec]) -> None:
        self._topics = (*self._topics, *topics)
        for client in self._clients:  # what had no answer while the brokers were starting
            client.left_out_until_s = 0.0

    def close(self) -> None:
        self._closed.set()
        self._asked.set()
        for thread in self._threads:
            thread.join(timeout=REQUEST_TIMEOUT_S + 5)

    def _run(self) -> None:
        self._asked.wait()
        turns = list(self._clients)
        while not self._closed.wait(self._interval_s):
            client = next((one for one in turns if one.left_out_until_s <= time.monotonic()), turns[0])
            turns.remove(client)
            turns.append(client)  # its next turn is after all others'
            seen = self._ask(client.admin)
            if seen.error:
                client.left_out_until_s = time.monotonic() + LEFT_OUT_S
            self._seen(seen)

    def _renew(self) -> None:
        """A new client's first answer is its own broker's. If there is none the old client stays."""
        self._asked.wait()
        turns = itertools.cycle(self._clients)
        while not self._closed.wait(RENEWAL_S):
            client = next(turns)
            admin = make_admin(self._connect, client.server)
            seen = self._ask(admin)
            if not seen.error:
                client.admin, client.left_out_until_s = admin, 0.0
                self._seen(seen)

    def _ask(self, admin: Any) -> MetadataSeen:
        from confluent_kafka import KafkaException

        try:
            answer = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return failed_metadata(str(error.args[0]))
        return judge_metadata(self._topics, answer.brokers, answer.controller_id, _views(answer.topics))


class _Asking:
    """The client that begins with one broker. `left_out_until_s` on time.monotonic."""

    __slots__ = ("admin", "left_out_until_s", "server")

    def __init__(self, connect: Connect, server: str) -> None:
        self.server = server
        self.admin = make_admin(connect, server)
        self.left_out_until_s = 0.0


def _views(topics: Mapping[str, Any]) -> dict[tuple[str, int], PartitionView]:
    return {
        (topic.topic, number): PartitionView(partition.leader, tuple(partition.isrs), tuple(partition.replicas))
        for topic in topics.values()
        for number, partition in topic.partitions.items()
    }


TIMEOUT_S = 5.0


def metadata_of(
    host: str, port: int, timeout_s: float = TIMEOUT_S, secure: Secure | None = None
) -> dict[tuple[str, int], PartitionView]:
    """The broker's view of every partition. Raises what `ask_metadata` raises."""
    return {
        (topic.name or "", partition.partition_index): PartitionView(
            partition.leader_id, tuple(partition.isr_nodes), tuple(partition.replica_nodes), partition.leader_epoch
        )
        for topic in ask_metadata((host, port), timeout_s, secure).topics
        for partition in topic.partitions
    }
