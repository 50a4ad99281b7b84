"""The programs of docs/examples run, do what their pages say, and survive what they should; the pages quote them."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import re
import runpy
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import simpy

from controller.clock import Future
from controller.core.event_loop import EventQueue
from controller.simulator import BrokenInvariant, Simulation
from controller.simulator.simpy_bridge import SimPyBridge
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.operations import ANY_VERSION, Check, Delete, SetData, Write

DOCS = Path(__file__).parents[2] / "docs"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def flat(text: str) -> str:
    """Without what depends on where a piece of code stands: its depth, and how many blank lines are around it."""
    return re.sub(r"\n{2,}", "\n\n", textwrap.dedent(text)).strip()


@pytest.mark.parametrize("page", ["embedding.md", "another-controller.md"])
def test_every_block_of_a_page_is_in_a_program_that_is_tested(page: str) -> None:
    programs = [flat(path.read_text()) for path in sorted((DOCS / "examples").glob("*.py"))]
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in map(flat, blocks):
        places = (block, textwrap.indent(block, "    "))
        assert any(place in program for program in programs for place in places), f"no program has\n{block}"


def test_the_page_shows_all_that_an_event_loop_needs_of_a_server() -> None:
    """The functions that make the example's Server an EventHandler: without one of them no event loop can drive it."""
    page, server = (DOCS / "another-controller.md").read_text(), example("shards").Server
    for function in (server.events.fget, server.process, server.__init__):
        source = inspect.getsource(function).rstrip()
        assert source in page or textwrap.dedent(source) in page, f"the page has no\n{source}"


def words(text: str) -> list[str]:
    """Line by line, without the numbers, which another choice of the controller's or a request more may change."""
    return [re.sub(r"[\d.]+", "#", re.sub(r"\[[\d, ]*\]", "[]", line)).strip() for line in text.splitlines()]


@pytest.mark.parametrize(("page", "program"), [("embedding", "first_world"), ("another-controller", "shards")])
def test_a_program_prints_what_its_page_shows(page: str, program: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(DOCS / "examples" / f"{program}.py"), run_name="__main__")
    _, found, after = (DOCS / f"{page}.md").read_text().partition(f"$ python docs/examples/{program}.py\n")
    assert found
    assert words(after.partition("```")[0]) == words(printed.getvalue())


# -- SimPy


def booted(seed: int = 3) -> Simulation:
    world = Simulation(3, seed=seed)
    world.run_until(lambda: len(world.registered) == 3)
    return world


def test_the_worlds_time_goes_along_with_simpys() -> None:
    env, world = simpy.Environment(initial_time=100.0), booted()
    began_ms = world.now_ms
    bridge = SimPyBridge(env, world, unit_ms=250.0)
    seen: list[tuple[float, float]] = []

    def model() -> Any:
        for _ in range(4):
            yield env.timeout(1.0)
            bridge.act(lambda inner: seen.append((env.now, inner.now_ms - began_ms)))

    env.process(model())
    env.run(until=105.0)
    assert [at for at, _ in seen] == [101.0, 102.0, 103.0, 104.0]
    assert [ms for _, ms in seen] == pytest.approx([250.0, 500.0, 750.0, 1_000.0])
    assert 0 <= began_ms + 1_250.0 - world.now_ms < 250.0


def test_what_is_asked_in_simpy_is_answered_in_simpy() -> None:
    env, world = simpy.Environment(), booted()
    bridge = SimPyBridge(env, world)
    outcomes: list[str] = []

    def model() -> Any:
        yield env.timeout(1.0)
        outcomes.append((yield bridge.answered(bridge.act(lambda inner: inner.create_topic("t", 2, 3)))))
        outcomes.append((yield bridge.answered(bridge.act(lambda inner: inner.create_topic("t", 2, 3)))))
        with pytest.raises(ZeroDivisionError):
            yield bridge.answered(Future.failed(ZeroDivisionError()))
        outcomes.append("failed")

    env.run(until=env.process(model()))
    assert outcomes[0] == "done"
    assert outcomes[1].startswith("error")
    assert outcomes[2] == "failed"
    assert 1.0 < env.now < 10.0


def test_what_breaks_in_the_world_comes_out_of_simpys_run() -> None:
    env, world = simpy.Environment(), booted()
    SimPyBridge(env, world)
    node = world.add_node("mine")
    world.clock.call_later(500.0, lambda: node.note("went wrong", "error"))
    with pytest.raises(BrokenInvariant, match="went wrong"):
        env.run(until=2.0)
    assert env.now == pytest.approx(0.5)


def test_a_fleet_in_simpy_is_the_same_each_time() -> None:
    fleet = example("fleet")
    first, again, other = (fleet.simulate(brokers=3, crews=1, seconds=30, seed=seed) for seed in (6, 6, 8))
    assert first == again != other
    assert first.breakdowns >= 1
    assert 0 < first.leaderless_s < 30 * fleet.PARTITIONS


# -- the store's controller


SHARDS = 8
SERVED_BY_OTHERS = (2, 3, 6, 10, 11)
"""Seeds in which some server that does not lead was there when the shards were given out."""


class Cluster:
    """Three servers, and what a reader of /shards may rely on, looked at in every write."""

    def __init__(self, seed: int) -> None:
        self.shards = example("shards")
        self.world = Simulation(0, seed=seed)
        self.servers = [self.shards.Server(self.world.add_node(f"server-{n}"), SHARDS) for n in range(1, 4)]
        self.held: dict[str, dict[str, int]] = {}
        self.wrong: list[str] = []
        self.world.zookeeper.on_commit(self._committed)

    def _committed(self, session: int, operations: Sequence[Write]) -> None:
        """A shard's epoch grows with each change of its owner, and the owner is changed by who leads alone."""
        for operation in operations:
            if operation.path.startswith(f"{self.shards.SHARDS}/") and isinstance(operation, SetData):
                was, now = self.held.get(operation.path), json.loads(operation.data or b"{}")
                if was is not None and now["epoch"] <= was["epoch"]:
                    self.wrong.append(f"{operation.path}: {was}, then {now}")
                row = self.world.zookeeper.row(self.shards.ELECTION.controller)
                if row is None or row.stat.ephemeral_owner != session:
                    self.wrong.append(f"{operation.path} is written by a session that does not lead")
                self.held[operation.path] = now

    @property
    def epoch(self) -> int:
        """Of the last election, as ZooKeeper has it."""
        row = self.world.zookeeper.row(self.shards.ELECTION.epoch)
        return 0 if row is None else int(row.data or b"0")

    def leader(self) -> Any:
        return next((each for each in self.servers if each.controller.leads and each.node.alive), None)

    def settled(self) -> bool:
        alive = [each for each in self.servers if each.node.alive]
        served = sorted(shard for each in alive for shard in each.serves())
        agree = all(each.owners == alive[0].owners for each in alive)
        return served == list(range(SHARDS)) and agree and sum(each.controller.leads for each in alive) == 1

    def start_again(self, place: int) -> None:
        old = self.servers[place]
        self.servers[place] = self.shards.Server(self.world.add_node(old.node.name, old.node.id), SHARDS)


def strike(cluster: Cluster, fault: str) -> None:
    """The leader is struck, and at the end everybody is well again."""
    world, leader = cluster.world, cluster.leader()
    place = cluster.servers.index(leader)
    if fault == "killed":
        leader.node.kill()
        world.run_for(4_000)
        cluster.start_again(place)
    elif fault == "paused":
        leader.node.pause()
        world.run_for(5_000)
        leader.node.resume()
    elif fault == "cut off":
        leader.node.cut_zookeeper()
        world.run_for(5_000)
        leader.node.heal_zookeeper()
    else:
        world.zookeeper.expire(leader.zookeeper.session())


@pytest.mark.parametrize("fault", ["killed", "paused", "cut off", "expired"])
@pytest.mark.parametrize("seed", range(4))
def test_every_shard_is_served_again_and_no_leader_out_of_office_writes(fault: str, seed: int) -> None:
    cluster = Cluster(seed)
    cluster.world.run_until(cluster.settled)
    epoch = cluster.epoch
    strike(cluster, fault)
    cluster.world.run_until(lambda: cluster.epoch > epoch and cluster.settled())
    assert cluster.wrong == []


def test_a_server_that_is_back_in_time_keeps_its_shards() -> None:
    cluster = Cluster(2)
    cluster.world.run_until(cluster.settled)
    place = next(n for n, each in enumerate(cluster.servers) if not each.controller.leads and each.serves())
    served = cluster.servers[place].serves()
    session = cluster.servers[place].zookeeper.session()
    cluster.servers[place].node.kill()
    cluster.world.zookeeper.expire(session)
    cluster.world.run_for(cluster.shards.GRACE_MS / 2)
    cluster.start_again(place)
    cluster.world.run_until(cluster.settled)
    cluster.world.run_for(2 * cluster.shards.GRACE_MS)
    assert cluster.servers[place].serves() == served


def deposed(seed: int) -> list[str]:
    """A leader stands still, with a shard to give away as soon as it goes on; meanwhile somebody deletes the leader's
    znode and another is elected. Its session and its lease live on."""
    cluster = Cluster(seed)
    world, grace_ms = cluster.world, cluster.shards.GRACE_MS
    world.run_until(cluster.settled)
    leader = cluster.leader()
    gone = next(each for each in cluster.servers if each is not leader and each.serves())
    session = gone.zookeeper.session()
    gone.node.kill()
    world.zookeeper.expire(session)
    world.run_for(0.6 * grace_ms)
    leader.node.pause()
    shell = world.add_node("shell")
    by_hand = shell.zookeeper(EventQueue(1))
    world.answer(by_hand.start())
    world.answer(by_hand.commit_election([Delete(cluster.shards.ELECTION.controller, ANY_VERSION)]))
    world.run_for(0.5 * grace_ms)
    leader.node.resume()
    try:
        world.run_for(3 * grace_ms)
    except BrokenInvariant as broken:  # the one in office finds that somebody else has written
        return [*cluster.wrong, str(broken)]
    assert cluster.settled()
    return cluster.wrong


def test_a_store_without_the_fence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(self: ZooKeeperClient, leadership: Leadership, operations: Sequence[Write]) -> Sequence[Write]:
        return (Check("/", ANY_VERSION), *operations)

    assert [deposed(seed) for seed in SERVED_BY_OTHERS] == [[] for _ in SERVED_BY_OTHERS]
    monkeypatch.setattr(ZooKeeperClient, "_with_fence", unfenced)
    assert any("a session that does not lead" in line for seed in SERVED_BY_OTHERS for line in deposed(seed))


def test_nothing_of_the_store_is_in_kafkas_znodes() -> None:
    cluster = Cluster(1)
    cluster.world.run_until(cluster.settled)
    zookeeper = cluster.world.zookeeper
    assert [path for path in ("/controller", "/controller_epoch", "/brokers/ids/1") if zookeeper.row(path)] == []
    assert cluster.epoch == 1


def test_what_can_not_be_driven_is_named() -> None:
    """As somebody gives the controller itself, and not what has one."""
    cluster = Cluster(1)
    event_loop = cluster.world.add_node("another").event_loop()
    with pytest.raises(
        TypeError, match="ShardController can't be driven: expected an EventHandler; it has no controller"
    ):
        event_loop.start(cluster.servers[0].controller)
    with pytest.raises(TypeError, match=r"no events, process, controller"):
        event_loop.start(object())  # type: ignore[arg-type]
