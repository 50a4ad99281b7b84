"""/controller edited by hand on a ZooKeeper server: what a broker on its real threads does and says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from controller.core.leadership import Reason
from controller.trace import ControllerElected, ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.codecs import ControllerZnode, decode_controller, encode_controller
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from tests.hosts.one_node import BROKER, DEADLINE_S, OUTSIDER, OneNode, Outsider, one_node
from tests.processes import eventually
from tests.zookeeper.kazoo_bench import wait

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with EmbeddedZooKeeper(fsync=False, tick_ms=1_000) as zookeeper:
        yield zookeeper.hosts[0]


@pytest.fixture
def pair(server: str) -> Iterator[tuple[OneNode, Outsider]]:
    with one_node(server, f"/hand-edited-{next(_numbers)}", session_timeout_ms=20_000) as pair:
        yield pair


def epochs(node: OneNode, kind: type[ControllerElected] | type[ControllerResigned]) -> list[int]:
    return [event.controller_epoch for event in node.trace.events if isinstance(event, kind)]


def test_a_controller_whose_znode_names_another_broker_steps_down(pair: tuple[OneNode, Outsider]) -> None:
    node, outsider = pair
    rewritten = encode_controller(ControllerZnode(OUTSIDER, 0))
    wait(outsider.client.commit_election([SetData(paths.CONTROLLER, rewritten, ANY_VERSION)]), DEADLINE_S)
    eventually(lambda: epochs(node, ControllerResigned) == [1], "it resigns")
    eventually(lambda: epochs(node, ControllerElected) == [1, 2] and node.node.controller.active, "it is elected anew")
    assert node.node.controller.active_controller_id == BROKER
    row = outsider.row(paths.CONTROLLER)
    assert row is not None
    assert decode_controller(row.path, row.data).broker_id == BROKER
    (said,) = node.trace.notes("error")
    assert "was rewritten by hand" in said


def test_a_persistent_controller_and_a_deleted_epoch_are_overcome(pair: tuple[OneNode, Outsider]) -> None:
    node, outsider = pair
    persistent = encode_controller(ControllerZnode(OUTSIDER, 0))
    edit: list[Write] = [Delete(paths.CONTROLLER, ANY_VERSION), Create(paths.CONTROLLER, persistent)]
    wait(outsider.client.commit_election([*edit, Delete(paths.CONTROLLER_EPOCH, ANY_VERSION)]), DEADLINE_S)
    eventually(lambda: node.node.controller.obstacle is not None, "it says what is in the way")
    obstacle = node.node.controller.obstacle
    assert obstacle is not None
    assert obstacle.reason is Reason.CONTROLLER_PERSISTENT
    assert not node.node.controller.active
    assert node.node.controller.active_controller_id == -1
    wait(outsider.client.commit_election([Delete(paths.CONTROLLER, ANY_VERSION)]), DEADLINE_S)
    eventually(lambda: node.node.controller.active and node.node.controller.obstacle is None, "it leads again")
    first, second = epochs(node, ControllerElected)
    assert second > first + 1
    epoch = outsider.row(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    assert int(epoch.data or b"") == second
    assert epoch.stat.version > 100  # no version that the first term's fence checks comes again
