"""Administrators' mistakes on /controller, /controller_epoch and a whole ZooKeeper: what every broker does and says."""

from __future__ import annotations

from typing import get_args

import pytest

from controller.broker.metrics import metrics_of
from controller.core.leadership import HIGHEST_EPOCH, Reason
from controller.scenarios.faults import ControllerEdit, ElectZooKeeper, EpochEdit, KillZooKeeper
from controller.scenarios.language import ClusterSpec, Plan
from controller.simulator import DeleteController, EditController, EditControllerEpoch, Simulation
from controller.simulator.faults import EPOCHS
from controller.simulator.swarm import run_plan
from controller.trace import ControllerElected, ControllerResigned, Noted
from controller.zookeeper import paths
from controller.zookeeper.codecs import ClusterId, encode_cluster_id
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write, Znode

BROKERS = (1, 2, 3)
UNREADABLE = ("garbage", "negative")


def resting(topics: int = 1) -> Simulation:
    world = Simulation(brokers=3, seed=5, session_timeout_ms=2_000)
    world.run_until(lambda: len(world.registered) == 3)
    for number in range(topics):
        assert world.answer(world.create_topic(f"t{number}", 4, 2)) == "done"
    world.run_until_rest()
    world.safety_checker.expected_errors = EditController.expected_errors
    return world


def errors(world: Simulation, broker: int | None = None) -> list[str]:
    return [
        one.event.message
        for one in world.records
        if isinstance(one.event, Noted) and one.event.level == "error" and broker in (None, one.node)
    ]


def taken_for_controller(world: Simulation) -> set[int]:
    nodes = [world.node(broker) for broker in BROKERS]
    return {node.controller.active_controller_id for node in nodes if node is not None}


def blocked(world: Simulation) -> set[str | None]:
    """What each broker's metric shows to be in the way of elections."""
    found: set[str | None] = set()
    for broker in BROKERS:
        node = world.node(broker)
        assert node is not None
        (metric,) = [one for one in metrics_of(node, 0.0) if one.name == "camerlengo_controller_election_blocked"]
        shown = [sample.labels["reason"] for sample in metric.samples if sample.value]
        assert len(shown) <= 1
        found.add(shown[0] if shown else None)
    return found


def active(world: Simulation) -> list[int]:
    nodes = {broker: world.node(broker) for broker in BROKERS}
    return [broker for broker, node in nodes.items() if node is not None and node.controller.active]


def epochs(world: Simulation) -> list[int]:
    return [one.event.controller_epoch for one in world.records if isinstance(one.event, ControllerElected)]


def other_than(controller: int | None) -> int:
    return next(broker for broker in BROKERS if broker != controller)


def test_the_table_of_edits_is_whole() -> None:
    assert set(EPOCHS) == set(get_args(EpochEdit)) - {"deleted"}
    assert set(UNREADABLE) <= set(EPOCHS)


@pytest.mark.parametrize("how", ["another", "no-broker", "garbage"])
def test_a_controller_whose_znode_is_rewritten_steps_down(how: ControllerEdit) -> None:
    world = resting()
    controller = world.controller
    assert controller is not None
    world.inject(EditController(at_ms=world.now_ms, how=how, node=other_than(controller)))
    world.run_for(3_000.0)
    world.run_until_rest()
    assert taken_for_controller(world) == {world.controller}
    resigned = [one.event.reason for one in world.records if isinstance(one.event, ControllerResigned)]
    assert len(resigned) == 1
    assert "rewritten by hand" in resigned[0]
    (said,) = [one for one in errors(world, controller) if "rewritten by hand" in one]
    assert "delete /controller instead" in said
    assert epochs(world) == [1, 2]
    assert blocked(world) == {None}


def test_a_persistent_controller_is_reported_by_every_candidate_until_it_is_gone() -> None:
    world = resting()
    world.inject(EditController(at_ms=world.now_ms, how="persistent", node=2, for_ms=150_000.0))
    world.run_for(140_000.0)
    assert active(world) == []
    assert taken_for_controller(world) == {-1}
    assert blocked(world) == {Reason.CONTROLLER_PERSISTENT.value}
    for broker in BROKERS:
        said = errors(world, broker)
        assert len(said) == 3  # at once, and every minute
        assert '"brokerid":2' in said[0]
        assert "zookeeper-shell.sh ZOOKEEPER delete /controller" in said[0]
    world.run_for(25_000.0)
    world.run_until_rest()
    assert taken_for_controller(world) == {world.controller}
    assert blocked(world) == {None}


def test_an_edit_that_zookeeper_applies_after_the_calm_is_repaired() -> None:
    """Found by the swarm (14512): an edit was sent, the servers elected, and the calm found nothing to repair."""
    elections = [ElectZooKeeper(at_ms=at_ms) for at_ms in (600.1, 1_810.4, 2_417.8, 5_778.1)]
    dead = KillZooKeeper(at_ms=3_241.2, server=3, for_ms=382.0)
    edit = EditController(at_ms=5_774.8, node=3, how="persistent", for_ms=6_020.0)
    found = Plan(
        name="late-edit",
        seed=14512,
        cluster=ClusterSpec(brokers=4, zookeeper_servers=3, session_timeout_ms=4_000),
        core=(*BROKERS, 4),
        calm_ms=5_903.0,
        bound_ms=20_000.0,
        happenings=(*elections, dead, edit),
    )
    assert run_plan(found).violation is None


def test_an_unreadable_controller_of_another_session_is_reported_until_that_session_ends() -> None:
    """Nobody but an administrator's own session can hold it for long: a controller's deletes its own."""
    world = resting()
    shell = world.zookeeper.connect(30_000)
    world.answer(shell.start())
    edit: list[Write] = [Delete(paths.CONTROLLER, ANY_VERSION), Create(paths.CONTROLLER, b"me", ephemeral=True)]
    world.answer(shell.multi(edit))
    world.run_for(10_000.0)
    assert taken_for_controller(world) == {-1}
    assert blocked(world) == {Reason.CONTROLLER_UNREADABLE.value}
    assert all("found b'me'" in one for one in errors(world))
    world.answer(shell.close())
    world.run_until_rest()
    assert taken_for_controller(world) == {world.controller}


@pytest.mark.parametrize("topics", [0, 1])
@pytest.mark.parametrize("also_controller", [False, True], ids=["at its next write", "with an election"])
@pytest.mark.parametrize("how", get_args(EpochEdit))
def test_a_controller_epoch_that_was_edited_is_noticed_and_repaired(
    how: EpochEdit, also_controller: bool, topics: int
) -> None:
    world = resting(topics)
    before = max(epochs(world))
    world.inject(EditControllerEpoch(at_ms=world.now_ms, how=how, for_ms=4_000.0))
    if also_controller:
        world.inject(DeleteController(at_ms=world.now_ms))
    else:
        world.create_topic("more", 1, 2)
    world.run_for(3_500.0)
    if how in UNREADABLE:
        assert active(world) == []
        assert world.zookeeper.row(paths.CONTROLLER) is None
        assert taken_for_controller(world) == {-1}
        assert blocked(world) == {Reason.EPOCH_UNREADABLE.value}
        assert all("delete it (zookeeper-shell.sh ZOOKEEPER delete /controller_epoch)" in one for one in errors(world))
    world.run_for(12_000.0)
    world.run_until_rest()
    assert before < max(epochs(world)) < HIGHEST_EPOCH
    assert blocked(world) == {None}
    assert any("/controller_epoch" in one for one in errors(world)) or how == "lowered"  # to 1: it was 1
    assert world.answer(world.create_topic("afterwards", 2, 2)) == "done"
    world.run_until_rest()


def test_a_broker_that_knows_no_earlier_epoch_is_told_by_those_that_refuse_its_own() -> None:
    """/controller_epoch is lowered, no partition's state tells of the epochs in use, and the next controller has just
    started: the others refuse its requests, and its next term is above what they know."""
    world = resting(topics=0)
    for _ in range(6):
        world.inject(DeleteController(at_ms=world.now_ms))
        world.run_for(500.0)
    world.run_until_rest()
    before = max(epochs(world))
    assert before == 7
    fresh = other_than(world.controller)
    world.kill(fresh)
    world.run_for(4_000.0)
    world.safety_checker.expected_errors += ("ephemeral",)
    for broker in BROKERS:
        if broker != fresh:
            world.pause(broker, for_ms=5_000.0)
    world.inject(EditControllerEpoch(at_ms=world.now_ms, how="lowered"))
    world.start(fresh)
    world.run_until(lambda: active(world) == [fresh] or fresh in active(world), 20_000.0)
    assert 2 in epochs(world)
    world.run_for(10_000.0)
    world.run_until_rest()
    assert epochs(world)[-1] > before
    refused = [one.event.reason for one in world.records if isinstance(one.event, ControllerResigned)]
    assert any("refused controller epoch 2: it has seen a higher one" in one for one in refused)
    assert world.answer(world.create_topic("afterwards", 2, 2)) == "done"


# -- a whole ZooKeeper


def persistent(world: Simulation) -> list[Znode]:
    """All znodes that outlive sessions, parents first."""
    return sorted((row for row in written(world) if not row.stat.ephemeral_owner), key=lambda row: row.path)


def written(world: Simulation) -> list[Znode]:
    """All znodes but ZooKeeper's own."""
    return [row for row in world.zookeeper.rows() if row.path != "/" and not row.path.startswith("/zookeeper")]


def wipe(world: Simulation) -> list[Znode]:
    kept = persistent(world)
    everything = sorted((row.path for row in written(world)), reverse=True)
    world.zookeeper.restore([Delete(path, ANY_VERSION) for path in everything])
    return kept


@pytest.mark.parametrize("sessions_end", [False, True])
def test_a_zookeeper_that_is_wiped_is_reported_and_the_brokers_are_back_with_its_data(sessions_end: bool) -> None:
    world = resting()
    kept = wipe(world)
    if sessions_end:
        for session in world.zookeeper.sessions():
            world.zookeeper.expire(session)
    world.run_for(45_000.0)
    assert active(world) == []
    assert blocked(world) == {Reason.ZOOKEEPER_WIPED.value}
    for broker in BROKERS:
        said = errors(world, broker)
        assert len(said) == 1
        assert "ZooKeeper has lost the data of cluster" in said[0]
        assert "restore ZooKeeper from a snapshot" in said[0]
    assert persistent(world) == []  # nobody made a new cluster of what is left
    world.zookeeper.restore([Create(row.path, row.data) for row in kept])
    world.run_for(15_000.0)
    assert blocked(world) == {None}
    assert set(world.registered) == set(BROKERS)
    assert taken_for_controller(world) == {world.controller}
    assert len(active(world)) == 1


def test_a_zookeeper_with_another_cluster_is_reported() -> None:
    world = resting()
    other = encode_cluster_id(ClusterId("J8-8Nx2oQLqnW3uVoYhVCg"))
    world.zookeeper.restore([SetData(paths.CLUSTER_ID, other, ANY_VERSION)])
    world.inject(DeleteController(at_ms=world.now_ms))
    world.run_for(5_000.0)
    assert active(world) == []
    assert blocked(world) == {Reason.ANOTHER_CLUSTER.value}
    assert all("ZooKeeper holds cluster J8-8Nx2oQLqnW3uVoYhVCg" in one for one in errors(world))
