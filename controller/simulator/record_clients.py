"""The simulated clients of a run that write and read records, from the first record to the final read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.machine.process import Process, ProcessClock
from controller.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from controller.scenarios.faults import HostFailure
from controller.scenarios.records.group_checks import group_at_rest, group_behind
from controller.scenarios.records.group_history import GroupHistory, GroupLog
from controller.scenarios.records.history import (
    ALL_READER,
    COMMITTED_READER,
    FINAL,
    PATIENCE_MS,
    FinalRead,
    FinalReadProgress,
    History,
    SendLog,
    TransactionalLogs,
    acknowledged_ends,
    history_of,
)
from controller.scenarios.records.workload import MEMBERS_MAX, PartitionName, RecordWorkload, TransactionWorkload
from controller.simulator.consumer import SimulatedConsumer, offset_of
from controller.simulator.group_members import SimulatedMember
from controller.simulator.network import Address
from controller.simulator.producer import DELIVERY_TIMEOUT_MS, SimulatedProducer
from controller.simulator.randomness import Streams
from controller.simulator.routes import Connect, Pipeline, Routes
from controller.simulator.transactional_client import SimulatedWriter, Stages
from controller.simulator.transformer import TransformSetup, committed_offsets, ended_transactions

OFFSETS_UNSTABLE = "the group's offsets in transactions did not become stable"

_LOOK_MS = 50.0


async def read_to_the_end(
    reader: SimulatedConsumer, routes: Routes, expected: list[int], deadline_ms: float
) -> list[FinalRead]:
    """Reads every partition with a reader that has not begun, for at most `deadline_ms`. `expected`: for each an
    offset before which something was acknowledged."""
    clock = routes.clock
    give_up_ms = clock.now_ms() + deadline_ms
    standings = [FinalReadProgress(each) for each in expected]
    reader.begin()
    while any(each.reached is None for each in standings) and clock.now_ms() < give_up_ms:
        await clock.sleep(_LOOK_MS)
        for place, standing in enumerate(standings):
            if standing.reached is None:
                await _look(reader, routes, place, standing)
    return [standing.verdict(reader.positions[place]) for place, standing in enumerate(standings)]


async def _look(reader: SimulatedConsumer, routes: Routes, place: int, standing: FinalReadProgress) -> None:
    if standing.start < 0:
        start = await offset_of(routes, place, EARLIEST_TIMESTAMP)
        standing.start = -1 if start is None else start
    if reader.positions[place] >= standing.end:
        end = await offset_of(routes, place, LATEST_TIMESTAMP, reader.isolation)
        standing.end = standing.end if end is None else end
    standing.look(reader.positions[place], reader.progress_ms[place], routes.clock.now_ms())


_QUIESCE_POLL_MS = 20.0
GROUP_SETTLES_MS = 40_000.0
"""How long a group may take to read everything and to come to rest: longer than its sessions and a rebalance."""


class SimulatedRecordClients:
    """Begins at once. `connect` opens a connection of a process by that process's clock, signed with a client's name.
    `members`: of the group, by number; those of the workload have begun."""

    def __init__(
        self,
        connect: Connect,
        process: Process,
        clock: ProcessClock,
        streams: Streams,
        brokers: Mapping[int, Address],
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
    ) -> None:
        self._clock = clock

        def connect_final(address: Address) -> Pipeline:
            return connect(process, clock, address, "final-reader")

        self._connect = connect_final
        self._partitions = tuple(partitions)

        def routes(name: str, known: Mapping[int, Address], those: Sequence[PartitionName]) -> Routes:
            return Routes(
                lambda address: connect(process, clock, address, name),
                clock,
                streams.stream(f"records/{name}"),
                known,
                those,
            )

        places = workload.transactional_places(partitions)
        self._plain = self._partitions[: len(partitions) - len(places)]
        """Those that are not written in transactions; the plain clients know no others."""
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
        self._group = GroupLog(session_ms=workload.group_session_ms)
        self._is_settled: bool | None = None
        self._group_end: GroupHistory | None = None
        self._transactional_logs = TransactionalLogs()
        self._transforms: TransformSetup | None = None
        self.writers: dict[int, SimulatedWriter] = {}
        self._committed_offsets: list[int] | None = None
        self._offsets_unstable = False
        self._unended: list[str] = []
        if workload.transactions is not None:
            self._begin_transactions(connect, streams, workload.transactions, places)
        self.members = {
            number: SimulatedMember(
                number,
                connect,
                clock,
                streams,
                brokers,
                self._plain,
                self._group,
                workload.group_session_ms,
                static=workload.static_members,
                transforms=self._transforms,
            )
            for number in range(MEMBERS_MAX if workload.members else 0)
        }
        for consumer in self._consumers:
            consumer.begin()
        for number in range(workload.members):
            self.members[number].begin()
        for producer in self._producers:
            producer.begin()
        for writer in self.writers.values():
            writer.begin()

    def _begin_transactions(
        self, connect: Connect, streams: Streams, workload: TransactionWorkload, places: Sequence[int]
    ) -> None:
        """The writers, and a reader of each isolation level."""
        for name, number, committed in (("committed", COMMITTED_READER, True), ("uncommitted", ALL_READER, False)):
            routes = self._opened(name, everything=True)
            self._consumers.append(SimulatedConsumer(number, routes, dict.fromkeys(places, 0), committed=committed))
        logs, known = self._transactional_logs, self._brokers
        self.writers = {
            number: SimulatedWriter(
                number, connect, self._clock, streams, known, self._partitions, places, workload, logs
            )
            for number in range(workload.writers)
        }
        if workload.transform:
            self._transforms = TransformSetup(workload, self._partitions, places, logs)

    def _opened(self, name: str, among: Collection[int] | None = None, *, everything: bool = False) -> Routes:
        known = {node: address for node, address in self._brokers.items() if among is None or node in among}
        routes = self._new_routes(name, known, self._partitions if everything else self._plain)
        self._routes.append(routes)
        return routes

    async def quiesce(self, deadline_ms: float, among: Collection[int] | None = None) -> None:
        """Stop the clients and read everything once more, from the brokers `among` only (None: all).

        A broker that is cut off from the others and believes that it still leads would answer a client that never
        learned of its successor.
        """
        for producer in self._producers:
            producer.stop()
        for writer in self.writers.values():
            writer.stop(among)
        give_up_ms = self._clock.now_ms() + 2 * DELIVERY_TIMEOUT_MS
        while any(producer.log.open for producer in self._producers) or not all(
            writer.done for writer in self.writers.values()
        ):
            if self._clock.now_ms() > give_up_ms:
                if any(producer.log.open for producer in self._producers):
                    raise HostFailure("a producer did not come to its end")
                self._unended = [writer.name for writer in self.writers.values() if not writer.done]
                break
            await self._clock.sleep(_QUIESCE_POLL_MS)
        await self._settle_group(self.acknowledged()[: len(self._plain)], among)
        ends = self.acknowledged()
        routes = self._opened("final-reader", among, everything=True)
        if self._transforms is not None:
            await self._end_transformers(routes, among)
        self._final = SimulatedConsumer(FINAL, routes, committed=self._is_transactional)
        self._finals = await read_to_the_end(self._final, routes, ends, deadline_ms)
        self.close()

    async def _settle_group(self, ends: Sequence[int], among: Collection[int] | None) -> None:
        """Wait until the group has read and committed everything, and every live member has its assignment."""
        if not self.members:
            return
        for member in self.members.values():
            member.end_former()
            member.resume()
            member.keep_to(among)
        if not any(member.takes_part for member in self.members.values()):
            self.members[0].begin()
        give_up_ms = self._clock.now_ms() + GROUP_SETTLES_MS
        while not (settled := self._group_is_settled(ends)) and self._clock.now_ms() < give_up_ms:
            await self._clock.sleep(_QUIESCE_POLL_MS)
        self._is_settled = settled
        self._group_end = self._group_history(ends)

    @property
    def _is_transactional(self) -> bool:
        return bool(self._transactional_logs.logs)

    async def _end_transformers(self, routes: Routes, among: Collection[int] | None) -> None:
        """End what dead members left open in transactions, and fetch the group's offsets."""
        assert self._transforms is not None
        known = {node: address for node, address in self._brokers.items() if among is None or node in among}
        for number in sorted(set(self.members) - set(self._live)):
            await ended_transactions(f"transformer-{number}", self._transforms, routes, self._connect, known)
        offsets = await committed_offsets(routes, self._plain, self._connect, known, PATIENCE_MS)
        self._committed_offsets, self._offsets_unstable = offsets, offsets is None

    def _group_is_settled(self, ends: Sequence[int]) -> bool:
        return group_at_rest(self._group, self._live, ends, self._plain)

    @property
    def _live(self) -> list[int]:
        return [number for number, member in self.members.items() if member.takes_part]

    def _group_history(self, ends: Sequence[int]) -> GroupHistory:
        behind = group_behind(self._group, ends, self._plain)
        return self._group.history(self._live, self._is_settled, behind, len(self._plain))

    def close(self) -> None:
        for member in self.members.values():
            member.end_former()
            member.die()
        for writer in self.writers.values():
            writer.close()
        for routes in self._routes:
            routes.close()

    def acknowledged(self) -> list[int]:
        """For each partition the offset after the last one that was acknowledged so far."""
        return acknowledged_ends(len(self._partitions), self._send_logs)

    @property
    def _send_logs(self) -> list[SendLog]:
        return [*(producer.log for producer in self._producers), *self._transactional_logs.logs]

    @property
    def _transactional_failures(self) -> list[str]:
        of_members = [] if self._transforms is None else self._transforms.producers
        found = [one.failure for one in of_members if one.failure is not None]
        found += [f"{one}: its transaction did not end" for one in self._unended]
        found += [OFFSETS_UNSTABLE] if self._offsets_unstable else []
        return [*found, *(failure for writer in self.writers.values() for failure in writer.failures)]

    def stages(self, client: int) -> Stages | None:
        """Where a transactional client is to stop; None if there is none of that number."""
        if self._transforms is not None:
            return self.members[client].stages if client in self.members else None
        return self.writers[client].stages if client in self.writers else None

    def history(self) -> History:
        read_by_group = [reader for member in self.members.values() for reader in member.readers]
        consumers = [*self._consumers, *read_by_group, *([] if self._final is None else [self._final])]
        reads = [consumer.log for consumer in consumers]
        found = [*(each.failure for each in self._producers), *(each.failure for each in consumers)]
        failures = [*(failure for failure in found if failure is not None), *self._transactional_failures]
        group = self._group_end or self._group_so_far()
        return history_of(
            self._partitions, self._send_logs, reads, self._finals, failures, group, self._committed_offsets
        )

    def _group_so_far(self) -> GroupHistory | None:
        return self._group.history(self._live, partitions=len(self._plain)) if self.members else None
