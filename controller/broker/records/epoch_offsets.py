"""OffsetForLeaderEpoch: the end offset of a leader epoch in this leader's log.

A follower or a consumer uses it to find where its own history diverges from this log (KIP-101, KIP-320). Only the
leader answers, to followers and consumers alike."""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.records.record_access import RecordAccess, Refused, refused
from controller.broker.steps import SLICE, Steps
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderResult,
    OffsetForLeaderTopicResult,
)
from controller.storage import StorageError


class EpochOffsets:
    def __init__(self, access: RecordAccess) -> None:
        self._access = access

    def handle(
        self,
        request: OffsetForLeaderEpochRequest,
        version: int,
        answer: Callable[[OffsetForLeaderEpochResponse], None],
    ) -> Steps:
        topics = []
        done = 0
        for topic in request.topics:
            results = []
            for one in topic.partitions:
                results.append(self._result(topic.topic, one))
                done += 1
                if done % SLICE == 0:
                    yield None
            topics.append(OffsetForLeaderTopicResult(topic.topic, tuple(results)))
        answer(OffsetForLeaderEpochResponse(tuple(topics)))

    def _result(self, topic: str, asked: OffsetForLeaderPartition) -> OffsetForLeaderResult:
        try:
            _, log = self._access.leader_log(topic, asked.partition, asked.current_leader_epoch)
            log.health.check()
            end = log.end_offset_for_epoch(asked.leader_epoch)
        except (Refused, StorageError) as error:
            return OffsetForLeaderResult(refused(error).error, asked.partition)
        return OffsetForLeaderResult(ErrorCode.NONE, asked.partition, end.epoch, end.end_offset)
