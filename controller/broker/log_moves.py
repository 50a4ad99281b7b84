"""AlterReplicaLogDirs: moves replicas between the log directories of a broker, as Kafka's ReplicaAlterLogDirsThread.

A future log in the new directory is filled from the replica's own log, piece by piece on the broker's thread; reads for
which the disk must be waited for run on its device. It follows truncations by leader epochs. Once it has all, it takes
the log's place between two requests (`LogManager.replace_by_future`). A move ends without that when the replica is
stopped or deleted, goes offline, or is sent back; one that a restart interrupts begins anew with the replica's role.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.log_manager import LogManager
from controller.broker.partition import Partition, PartitionEvents, Role
from controller.broker.records.cold_reads import read_in
from controller.broker.replica_manager import ReplicaManager
from controller.broker.request_context import SLICE, Drive, Steps, Yielded, finish
from controller.clock import Clock, Timer
from controller.protocol.admin import (
    AlteredReplicaLogDir,
    AlteredReplicaLogDirs,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from controller.protocol.errors import ErrorCode
from controller.storage import (
    DeviceUnavailable,
    LogDirectory,
    LogOffline,
    OutOfResources,
    PartitionLog,
    StorageError,
    TopicPartition,
)
from controller.storage.disk import NotCached
from controller.trace import Noted, Trace

PIECE_BYTES = 1024 * 1024
"""Copied at a time; requests have their turn in between. Kafka: replica.fetch.max.bytes."""
BETWEEN_MS = 1.0
"""From one piece to the next."""
AT_ONCE = 4
"""Moves that copy; the others wait. Kafka: num.replica.alter.log.dirs.threads."""
WAIT_MS = 100.0
AGAIN_MS = 1_000.0
"""After a shortage, and while a device does not answer. Kafka: replica.fetch.backoff.ms."""
NAME_MAX = 255 - len("-.-future") - 32 - len("2147483647")


@dataclass(slots=True, eq=False)
class Move:
    """A replica on its way to another directory."""

    partition: Partition
    target: LogDirectory
    future: PartitionLog
    timer: Timer | None = field(default=None, init=False)


@dataclass(eq=False)
class LogMoves:
    """Hears of replicas and directories from `replicas` and `logs`. `drive` runs steps."""

    _logs: LogManager
    _replicas: ReplicaManager
    _clock: Clock
    _trace: Trace
    _fetchers: ReplicaFetcherManager
    _partition_events: PartitionEvents

    def __post_init__(self) -> None:
        self._moves: dict[TopicPartition, Move] = {}
        self.drive: Drive = finish
        self._replicas.of_roles.append(self._roles_taken)
        self._replicas.of_stops.append(self._stopped)
        self._logs.of_failures.append(self._directory_failed)

    # -- the request

    def handle(
        self, request: AlterReplicaLogDirsRequest, _version: int, answer: Callable[[AlterReplicaLogDirsResponse], None]
    ) -> Steps:
        results: dict[str, list[AlteredReplicaLogDir]] = {}
        asked = (
            (each.path, topic.name, index)
            for each in request.dirs
            for topic in each.topics
            for index in topic.partitions
        )
        for done, (path, topic, index) in enumerate(asked, 1):
            if done % SLICE == 0:
                yield None
            altered = AlteredReplicaLogDir(index, int(self._altered((topic, index), path)))
            results.setdefault(topic, []).append(altered)
            if not altered.error_code:
                yield None  # files were made
        answer(
            AlterReplicaLogDirsResponse(
                tuple(AlteredReplicaLogDirs(topic, tuple(those)) for topic, those in results.items())
            )
        )

    def _altered(self, key: TopicPartition, path: str) -> ErrorCode:
        """In Kafka's order of checks: ReplicaManager.alterReplicaLogDirs."""
        if len(key[0]) > NAME_MAX:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        target = next((one for one in self._logs.directories if one.path == path), None)
        if target is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        partition = self._replicas.partition(*key)
        if target.health.cause is not None or (partition is not None and partition.offline):
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = self._moves.get(key)
        if move is not None and move.target is not target:
            self._end(key, "it is to go elsewhere")
        if partition is None or partition.log is None:
            self._logs.prefer(key, path)
            return ErrorCode.REPLICA_NOT_AVAILABLE
        try:
            self._begin(partition, target)
        except StorageError as error:
            self._note("warning", f"{key[0]}-{key[1]} does not move to {path}: {error}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _begin(self, partition: Partition, target: LogDirectory) -> None:
        """Raises LogOffline, OutOfResources."""
        key = partition.key
        if key in self._moves or key in target.logs:
            return
        for directory in self._logs.directories:
            directory.health.check()  # the replica might be moved to two directories
        self._note("info", f"{key[0]}-{key[1]} moves to {target.path}")
        self._moves[key] = Move(partition, target, target.begin_future(key, partition.topic_id))
        self._after(self._moves[key], BETWEEN_MS)

    # -- what becomes of replicas

    def _roles_taken(self, partitions: Sequence[Partition]) -> None:
        """Moves that a restart interrupted begin anew."""
        for partition in partitions:
            target = self._logs.interrupted(partition.key)
            if target is not None and partition.log is not None:
                try:
                    self._begin(partition, target)
                except StorageError as error:
                    self._note("warning", f"{partition.topic}-{partition.index} does not move on: {error}")

    def _stopped(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._end(partition.key, "the replica is stopped")

    def _directory_failed(self, directory: LogDirectory, _cause: Exception) -> None:
        for key, move in list(self._moves.items()):
            if move.target is directory and directory.health.cause is not None:
                self._end(key, "the directory is offline")

    def close(self) -> None:
        for move in self._moves.values():
            if move.timer is not None:
                move.timer.cancel()
        self._moves.clear()

    def _end(self, key: TopicPartition, why: str) -> None:
        move = self._moves.pop(key, None)
        if move is None:
            return
        if move.timer is not None:
            move.timer.cancel()
        self._note("info", f"{key[0]}-{key[1]} does not move to {move.target.path} any more: {why}")
        try:
            move.target.drop_future(key)
        except StorageError:
            return  # the next start removes it

    # -- the copy

    def _after(self, move: Move, delay_ms: float) -> None:
        move.timer = self._clock.call_later(delay_ms, lambda: self.drive(self._step(move)))

    def _step(self, move: Move) -> Steps:
        key, delay_ms = move.partition.key, BETWEEN_MS
        if self._moves.get(key) is not move:
            return
        if key not in islice(self._moves, AT_ONCE):
            self._after(move, WAIT_MS)
            return
        try:
            is_done = yield from self._piece(move)
        except (OutOfResources, DeviceUnavailable) as error:
            self._note("warning", f"{key[0]}-{key[1]} moves to {move.target.path}: {error}; tried again in a while")
            is_done, delay_ms = False, AGAIN_MS
        except LogOffline as error:
            self._end(key, str(error))
            return
        except Exception:  # noqa: BLE001 - logged with its place; the replica stays where it is
            self._end(key, f"an error\n{traceback.format_exc()}")
            return
        if self._moves.get(key) is not move:
            return  # ended while it waited for the disk
        if is_done:
            self._finish(move)
        else:
            self._after(move, delay_ms)

    def _piece(self, move: Move) -> Generator[Yielded, Any, bool]:
        """Copy one piece; True if there is none left."""
        log, future = move.partition.log, move.future
        if log is None:
            raise LogOffline(move.target.path, OSError("the replica has no log"))
        log.health.check()
        follow(log, future)
        if future.log_end_offset == log.log_end_offset:
            return True
        try:
            found = log.read_cached(future.log_end_offset, PIECE_BYTES)
        except NotCached as cold:
            if (yield from read_in(cold)):
                return False
            found = log.read(future.log_end_offset, PIECE_BYTES)
        data = found.read()
        base_offset = int.from_bytes(data[:8], "big")
        if base_offset < future.log_end_offset and not future.size_bytes:
            future.restart_at(base_offset)  # the log start lies within its first batch
        future.append_as_follower(data)
        return False

    def _finish(self, move: Move) -> None:
        partition = move.partition
        key = partition.key
        del self._moves[key]
        try:
            moved = self._logs.replace_by_future(key, move.target, partition.high_watermark)
        except StorageError as error:
            self._note("error", f"{key[0]}-{key[1]} is not moved to {move.target.path}: {error}")
            log = partition.log
            if log is None or log is not self._logs.get(*key) or log.health.cause is not None:
                self._replicas.go_offline([key])
            return
        partition.log = moved
        moved.place(is_leader=partition.role is Role.LEADER)
        self._note("info", f"{key[0]}-{key[1]} has moved to {move.target.path}")
        if partition.role is Role.FOLLOWER:
            self._fetchers.follow([partition])
        self._partition_events.changed((partition,))
        self._partition_events.roles_changed((partition,))

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def follow(log: PartitionLog, future: PartitionLog) -> None:
    """Cut the future log where it differs from the log, and let it begin where that begins: a follower's rule
    (KIP-101), applied to a log of the same broker."""
    latest = future.epochs.latest
    if latest >= 0:
        end = log.end_offset_for_epoch(latest)
        if end.epoch < latest or end.end_offset < future.log_end_offset:
            agreed = min(end.end_offset, future.end_offset_for_epoch(end.epoch).end_offset, future.log_end_offset)
            future.truncate_to(max(agreed, 0))
    if not log.log_start_offset <= future.log_end_offset <= log.log_end_offset:
        future.restart_at(log.log_start_offset)
    elif future.log_start_offset < log.log_start_offset:
        future.delete_records_before(log.log_start_offset, future.log_end_offset)
    if future.log_end_offset == log.log_end_offset:
        for one in log.epochs.entries():
            if one.epoch > future.epochs.latest:
                future.assign_epoch(one.epoch, one.start_offset)
