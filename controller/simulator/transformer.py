"""How a simulated member of a group consumes, transforms and produces in transactions, in place of commits.

A transaction consumes some of the records that the member has read and not consumed yet, writes one record for each,
and commits the offsets after them for the group (TxnOffsetCommit). If it is aborted, or its producer fenced, the member
reads from the committed offsets again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.protocol import ApiKey, ErrorCode
from controller.protocol.client import COORDINATOR_OF_GROUP, COORDINATOR_OF_TRANSACTION
from controller.protocol.groups import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchTopic
from controller.scenarios.records.group_history import GROUP
from controller.scenarios.records.history import ReadLog, TransactionalLogs
from controller.scenarios.records.workload import PartitionName, TransactionStage, TransactionWorkload
from controller.simulator.network import Address
from controller.simulator.routes import BACKOFF_MS, CoordinatorLink, Pipeline, Routes
from controller.simulator.transactional_client import (
    REQUEST_TIMEOUT_MS,
    FencedByCluster,
    Stages,
    TransactionalProducer,
    TransactionFailed,
)

MOST_IN_A_TRANSACTION = 20
_FETCH_OFFSETS = 7

SendOffsets = Callable[[Mapping[int, int]], Awaitable[None]]
"""TxnOffsetCommit of an offset by place. Raises TransactionFailed, FencedByCluster."""


@dataclass(frozen=True, slots=True)
class TransformSetup:
    """What the transforming members of a run share. `places`: of the partitions that they write to."""

    workload: TransactionWorkload
    partitions: Sequence[PartitionName]
    places: Sequence[int]
    logs: TransactionalLogs
    producers: list[TransactionalProducer] = field(default_factory=list)
    """Of all lives of all members."""


class Transformer:
    """The transactions of one life of a member."""

    def __init__(self, producer: TransactionalProducer, setup: TransformSetup, stages: Stages) -> None:
        self.producer = producer
        self._setup = setup
        self._stages = stages
        self._ready = False

    async def consume(self, log: ReadLog, taken: int, send_offsets: SendOffsets) -> int | None:
        """Consume rows of the log from `taken` on. Return the next row to consume, or None if the reader has to begin
        at the committed offsets again. Raises FencedByCluster."""
        rows = range(taken, min(len(log.offset), taken + MOST_IN_A_TRANSACTION))
        if not rows:
            return taken
        producer = self.producer
        try:
            if not self._ready:
                await producer.init()
                self._ready = True
            number = producer.begin()
            committed = await self._transaction(number, log, rows, send_offsets)
        except (FencedByCluster, TransactionFailed):
            self._ready = False
            raise
        return rows.stop if committed else None

    async def _transaction(self, number: int, log: ReadLog, rows: range, send_offsets: SendOffsets) -> bool:
        producer, stages, places = self.producer, self._stages, self._setup.places
        keys: dict[int, list[int]] = {}
        offsets: dict[int, int] = {}
        for row in rows:
            log.consumed(row, number)
            keys.setdefault(places[log.partition[row] % len(places)], []).append(log.key[row])
            offsets[log.partition[row]] = log.offset[row] + 1
        await stages.at(TransactionStage.INITIALISED, producer.clock)
        try:
            await producer.add_partitions(keys)
            await stages.at(TransactionStage.PARTITIONS_ADDED, producer.clock)
            await producer.send(number, keys)
            await producer.add_offsets(GROUP)
            await send_offsets(offsets)
            for place, offset in offsets.items():
                producer.transactions.offset_sent(number, place, offset)
            await stages.at(TransactionStage.SENT, producer.clock)
        except TransactionFailed:
            await producer.abort(number)
            return False
        every = self._setup.workload.abort_every
        commits = not every or (number + 1) % every != 0
        await producer.end(number, commits=commits)
        return commits


async def ended_transactions(
    name: str,
    setup: TransformSetup,
    routes: Routes,
    connect: Callable[[Address], Pipeline],
    brokers: Mapping[int, Address],
) -> None:
    """End what a client of that transactional id, which is dead, has left open."""
    if not any(one.transactions and one.transactions.transactional_id == name for one in setup.logs.logs):
        return
    link = CoordinatorLink(name, COORDINATOR_OF_TRANSACTION, routes, connect, brokers)
    await TransactionalProducer(name, setup.logs.new(name), routes, link, setup.workload.timeout_ms).init()


async def committed_offsets(
    routes: Routes,
    partitions: Sequence[PartitionName],
    connect: Callable[[Address], Pipeline],
    brokers: Mapping[int, Address],
    limit_ms: float,
) -> list[int] | None:
    """The group's offset of each of the history's partitions (-1: none), of which the group reads `partitions`.

    None if some of them are not stable within `limit_ms`: a partition of the offsets topic that has lost the marker
    of a transaction keeps its offsets open, and the coordinator, whose log has the transaction's end, writes no other.
    """
    link = CoordinatorLink(GROUP, COORDINATOR_OF_GROUP, routes, connect, brokers)
    topics = [
        OffsetFetchTopic(name, tuple(number for topic, number in partitions if topic == name))
        for name in dict.fromkeys(topic for topic, _ in partitions)
    ]
    request = OffsetFetchRequest(GROUP, tuple(topics), True)
    give_up_ms = routes.clock.now_ms() + limit_ms
    while routes.clock.now_ms() < give_up_ms:
        answer = await link.ask_until_answered(ApiKey.OFFSET_FETCH, _FETCH_OFFSETS, request, REQUEST_TIMEOUT_MS)
        assert isinstance(answer, OffsetFetchResponse)
        found = {
            (topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }
        if answer.error_code == ErrorCode.NONE and len(found) == len(partitions):
            return [found.get(name, -1) for name in routes.partitions]
        if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            link.forget()
        await routes.clock.sleep(BACKOFF_MS)
    return None
