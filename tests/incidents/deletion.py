"""The deletion of a topic, interrupted: whoever leads next ends it, and tells everybody in the order that it asks for.

Each controller's requests are looked at by themselves: one that takes a deletion over begins it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from controller.clock import Future
from controller.core.events import DeleteTopicsRequested
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.operations import Delete, Write
from tests.core.deleting import left_of, word_of
from tests.core.driving import Cluster, Host, Sent
from tests.incidents.interruption import Operation

ASSIGNMENT = {0: (2, 3, 4), 1: (3, 4)}
REPLICAS = frozenset((broker, f"t-{partition}") for partition, brokers in ASSIGNMENT.items() for broker in brokers)

ANSWERS: WeakKeyDictionary[Cluster, list[Mapping[str, ErrorCode]]] = WeakKeyDictionary()
"""What the client was told that asked first."""


def topic_to_delete() -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.register(2, 3, 4)
    host = cluster.new_host(1)
    for one in (host, cluster.new_host(5)):  # the second is what `standby` looks for
        one.answering = True
        refuse_early_removal(one)
        one.start()
        cluster.settle()
    cluster.topic("t", ASSIGNMENT)
    cluster.topic_config("t", retention_ms="1000")
    cluster.topic("kept", {0: (2, 3, 4)})
    cluster.settle()
    return cluster, host


def refuse_early_removal(host: Host) -> None:
    """A znode of the topic may go only when this controller, in this term, has had every replica deleted. The failure
    is the handler's, which tells of it."""
    multi = host.connection.multi

    def watched(operations: Sequence[Write]) -> Future[Any]:
        removed = [one.path for one in operations if isinstance(one, Delete) and paths.topic_of(one.path) == "t"]
        told = {
            (sent.broker, name) for sent in in_term(host) if word_of(sent)[:7] == "delete " for name in sent.states()
        }
        assert not removed or told >= REPLICAS, f"removed before its replicas: {removed[0]}"
        return multi(operations)

    host.connection.multi = watched  # type: ignore[method-assign]


def in_term(host: Host) -> list[Sent]:
    return [sent for sent in host.sent if sent.value.controller_epoch == host.controller.controller_epoch]


def put_deletion(host: Host) -> list[Mapping[str, ErrorCode]]:
    answers: list[Mapping[str, ErrorCode]] = []
    host.events.put(DeleteTopicsRequested(("t",), answers.append))
    return answers


def deletes(cluster: Cluster, host: Host) -> list[Any]:
    ANSWERS[cluster] = put_deletion(host)
    return ANSWERS[cluster]


def asks_for_it_again(cluster: Cluster) -> None:
    """What a client was told is asked for is done without it. Otherwise it asks whoever is controller now, and it is
    asked for then, or was before."""
    if any(answer["t"] == ErrorCode.NONE for answer in ANSWERS.pop(cluster)):
        assert left_of(cluster, "t") == []
    answers = put_deletion(cluster.leader())
    cluster.settle()
    (answer,) = answers
    assert answer["t"] in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), answer


def assert_deleted(cluster: Cluster) -> None:
    assert left_of(cluster, "t") == []
    assert cluster.states() == {"kept-0": (2, 0, (2, 3, 4), 0)}, "the others are as they were"
    for host in cluster.hosts:
        assert_in_order(host)
    cluster.check()


def assert_in_order(host: Host) -> None:
    """To each broker, in each term: the topic is forgotten, then its replicas stop, then they are deleted; and no
    leader is named after that."""
    told: dict[tuple[int, int], list[str]] = {}
    for sent in host.sent:
        if any(name.startswith("t-") for name in sent.states()):
            told.setdefault((sent.broker, sent.value.controller_epoch), []).append(word_of(sent).split(maxsplit=1)[0])
    for where, words in told.items():
        if "delete" not in words:
            assert "stop" not in words[:-1], (where, words)
            continue
        assert words[-3:] == ["forget", "stop", "delete"], (where, words)
        assert not {"stop", "delete"} & set(words[:-3]), (where, words)


DELETION = Operation("topic deletion", topic_to_delete, deletes, asks_for_it_again, assert_deleted)
