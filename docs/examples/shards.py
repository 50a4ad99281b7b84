"""A controller for something that is not Kafka: who of a few servers serves which shard of a key-value store.

One of the servers leads. Leadership, fence, watches, event queue, state machine, timer and simulator are this
project's parts; what is here is what a store's own people would write. Servers register below /store/servers;
/store/shards/N says who serves shard N and since which change of owner (its epoch), which only a leader in office can
write.

    python docs/examples/shards.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from transitions import Machine

from controller.clock import Clock, Timer
from controller.core.channels import Resign
from controller.core.event_loop import EventQueue
from controller.core.events import ControllerChange, Event, Reelect, SessionExpired, Startup
from controller.core.leadership import Won, elect, void_reason
from controller.simulator import CustomNode, Simulation
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ElectionPaths, Leadership, ZooKeeperClient
from controller.zookeeper.operations import ControllerMoved, Create, LeaseExpired, SessionGone, SessionState, SetData
from statemachines.machine import compile_machine

STORE = "/store"
ELECTION = ElectionPaths(controller=f"{STORE}/leader", epoch=f"{STORE}/epoch")
SERVERS, SHARDS = f"{STORE}/servers", f"{STORE}/shards"
NOBODY = 0
GRACE_MS = 500
"""How long a server may be gone before its shards are given to others: a cache is cheaper kept than filled anew."""


# -- the state machine: declared once, compiled to a table


class ShardState(IntEnum):
    New = 0
    Served = 1
    Waiting = 2
    """Its server is gone, and may be back in time."""


_DECLARATION = Machine(model=None, states=[state.name for state in ShardState], initial=None, auto_transitions=False)
_DECLARATION.add_transition("Served", ["New", "Waiting"], "Served")
_DECLARATION.add_transition("Waiting", ["Served", "New"], "Waiting")
SHARD = compile_machine("shard", ShardState, _DECLARATION)


@dataclass
class Shard:
    number: int
    owner: int
    epoch: int
    version: int
    state: ShardState = ShardState.New

    def data(self) -> bytes:
        return json.dumps({"owner": self.owner, "epoch": self.epoch}).encode()

    def move(self, state: ShardState) -> None:
        """Raises InvalidTransition if the machine does not allow it."""
        SHARD.require(self.state, state, lambda: self.number)
        self.state = state


# -- events: "look again", and no more


@dataclass(frozen=True, slots=True)
class ServerChange:
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GraceOver:
    """A server has been gone for long enough."""

    server: int
    coalesces: ClassVar[bool] = True


# -- the controller


@dataclass
class Office:
    """One term: all that belongs to it hangs here, so that a resignation drops it whole."""

    leadership: Leadership
    shards: list[Shard] = field(default_factory=list)
    servers: tuple[int, ...] = ()
    grace: dict[int, Timer] = field(default_factory=dict)


Tell = Callable[[int, dict[str, int]], None]
"""Sends a server a message."""


class ShardController:
    """What drives its events (an event thread; in simulation an event loop) asks it what it must know of its term:
    `void_reason`, `lease_until_ms`, and to `resign` when nothing else is to do."""

    def __init__(
        self, server: int, shards: int, zookeeper: ZooKeeperClient, events: EventQueue, clock: Clock, tell: Tell
    ) -> None:
        self.events = events
        self._server = server
        self._count = shards
        self._zookeeper = zookeeper
        self._clock = clock
        self._tell = tell
        self._office: Office | None = None

    @property
    def leads(self) -> bool:
        return self._office is not None

    @property
    def epoch(self) -> int:
        return 0 if self._office is None else self._office.leadership.epoch

    def void_reason(self) -> str | None:
        if self._office is None:
            return None
        return void_reason(self._office.leadership, self._zookeeper, self._clock.now_ms())

    def lease_until_ms(self) -> float:
        return float("inf") if self._office is None else self._zookeeper.lease_until_ms()

    def resign(self, reason: str) -> None:
        """Synchronous, so that nothing comes between: no watch, no timer, no state of the term is left."""
        office, self._office = self._office, None
        if office is not None:
            self._zookeeper.unwatch([SERVERS])
            for task in office.grace.values():
                task.cancel()

    async def process(self, event: Event) -> None:
        """One event to its end. Whatever ends the term ends it here."""
        try:
            await self._handle(event)
        except (ControllerMoved, LeaseExpired, SessionGone, Resign) as ended:
            self.resign(str(ended))
            if self._zookeeper.session():
                self.events.put(Reelect())  # the leader's znode may still be this server's: stand again, or none can

    async def _handle(self, event: Event) -> None:
        if isinstance(event, Startup | Reelect):
            await self._zookeeper.watch_node(ELECTION.controller, ControllerChange())
            await self._stand()
        elif isinstance(event, ControllerChange):
            await self._controller_change()
        elif isinstance(event, SessionExpired):
            self.resign("the session has ended")
        elif self._office is not None and isinstance(event, ServerChange):
            await self._servers_changed(self._office)
        elif self._office is not None and isinstance(event, GraceOver):
            await self._give_away(self._office, event.server)

    async def _controller_change(self) -> None:
        row = (await self._zookeeper.read([ELECTION.controller])).rows[0]
        office = self._office
        if office is not None and (row is None or row.stat.ephemeral_owner != office.leadership.session):
            self.resign(f"{ELECTION.controller} is another's, or gone")
        if row is None:
            await self._stand()

    async def _stand(self) -> None:
        if self._office is not None or not self._zookeeper.session():
            return
        outcome = await elect(self._zookeeper, self._server, self._clock, at=ELECTION)
        if isinstance(outcome, Won):
            self._office = Office(outcome.leadership)
            await self._take_office(self._office)

    async def _take_office(self, office: Office) -> None:
        """Creates what is missing, reads what is there, and goes on from that."""
        names = [f"{SHARDS}/{number}" for number in range(self._count)]
        fresh = Shard(0, NOBODY, 0, 0).data()
        creations = [Create(SHARDS, b""), *(Create(name, fresh) for name in names)]
        await self._zookeeper.create_rows(office.leadership, creations)
        rows = (await self._zookeeper.read(names)).rows
        for number, row in enumerate(rows):
            assert row is not None, "created above, and never deleted"
            assert row.data, "created together with its owner"
            held = json.loads(row.data)
            office.shards.append(Shard(number, held["owner"], held["epoch"], row.stat.version))
        await self._zookeeper.watch_children(SERVERS, ServerChange())
        await self._servers_changed(office)

    async def _servers_changed(self, office: Office) -> None:
        """Looks who is there: who came is told what it serves, who went has a while to come back."""
        names = (await self._zookeeper.children([SERVERS])).children[0] or ()
        office.servers = tuple(sorted(int(name) for name in names))
        for shard in office.shards:
            there = shard.owner in office.servers
            if there and shard.state is not ShardState.Served:
                shard.move(ShardState.Served)
            elif not there and shard.state is not ShardState.Waiting:
                shard.move(ShardState.Waiting)
        self._wait_for_the_gone(office)
        await self._give_away(office, NOBODY)
        self._tell_all(office, office.shards)

    def _wait_for_the_gone(self, office: Office) -> None:
        gone = {shard.owner for shard in office.shards if shard.state is ShardState.Waiting} - {NOBODY}
        for server in sorted(office.grace.keys() - gone):
            office.grace.pop(server).cancel()
        for server in sorted(gone - office.grace.keys()):
            office.grace[server] = self._clock.call_later(
                GRACE_MS,
                lambda server=server: self.events.put(GraceOver(server)),  # type: ignore[misc]
            )

    async def _give_away(self, office: Office, server: int) -> None:
        """The shards of a server that is gone go to those that have fewest. Written first, sent after; written only
        while this term holds, whatever has happened since the last look."""
        office.grace.pop(server, None)
        if server in office.servers or not office.servers:
            return
        load = {each: sum(shard.owner == each for shard in office.shards) for each in office.servers}
        moving = [shard for shard in office.shards if shard.state is ShardState.Waiting and shard.owner == server]
        for shard in moving:
            shard.owner = min(office.servers, key=lambda each: (load[each], each))
            shard.epoch += 1
            load[shard.owner] += 1
        written = await self._zookeeper.commit_rows(
            office.leadership, [SetData(f"{SHARDS}/{shard.number}", shard.data(), shard.version) for shard in moving]
        )
        assert not written.moved, "only leaders write these, and this one is in office"
        for shard, version in zip(moving, written.versions, strict=True):
            shard.version = version
            shard.move(ShardState.Served)
        self._tell_all(office, moving)

    def _tell_all(self, office: Office, shards: Sequence[Shard]) -> None:
        for shard in shards:
            for server in office.servers:
                self._tell(server, {"shard": shard.number, "owner": shard.owner, "epoch": shard.epoch})


# -- a server: serves what it was told, by the latest word alone


class Server:
    """A life of one on a node of the simulated world: an `EventHandler`, which its event loop is started with. On a
    real host the same controller has a ControllerEventThread, a KazooConnection and sockets around it."""

    def __init__(self, node: CustomNode, shards: int) -> None:
        self.node = node
        self.owners: dict[int, tuple[int, int]] = {}
        node.on_message = self._told
        event_loop = node.event_loop()
        events = EventQueue(1_000, wake=event_loop.wake)
        self.zookeeper = node.zookeeper(events, session_timeout_ms=2_000, session_event=self._session_event)
        self.controller = ShardController(
            node.id,
            shards,
            self.zookeeper,
            events,
            node.clock,
            lambda to, said: node.send(to, json.dumps(said).encode()),
        )
        self._session = 0
        self.zookeeper.start()
        event_loop.start(self)

    @property
    def events(self) -> EventQueue:
        return self.controller.events

    async def process(self, event: Event) -> None:
        if isinstance(event, Startup):
            writes = BrokerWrites(self.zookeeper)
            await writes.ensure([STORE, SERVERS])
            await writes.register_broker(self.node.id, b"{}", ids=SERVERS)
        await self.controller.process(event)

    def serves(self) -> set[int]:
        return {shard for shard, (_, owner) in self.owners.items() if owner == self.node.id}

    def _tell(self, server: int, said: dict[str, int]) -> None:
        self.node.send(server, json.dumps(said).encode())

    def _told(self, sender: int, message: bytes) -> None:
        said = json.loads(message)
        epoch, _ = self.owners.get(said["shard"], (-1, NOBODY))
        if said["epoch"] >= epoch:  # a deposed leader's late word is older
            self.owners[said["shard"]] = said["epoch"], said["owner"]

    def _session_event(self, state: SessionState, session: int) -> Any:
        if state is SessionState.CONNECTED and session != self._session:
            self._session = session
            return Startup()
        return SessionExpired(session) if state is SessionState.EXPIRED else None


def main() -> None:
    world = Simulation(0, seed=1)
    servers = [Server(world.add_node(f"server-{number}"), shards=8) for number in range(1, 4)]

    def told() -> bool:
        alive = [server for server in servers if server.node.alive]
        served = sorted(shard for server in alive for shard in server.serves())
        return served == list(range(8)) and all(server.owners == alive[0].owners for server in alive)

    world.run_until(told)
    print(f"{world.now_ms:8.1f} ms: " + ", ".join(f"{each.node.name} {sorted(each.serves())}" for each in servers))
    leader = next(server for server in servers if server.controller.leads)
    leader.node.kill()
    world.run_until(told)
    epoch = max(server.controller.epoch for server in servers if server.node.alive)
    print(f"{world.now_ms:8.1f} ms: {leader.node.name}, who led, is dead; epoch {epoch} leads")
    print(" " * 13 + ", ".join(f"{each.node.name} {sorted(each.serves())}" for each in servers if each.node.alive))


if __name__ == "__main__":
    main()
