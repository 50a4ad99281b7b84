"""A batch of one step's control requests, sent at once: LeaderAndIsr, UpdateMetadata, StopReplica, in that order.

A batch is a local value of the handler that creates it: an exception before `send` discards it with its contents
(KAFKA-12315: there a batch survived its exception and broke the next term). Values are read from the context when the
batch is sent, after the step's last write. docs/protocol.md lists which broker gets which request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from controller.core.channels import ControlRequest
from controller.core.context import NO_BROKER, NO_STATE, Bools, Int32s, LiveBroker, PartitionTable, Replicas, Rows
from controller.core.events import (
    LeaderAndIsrResponseReceived,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from controller.core.term import Term
from controller.protocol.bulk import PartitionColumns, common_part, leader_and_isr_body, own_part, update_metadata_body
from controller.protocol.codec import decode_response_body, encode_request_body
from controller.protocol.control import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    LeaderAndIsrLiveLeader,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from controller.protocol.messages import ApiKey
from controller.zookeeper.znode_sense import topic_name_fault
from statemachines.leader_election_columns import live_mask

_RESPONSE_EVENTS = {
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponseReceived,
    ApiKey.UPDATE_METADATA: UpdateMetadataResponseReceived,
    ApiKey.STOP_REPLICA: StopReplicaResponseReceived,
}
NAMES = {
    ApiKey.LEADER_AND_ISR: "LeaderAndIsr",
    ApiKey.UPDATE_METADATA: "UpdateMetadata",
    ApiKey.STOP_REPLICA: "StopReplica",
}
"""The requests' names in the trace."""
FIRST_VERSION_WITH_FLAGS = 3
"""The first StopReplica version with a delete flag by partition; earlier ones have one flag for the request."""


class RequestBatch:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._leader_and_isr: list[tuple[Replicas, bool]] = []
        self._metadata_rows: list[Rows] = []
        self._metadata_brokers: set[int] = set()
        self._partitions_follow = False
        self._complete = False
        self._stops: list[tuple[Rows, Int32s, Int32s, bool]] = []

    def leader_and_isr(self, replicas: Replicas, *, is_new: bool = False) -> None:
        """Send these replicas their partitions' states, and all brokers the partitions' metadata.

        Replicas on dead brokers are skipped.
        """
        if len(replicas):
            self._leader_and_isr.append((replicas, is_new))
            self.update_metadata(replicas.rows)

    def update_metadata(self, rows: Rows, brokers: Iterable[int] | None = None) -> None:
        """Send `brokers` (None: all live and shutting-down ones) the live brokers and these partitions' metadata.

        Partitions without a state are left out, unless the brokers are to forget them.
        """
        self._metadata_rows.append(rows)
        self._metadata_brokers.update(self._term.context.broker_ids if brokers is None else brokers)

    def name_all_topics(self) -> None:
        """Make the batch's UpdateMetadata name all topics, also those it does not send in full.

        The receivers forget all other topics. A broker may know a topic from an earlier controller and not have been
        notified of its deletion, because the controller that deleted it did not know the broker.
        """
        self._complete = True

    def send_live_brokers(self, *, partitions_follow: bool = False) -> None:
        """Send all brokers the live brokers, without partitions; `partitions_follow`: the next batch sends those."""
        self.update_metadata(self._term.context.rows_with_state()[:0])
        self._partitions_follow = partitions_follow

    def stop_replicas(self, replicas: Replicas, *, delete: bool = False) -> None:
        """Send these replicas StopReplica, with delete if `delete`.

        The leader epoch is the current one, before the batch's other changes, as a 2.8 controller sends it. While the
        topic is queued for deletion it is one that is lower than any.
        """
        brokers = self._term.context.partitions.assignment[replicas.rows, replicas.slots]
        self.stop_on(replicas.rows, brokers, delete=delete)

    def stop_on(self, rows: Rows, brokers: Int32s, *, delete: bool = False) -> None:
        """Send StopReplica to replicas that the assignment no longer names: `brokers` by place in `rows`."""
        table = self._term.context.partitions
        known = table.zk_version[rows] != NO_STATE
        epochs = np.where(known, table.leader_epoch[rows], NO_EPOCH)
        epochs[self._term.context.deleting(rows)] = EPOCH_DURING_DELETE
        self._stops.append((rows, brokers, epochs.astype(np.int32), delete))

    def send(self) -> None:
        """Queue all requests of the batch. Raises SessionGone or LeaseExpired, with nothing queued."""
        self._term.require()
        self._send_leader_and_isr()
        self._send_update_metadata()
        self._send_stop_replicas()

    # -- LeaderAndIsr

    def _send_leader_and_isr(self) -> None:
        term, table = self._term, self._term.context.partitions
        version = term.settings.versions.leader_and_isr
        for broker, rows, is_new in self._by_broker():
            columns = self._columns(rows)
            body = leader_and_isr_body(
                version,
                controller_id=term.broker_id,
                controller_epoch=term.epoch,
                broker_epoch=broker.epoch,
                topics=_NamesAndIds(table),
                columns=columns,
                is_new=is_new,
                live_leaders=self._live_leaders(columns.leader),
                adding=_sparse(table.adding, rows),
                removing=_sparse(table.removing, rows),
            )
            self._send(broker, ApiKey.LEADER_AND_ISR, version, body, len(rows))

    def _by_broker(self) -> Iterator[tuple[LiveBroker, Rows, Bools]]:
        """Yield each live broker, by id, with the rows of its partitions, each once, grouped by topic."""
        table = self._term.context.partitions
        if not self._leader_and_isr:
            return
        rows = np.concatenate([replicas.rows for replicas, _ in self._leader_and_isr])
        slots = np.concatenate([replicas.slots for replicas, _ in self._leader_and_isr])
        is_new = np.concatenate([np.full(len(replicas), new) for replicas, new in self._leader_and_isr])
        brokers = table.assignment[rows, slots]
        if len(self._leader_and_isr) == 1 and _ascends(table.topic[rows]):
            order = np.argsort(brokers, kind="stable")  # as nearly always: each partition once, grouped by topic
            rows, brokers, is_new = rows[order], brokers[order], is_new[order]
        else:
            # A partition that was put in twice for one broker comes once, as new if it was new in either.
            order = np.lexsort((~is_new, rows, table.topic[rows], brokers))
            rows, brokers, is_new = rows[order], brokers[order], is_new[order]
            once = np.ones(len(rows), dtype=np.bool_)
            once[1:] = (rows[1:] != rows[:-1]) | (brokers[1:] != brokers[:-1])
            rows, brokers, is_new = rows[once], brokers[once], is_new[once]
        firsts = np.flatnonzero(np.diff(brokers, prepend=NO_BROKER - 1))
        for first, end in zip(firsts.tolist(), np.append(firsts[1:], len(rows)).tolist(), strict=True):
            broker = self._term.context.broker(int(brokers[first]))
            if broker is not None:
                yield broker, rows[first:end], is_new[first:end]

    def _live_leaders(self, leaders: Int32s) -> list[LeaderAndIsrLiveLeader]:
        found = (self._term.context.broker(leader) for leader in np.unique(leaders).tolist())
        return [
            LeaderAndIsrLiveLeader(broker.id, broker.endpoint.host, broker.endpoint.port)
            for broker in found
            if broker is not None
        ]

    # -- UpdateMetadata

    def _send_update_metadata(self) -> None:
        term = self._term
        receivers = [broker for broker in term.context.brokers if broker.id in self._metadata_brokers]
        if not receivers:
            return
        table = term.context.partitions
        rows = self._sorted_once(self._metadata_rows)
        rows = rows[(table.zk_version[rows] != NO_STATE) | term.context.deleting(rows)]
        replicas = table.assignment[rows]
        offline = np.where(term.context.usable(rows, replicas, term.context.eligible_ids), NO_BROKER, replicas).astype(
            np.int32
        )
        version = term.settings.versions.update_metadata
        body = update_metadata_body(
            version,
            controller_id=term.broker_id,
            controller_epoch=term.epoch,
            topics=_NamesAndIds(table),
            columns=self._columns_during_delete(rows),
            offline=offline,
            live_brokers=[broker.advertised for broker in term.context.brokers],
            partitions_follow=self._partitions_follow,
            complete_but=self._topics_not_in_full(rows) if self._complete else None,
        )
        rest = common_part(body)  # of 100,000 partitions some megabytes, and there may be a thousand brokers
        for broker in receivers:
            own = own_part(body, broker.epoch)
            self._send(broker, ApiKey.UPDATE_METADATA, version, own, len(rows), rest=rest)

    def _topics_not_in_full(self, rows: Rows) -> list[str]:
        """Return the topics that these rows do not cover, and those that the term can't read.

        A topic with an illegal name is left out: no broker knows it, and its name may be too long for the request.
        """
        table = self._term.context.partitions
        uncovered = np.setdiff1d(table.all_rows(), rows, assume_unique=True)
        unreadable = (name for name in self._term.context.left_out if topic_name_fault(name) is None)
        return sorted({*unreadable, *table.names_of_topics(uncovered)})

    def _columns_during_delete(self, rows: Rows) -> PartitionColumns:
        """Return the rows' columns, with a reserved leader id for partitions of topics in deletion.

        The reserved id belongs to no broker and makes brokers forget the partition.
        """
        columns, deleting = self._columns(rows), self._term.context.deleting(rows)
        if not deleting.any():
            return columns
        return replace(
            columns,
            leader=np.where(deleting, LEADER_DURING_DELETE, columns.leader).astype(np.int32),
            leader_epoch=np.where(deleting, 0, columns.leader_epoch).astype(np.int32),
            zk_version=np.where(deleting, 0, columns.zk_version).astype(np.int32),
        )

    def _sorted_once(self, parts: Sequence[Rows]) -> Rows:
        """Each row once, grouped by topic."""
        table = self._term.context.partitions
        chosen = np.zeros(len(table), dtype=np.bool_)
        for part in parts:
            chosen[part] = True
        rows = np.flatnonzero(chosen)
        return rows if _ascends(table.topic[rows]) else rows[np.argsort(table.topic[rows], kind="stable")]

    # -- StopReplica

    def _send_stop_replicas(self) -> None:
        term = self._term
        version = term.settings.versions.stop_replica
        stops: dict[int, dict[str, list[StopReplicaPartitionState]]] = {}
        table = term.context.partitions
        for rows, brokers, epochs, delete in self._stops:
            living = live_mask(brokers, term.context.broker_ids)
            chosen = zip(rows[living].tolist(), brokers[living].tolist(), epochs[living].tolist(), strict=True)
            for row, broker, epoch in chosen:
                topic, partition = table.topic_and_partition(row)
                of_broker = stops.setdefault(broker, {})
                of_broker.setdefault(topic, []).append(StopReplicaPartitionState(partition, epoch, delete))
        for receiver in term.context.brokers:
            topics = stops.get(receiver.id)
            if topics is None:
                continue
            states = tuple(StopReplicaTopicState(name, tuple(partitions)) for name, partitions in topics.items())
            to_delete = _to_delete(topics)
            one_flag = version < FIRST_VERSION_WITH_FLAGS and bool(to_delete)
            request = StopReplicaRequest(term.broker_id, term.epoch, states, receiver.epoch, one_flag)
            body = encode_request_body(ApiKey.STOP_REPLICA, version, request)
            count = sum(len(partitions) for partitions in topics.values())
            self._send(receiver, ApiKey.STOP_REPLICA, version, body, count, to_delete)

    # -- all three

    def _columns(self, rows: Rows) -> PartitionColumns:
        table = self._term.context.partitions
        return PartitionColumns(
            topic_index=table.topic[rows],
            partition=table.partition[rows],
            controller_epoch=table.controller_epoch[rows],
            leader=table.leader[rows],
            leader_epoch=table.leader_epoch[rows],
            isr=table.isr[rows],
            zk_version=table.zk_version[rows],
            replicas=table.assignment[rows],
        )

    def _send(
        self,
        broker: LiveBroker,
        api: ApiKey,
        version: int,
        body: bytes,
        partitions: int,
        to_delete: tuple[tuple[str, int], ...] = (),
        rest: bytes = b"",
    ) -> None:
        term = self._term
        event, epoch = _RESPONSE_EVENTS[api], term.epoch

        def response_event(response: bytes) -> object:
            answer = event(broker.id, broker.epoch, epoch, decode_response_body(api, version, response))
            return replace(answer, to_delete=to_delete) if to_delete else answer

        term.trace_sent(broker.id, broker.epoch, NAMES[api], partitions)
        term.channels.send(broker.id, ControlRequest(int(api), version, body, response_event, rest))


class _NamesAndIds:
    """Topics' names and ids for a request, by the topic's number in the table."""

    def __init__(self, table: PartitionTable) -> None:
        self._topics = table.topics

    def __getitem__(self, number: int, /) -> tuple[str, bytes]:
        topic = self._topics[number]
        return topic.name, topic.id


def _to_delete(topics: Mapping[str, Sequence[StopReplicaPartitionState]]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, state.partition_index)
        for name, partitions in topics.items()
        for state in partitions
        if state.delete_partition
    )


def _ascends(column: Int32s) -> bool:
    return bool((column[1:] >= column[:-1]).all())


def _sparse(values: dict[int, tuple[int, ...]], rows: Rows) -> dict[int, tuple[int, ...]]:
    """Return the values of those `rows` that have one, by place in `rows`."""
    if not values:
        return {}
    return {place: values[row] for place, row in enumerate(rows.tolist()) if row in values}
