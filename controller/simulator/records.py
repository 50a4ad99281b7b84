"""All simulated clients of a run that write and read records, from the first record to the complete history.

Each client is separate: it knows only what brokers have answered to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from controller.clock import Clock
from controller.scenarios.host import HostFailure
from controller.scenarios.records.history import FINAL, FinalRead, History, acknowledged_ends, history_of
from controller.scenarios.records.workload import PartitionName, RecordWorkload
from controller.simulator.consumer import SimulatedConsumer, read_to_the_end
from controller.simulator.network import Address
from controller.simulator.pipeline import Pipeline
from controller.simulator.producer import DELIVERY_TIMEOUT_MS, SimulatedProducer
from controller.simulator.randomness import Streams
from controller.simulator.routes import Routes

_LOOK_MS = 20.0


class SimulatedRecordClients:
    """Begins at once. `connect` opens a connection, signed with a client's name."""

    def __init__(
        self,
        connect: Callable[[Address, str], Pipeline],
        clock: Clock,
        streams: Streams,
        brokers: Mapping[int, Address],
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
    ) -> None:
        self._clock = clock
        self._partitions = tuple(partitions)

        def routes(name: str, known: Mapping[int, Address]) -> Routes:
            return Routes(
                lambda address: connect(address, name), clock, streams.stream(f"records/{name}"), known, partitions
            )

        self._brokers = dict(brokers)
        self._new_routes = routes
        self._routes: list[Routes] = []
        self._consumers = [
            SimulatedConsumer(number, self._opened(f"consumer-{number}")) for number in range(workload.consumers)
        ]
        self._producers = [
            SimulatedProducer(number, self._opened(f"producer-{number}"), workload)
            for number in range(workload.producers)
        ]
        self._final: SimulatedConsumer | None = None
        self._finals: list[FinalRead] = []
        for consumer in self._consumers:
            consumer.begin()
        for producer in self._producers:
            producer.begin()

    def _opened(self, name: str, among: Collection[int] | None = None) -> Routes:
        known = {node: address for node, address in self._brokers.items() if among is None or node in among}
        routes = self._new_routes(name, known)
        self._routes.append(routes)
        return routes

    async def quiesce(self, deadline_ms: float, among: Collection[int] | None = None) -> None:
        """Stop the clients and read everything once more, from the brokers `among` only (None: all).

        A broker that is cut off from the others and believes that it still leads would answer a client that never
        learned of its successor.
        """
        for producer in self._producers:
            producer.stop()
        give_up_ms = self._clock.now_ms() + 2 * DELIVERY_TIMEOUT_MS
        while any(producer.log.open for producer in self._producers):
            if self._clock.now_ms() > give_up_ms:
                raise HostFailure("a producer did not come to its end")
            await self._clock.sleep(_LOOK_MS)
        ends = self.acknowledged()
        routes = self._opened("final-reader", among)
        self._final = SimulatedConsumer(FINAL, routes)
        self._finals = await read_to_the_end(self._final, routes, ends, deadline_ms)
        self.close()

    def close(self) -> None:
        for routes in self._routes:
            routes.close()

    def acknowledged(self) -> list[int]:
        """For each partition the offset after the last one that was acknowledged so far."""
        return acknowledged_ends(len(self._partitions), [producer.log for producer in self._producers])

    def history(self) -> History:
        consumers = self._consumers if self._final is None else [*self._consumers, self._final]
        reads = [consumer.log for consumer in consumers]
        found = [*(each.failure for each in self._producers), *(each.failure for each in consumers)]
        failures = [failure for failure in found if failure is not None]
        sends = [producer.log for producer in self._producers]
        return history_of(self._partitions, sends, reads, self._finals, failures)
