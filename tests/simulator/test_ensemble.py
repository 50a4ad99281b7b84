"""What the death of one of several ZooKeeper servers costs its clients, and what it does not."""

from __future__ import annotations

from random import Random

import pytest

from controller.clock import VirtualClock
from controller.scenarios.faults import HostFailure
from controller.simulator.ensemble import ELECTION_MS, JOIN_MS, Ensemble
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import SessionState, WatchEvent

TIMEOUT_MS = 6_000


class States:
    def __init__(self) -> None:
        self.seen: list[SessionState] = []

    def session_state(self, state: SessionState) -> None:
        self.seen.append(state)

    def watch_fired(self, event: WatchEvent) -> None:
        pass


class World:
    """An ensemble with clients that have their sessions."""

    def __init__(self, servers: int = 3, clients: int = 12, seed: int = 1) -> None:
        self.clock = VirtualClock()
        self.zookeeper = InMemoryZooKeeper(self.clock)
        self.clients: list[InMemoryConnection] = []
        self.ensemble = Ensemble(self.zookeeper, servers, self.clock, Random(seed), lambda: self.clients)
        self.states = [States() for _ in range(clients)]
        for states in self.states:
            client = self.zookeeper.connect(TIMEOUT_MS)
            client.listen(states)
            client.start()
            self.clients.append(client)
        self.later(100.0)
        self.sessions = self.zookeeper.sessions()

    def later(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)

    def served(self) -> bool:
        return self.zookeeper.running

    @property
    def suspended(self) -> int:
        return sum(SessionState.SUSPENDED in states.seen for states in self.states)

    def follower(self) -> int:
        return next(server for server in self.ensemble.running if server != self.ensemble.leader)

    def leader(self) -> int | None:
        return self.ensemble.leader

    def kill_leader(self) -> int:
        leader = self.leader()
        assert leader is not None
        self.ensemble.kill(leader)
        return leader


def test_the_leaders_death_breaks_every_connection_and_costs_no_session() -> None:
    world = World()
    dead = world.kill_leader()
    assert world.leader() is None
    assert not world.served()
    world.later(10.0)
    assert world.suspended == len(world.clients)
    world.later(ELECTION_MS[1])
    assert world.served()
    assert world.leader() in set(world.ensemble.running)
    assert dead not in world.ensemble.running
    world.later(1_000.0)
    assert world.zookeeper.sessions() == world.sessions
    assert all(states.seen[-1] is SessionState.CONNECTED for states in world.states)


def test_a_followers_death_breaks_its_own_clients_connections() -> None:
    world = World()
    world.ensemble.kill(world.follower())
    world.later(10.0)
    assert 0 < world.suspended < len(world.clients)
    assert world.served()
    world.later(1_000.0)
    assert world.zookeeper.sessions() == world.sessions


def test_without_a_quorum_nobody_is_served_and_no_session_ends_until_another_server_comes() -> None:
    world = World()
    first = world.kill_leader()
    second = world.ensemble.running[0]
    world.ensemble.kill(second)
    world.later(20 * TIMEOUT_MS)
    assert not world.served()
    assert world.zookeeper.sessions() == world.sessions
    serving: list[bool] = []
    world.ensemble.start(first).on_done(lambda: serving.append(world.served()))
    assert not serving
    world.later(ELECTION_MS[1] + JOIN_MS[1])
    assert serving == [True]
    world.later(1_000.0)
    assert world.zookeeper.sessions() == world.sessions


def test_a_server_that_comes_back_under_a_leader_changes_nothing() -> None:
    world = World()
    dead = world.follower()
    world.ensemble.kill(dead)
    world.later(500.0)
    serves = world.ensemble.start(dead)
    world.later(JOIN_MS[1])
    assert serves.done
    assert world.ensemble.running == (1, 2, 3)
    assert world.served()


def test_a_server_on_its_own_is_the_whole_service() -> None:
    world = World(servers=1)
    world.ensemble.kill(1)
    world.later(10_000.0)
    assert not world.served()
    world.ensemble.start(1)
    world.later(ELECTION_MS[1])
    assert world.served()


def test_what_does_not_run_is_not_killed_and_what_runs_is_not_started() -> None:
    world = World()
    dead = world.kill_leader()
    with pytest.raises(HostFailure, match="not running"):
        world.ensemble.kill(dead)
    with pytest.raises(HostFailure, match="running already"):
        world.ensemble.start(world.ensemble.running[0])
