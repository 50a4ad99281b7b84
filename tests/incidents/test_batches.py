"""S11: what a handler had gathered when its term ended is gone with that term."""

from __future__ import annotations

from controller.core.events import Reelect
from controller.protocol.codec import ApiKey
from controller.trace import ControllerElected
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, SetData
from tests.core.driving import Cluster, Host
from tests.core.test_broker_changes import cluster_of

Told = tuple[int, ApiKey, tuple[str, ...]]


def scene() -> tuple[Cluster, Host]:
    """Broker 2 leads nothing: when it goes, requests are gathered before the first write."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (1, 2), 1: (3, 2), 2: (3, 1)})
    cluster.settle()
    return cluster, host


def told_in_the_second_term(host: Host) -> list[Told]:
    assert [event.controller_epoch for event in host.trace.of(ControllerElected)] == [1, 2]
    second = [sent for sent in host.sent if sent.value.controller_epoch == 2]
    return [
        (sent.broker, sent.api, tuple(sorted(sent.states())) if sent.api is not ApiKey.STOP_REPLICA else ())
        for sent in second
    ]


def after_a_half_done_event() -> list[Told]:
    cluster, host = scene()
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"1", ANY_VERSION))
    cluster.unregister(2)
    cluster.settle()
    cluster.check()
    return told_in_the_second_term(host)


def after_nothing() -> list[Told]:
    cluster, host = scene()
    host.controller.resign("for the test")
    cluster.unregister(2)
    host.events.put(Reelect())
    cluster.settle()
    cluster.check()
    return told_in_the_second_term(host)


def the_second_term_sends_what_is_its_own() -> None:
    """KAFKA-12315: the fence fails in the middle of an event; the same controller is elected again."""
    assert after_a_half_done_event() == after_nothing()


def test_s11_a_second_term_sends_what_it_would_have_sent_without_the_first() -> None:
    the_second_term_sends_what_is_its_own()
    assert after_nothing()[0] == (1, ApiKey.UPDATE_METADATA, ())
