"""A simulated cluster as a library: build a world, step it from outside, look into it, strike it, hear its events.

The whole world (ZooKeeper, brokers with their controllers, network, disks, and user-defined nodes) is one object
without threads, in virtual time that passes only when it is stepped. Everything that chance decides comes from the
seed: the same calls give the same events, to the byte. What must hold at every moment is watched all the while, and
the first thing that does not raises `BrokenInvariant` out of whatever call stepped the world.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controller.pending import Pending
from controller.protocol import SUPPORTED, ApiKey, decode_response_body, encode_request_body
from controller.scenarios.host import ZOOKEEPER, Link
from controller.simulator.custom_node import CustomNode
from controller.simulator.host import PORT
from controller.simulator.network import Address
from controller.simulator.plan import (
    AddPartitions,
    CreateTopic,
    CutZooKeeper,
    DeleteTopic,
    Expire,
    Fault,
    Kill,
    Operation,
    Pause,
    Plan,
    PlanCluster,
    Stop,
)
from controller.simulator.simulated_world import SimulatedWorld
from controller.zookeeper.drive import drive


class Simulation(SimulatedWorld):
    """Brokers 1 to `brokers` (0: a world without any), which run from the start unless `start` says otherwise.

    `settings` are every broker's, as in server.properties; with `log.dirs` among them brokers hold logs, followers
    fetch and ISRs follow how far they have come; a kill leaves what was written, a `LosePower` only what was synced.
    `racks` are dealt out in turn. Times are virtual milliseconds.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        seed: int = 0,
        zookeeper_servers: int = 1,
        session_timeout_ms: int = 2_000,
        racks: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        start: bool = True,
    ) -> None:
        if brokers < 0 or zookeeper_servers < 1:
            raise ValueError(f"{brokers} brokers, {zookeeper_servers} ZooKeeper servers: expected 0 and 1 or more")
        cluster = PlanCluster(
            brokers=brokers,
            zookeeper_servers=zookeeper_servers,
            session_timeout_ms=session_timeout_ms,
            settings=dict(settings or {}),
        )
        core = tuple(cluster.nodes)
        self._build(Plan(name="simulation", seed=seed, cluster=cluster, core=core, calm_ms=math.inf), tuple(racks))
        if start:
            self.injector.begin()

    @classmethod
    def of_plan(cls, plan: Plan) -> Simulation:
        """A plan's world, booted, with nothing begun: `injector.begin` starts its brokers and what it has happen."""
        world = cls.__new__(cls)
        world._build(plan, ())
        return world

    # -- what is asked of it

    def create_topic(
        self, topic: str, partitions: int, replication_factor: int, config: Mapping[str, str] | None = None
    ) -> Pending[str]:
        """Asks the controller, as an administrator would, some times if need be. "done", or why not."""
        return self.inject(
            CreateTopic(
                at_ms=self.now_ms,
                topic=topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=dict(config or {}),
            )
        )

    def delete_topic(self, topic: str) -> Pending[str]:
        return self.inject(DeleteTopic(at_ms=self.now_ms, topic=topic))

    def add_partitions(self, topic: str, partitions: int) -> Pending[str]:
        """`partitions`: how many there are to be."""
        return self.inject(AddPartitions(at_ms=self.now_ms, topic=topic, partitions=partitions))

    def ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float = 5_000.0) -> Pending[Any]:
        """One Kafka request from outside, in the latest version that is spoken here. Fails with a `PeerError`."""
        return drive(self._ask(self._known(broker), api_key, request, timeout_ms))

    async def _ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float) -> Any:
        version = SUPPORTED[api_key].last
        connection = self.host.connection(self.host.world.addresses[broker])
        await connection.open(timeout_ms)
        answer = connection.ask(api_key, version, encode_request_body(api_key, version, request), timeout_ms)
        answer.on_done(connection.close)
        return decode_response_body(api_key, version, await answer)

    # -- fault injection

    def inject(self, happening: Fault | Operation) -> Pending[str]:
        """Whatever a plan may have happen, at its `at_ms` or at once if that is past, for its `for_ms` (0: until it is
        undone by hand, or by `heal_all`). Answered when it is over: "ended", or "nothing" if it made no sense then."""
        self.safety_checker.expect_errors_of(happening)
        return self.injector.take(happening)

    def start(self, broker: int) -> None:
        """A broker that is dead, or on its way out. ValueError if it runs."""
        if self._alive(self._known(broker)) and not self.host.processes[broker].stopping:
            raise ValueError(f"broker {broker} runs already")
        self.injector.start(broker)

    def kill(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGKILL; with `for_ms` it is started again so much later."""
        self.inject(Kill(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def stop(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGTERM: a controlled shutdown begins."""
        self.inject(Stop(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def pause(self, broker: int, for_ms: float = 0.0) -> None:
        """SIGSTOP."""
        self.inject(Pause(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def resume(self, broker: int) -> None:
        if self._alive(self._known(broker)):
            self.host.processes[broker].resume()

    def expire(self, broker: int) -> None:
        """Its ZooKeeper session ends at the server."""
        self.inject(Expire(at_ms=self.now_ms, node=self._known(broker)))

    def cut(self, source: int, target: int) -> None:
        """What `source` opens to `target` passes nothing, both ways, and refuses nothing."""
        self.host.world.network.cut(source, target)

    def heal(self, source: int, target: int) -> None:
        """What was sent meanwhile arrives."""
        self.host.world.network.heal(source, target)

    def cut_zookeeper(self, broker: int, for_ms: float = 0.0) -> None:
        """Nothing passes between a broker and ZooKeeper."""
        self.inject(CutZooKeeper(at_ms=self.now_ms, node=self._known(broker), for_ms=for_ms))

    def heal_zookeeper(self, broker: int) -> None:
        drive(self.host.heal(Link(self._known(broker), ZOOKEEPER)))

    def heal_all(self) -> None:
        """Every fault that lasts ends; who is dead stays dead."""
        self.injector.faults.heal_all()

    # -- user-defined nodes

    def add_node(self, name: str, node: int | None = None) -> CustomNode:
        """Start a process beside the brokers, on a machine of its own.

        Args:
            node: Its id, by default the next one above all others. The id of a dead node starts its next incarnation.

        Raises:
            ValueError: The id is a broker's or that of a live node.
        """
        node_id = max([len(self._brokers), *self._custom_nodes]) + 1 if node is None else node
        known = self._custom_nodes.get(node_id)
        if node_id in self._brokers or node_id < 1 or (known is not None and known.alive):
            raise ValueError(f"node {node_id}: expected an id above the brokers' that no living node has")
        incarnation = self._incarnations[node_id] = self._incarnations.get(node_id, 0) + 1
        self.host.place(self._address(node_id), node_id)
        custom_node = self._custom_nodes[node_id] = CustomNode(self.host, node_id, name, incarnation, self._address)
        return custom_node

    def _address(self, node: int) -> Address:
        if node in self._brokers:
            return self.host.world.addresses[node]
        return f"node-{node}", PORT

    def close(self) -> None:
        """Ends every process: nothing happens any more. The trace stays."""
        for _, custom_node in sorted(self._custom_nodes.items()):
            custom_node.kill()
        drive(self.host.shut_down()).result()
