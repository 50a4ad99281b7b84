"""S02: the controller epoch is what the election won, never what somebody else wrote meanwhile."""

from __future__ import annotations

from controller.core.events import BrokerModifications
from controller.trace import ControllerElected, ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, SetData
from tests.core.driving import Cluster, registration
from tests.core.test_broker_changes import cluster_of


def requests_carry_the_epoch_won() -> None:
    """KAFKA-1096: another has raised /controller_epoch, this one has not heard of it and has something to tell. With
    its own epoch the brokers refuse it; with a copied one they would obey."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.settle()
    mark = len(host.sent)
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"7", ANY_VERSION))
    cluster.write(SetData(paths.broker(2), registration(2, port=7777), ANY_VERSION))
    cluster.settle()
    assert BrokerModifications(2) in host.handled
    assert {sent.value.controller_epoch for sent in host.sent[mark:]} == {1}
    assert host.controller.controller_epoch == 1


def test_s02_requests_carry_the_epoch_that_was_won_though_a_later_one_is_there() -> None:
    requests_carry_the_epoch_won()


def writes_need_the_epoch_won() -> None:
    """The first write of such a controller is refused: its version is that of its own election."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3)})
    cluster.settle()
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"7", ANY_VERSION))
    before = cluster.states()
    cluster.unregister(2)
    cluster.until(lambda: bool(host.trace.of(ControllerResigned)))
    assert cluster.states() == before
    assert [event.controller_epoch for event in host.trace.of(ControllerResigned)] == [1]
    cluster.settle()
    assert [event.controller_epoch for event in host.trace.of(ControllerElected)] == [1, 8]


def test_s02_nothing_is_written_in_an_epoch_that_another_made() -> None:
    writes_need_the_epoch_won()


def test_s02_without_a_term_there_is_no_epoch() -> None:
    cluster = Cluster()
    host, other = cluster.host(1), cluster.host(2)
    assert other.controller.controller_epoch == 0
    host.controller.resign("for the test")
    assert host.controller.controller_epoch == 0
    row = cluster.server.row(paths.CONTROLLER_EPOCH)
    assert row is not None
    assert row.data == b"1"
