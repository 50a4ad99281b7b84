"""The real client of a chaos run: confluent-kafka (librdkafka), which creates the topics and keeps asking for
metadata on a thread of its own, so that recovery is what a client sees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.scenarios.client_view import failed_metadata, judge_metadata
from controller.scenarios.host import HostFailure, PartitionView, TopicSpec
from controller.trace import MetadataSeen

REQUEST_TIMEOUT_S = 1.0
CREATE_TIMEOUT_S = 30.0

_CONFIG = {
    "client.id": "camerlengo-chaos",
    "socket.timeout.ms": 2000,
    "socket.connection.setup.timeout.ms": 1000,
    # A killed broker is to cost the client one attempt, not a back-off that would be measured as recovery.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "log_level": 0,
}


def make_admin(bootstrap: str) -> Any:
    """A confluent-kafka AdminClient. HostFailure, with the extra to install, where the package is missing."""
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise HostFailure("the chaos client needs confluent-kafka: pip install 'camerlengo[chaos]'") from error
    return AdminClient(_CONFIG | {"bootstrap.servers": bootstrap})


def create_topics(admin: Any, topics: Sequence[TopicSpec]) -> None:
    """Creates the topics, and fails with the cluster's own error if it refuses one."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    requests = [
        NewTopic(topic.name, topic.partitions, topic.replication_factor, config=dict(topic.config)) for topic in topics
    ]
    futures = admin.create_topics(requests, operation_timeout=CREATE_TIMEOUT_S, request_timeout=CREATE_TIMEOUT_S)
    for name, future in futures.items():
        try:
            future.result(timeout=CREATE_TIMEOUT_S + 5)
        except (KafkaException, TimeoutError) as error:
            raise HostFailure(f"topic {name} was not created: {error}") from error


class MetadataClient:
    """Asks, judges the answer, tells `seen`, waits `interval_ms`, and asks again, until closed.

    The topics that it expects may be set at any time; with none it does not ask.
    """

    def __init__(self, bootstrap: str, interval_ms: float, seen: Callable[[MetadataSeen], None]) -> None:
        self._admin = make_admin(bootstrap)
        self._interval_s = interval_ms / 1000
        self._seen = seen
        self._topics: tuple[TopicSpec, ...] = ()
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metadata-client", daemon=True)
        self._thread.start()

    @property
    def admin(self) -> Any:
        return self._admin

    def expect(self, topics: Sequence[TopicSpec]) -> None:
        self._topics = (*self._topics, *topics)
        self._asked.set()

    def close(self) -> None:
        self._closed.set()
        self._asked.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S + 5)

    def _run(self) -> None:
        self._asked.wait()
        while not self._closed.wait(self._interval_s):
            self._seen(self._ask())

    def _ask(self) -> MetadataSeen:
        from confluent_kafka import KafkaException

        try:
            answer = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return failed_metadata(str(error.args[0]))
        return judge_metadata(self._topics, answer.brokers, answer.controller_id, _views(answer.topics))


def _views(topics: Mapping[str, Any]) -> dict[tuple[str, int], PartitionView]:
    return {
        (topic.topic, number): PartitionView(partition.leader, tuple(partition.isrs), tuple(partition.replicas))
        for topic in topics.values()
        for number, partition in topic.partitions.items()
    }
