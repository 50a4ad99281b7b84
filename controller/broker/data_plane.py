"""What of a broker is there only if it holds records: access to its logs, waiting requests, replication, and a handler
for each request about records.

Made by `Broker`, which gives it roles and metadata as they change; each handler is one file beside this one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.isr_manager import live_followers
from controller.broker.log_manager import LogManager
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition, PartitionEvents, Role
from controller.broker.ports import OffLoop, Peers
from controller.broker.records.fetch import DelayedFetch, FetchHandler, PartitionReader
from controller.broker.records.fetch_sessions import FetchSessionCache
from controller.broker.records.list_offsets import LeaderEpochHandler, ListOffsetsHandler
from controller.broker.records.writes import DelayedDeleteRecords, DelayedProduce, DeleteRecordsHandler, ProduceHandler
from controller.broker.replica_manager import DescribeLogDirs, Quota, RecordAccess, ReplicaManager, ReplicationThrottle
from controller.broker.request_context import Steps
from controller.broker.settings import BrokerSettings
from controller.broker.topic_configs import TopicConfigs
from controller.clock import Clock
from controller.protocol.messages import ApiKey
from controller.storage import LogDirectory
from controller.timer.purgatory import DelayedOperation, Purgatory
from controller.trace import Noted, Trace

Handle: TypeAlias = Callable[[Any, int, Callable[[Any], None]], Steps | None]
"""(request, version, answer): answers once, at once or later. What it returns is the rest of its work, if there is any;
see `request_context.py`."""


class DataPlane:
    """`off_loop` does long work. `directory_failed` is called for each
    log directory that fails, once its replicas are offline."""

    def __init__(
        self,
        settings: BrokerSettings,
        logs: LogManager,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        configs: TopicConfigs,
        clock: Clock,
        trace: Trace,
        peers: Peers,
        broker_epoch: Callable[[], int],
        off_loop: OffLoop,
        directory_failed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._replicas = replicas
        self.logs = logs
        self._report_failed_directory = directory_failed
        self.partition_events = PartitionEvents(clock, settings.replica_lag_time_max_ms, live_followers(metadata))
        self.access = RecordAccess(replicas, metadata)
        self.follower_throttle = Quota(settings.broker_id, clock, *configs.throttle("follower"))
        self.fetchers = ReplicaFetcherManager(
            settings,
            metadata,
            peers,
            logs.truncate,
            clock,
            trace,
            self.partition_events.high_watermark_moved,
            self.follower_throttle,
            broker_epoch,
        )
        replicas.of_roles.append(self._roles_taken)
        replicas.of_stops.append(self._stopped)
        logs.of_failures.append(self._directory_failed)
        self.produces: Purgatory[tuple[str, int], DelayedProduce] = Purgatory(
            clock, purge_interval=settings.producer_purgatory_purge_interval_requests, on_error=self._failed
        )
        self.fetches: Purgatory[tuple[str, int], DelayedFetch] = Purgatory(
            clock, purge_interval=settings.fetch_purgatory_purge_interval_requests, on_error=self._failed
        )
        self.deletions: Purgatory[tuple[str, int], DelayedDeleteRecords] = Purgatory(
            clock, purge_interval=settings.delete_records_purgatory_purge_interval_requests, on_error=self._failed
        )
        self.throttle = ReplicationThrottle(settings.broker_id, clock, *configs.throttle("leader"))
        reading = PartitionReader(self.access, self.partition_events, clock, self.throttle)
        self.fetch = FetchHandler(
            reading,
            self.partition_events,
            self.fetches,
            FetchSessionCache(settings.max_incremental_fetch_session_cache_slots, clock),
            settings.fetch_max_bytes,
        )
        self.produce = ProduceHandler(self.access, self.partition_events, self.produces, configs.min_insync, off_loop)
        self._delete_records = DeleteRecordsHandler(
            self.access, metadata, self.partition_events, self.deletions, configs.deletes
        )
        self.handlers: Mapping[ApiKey, Handle] = {
            ApiKey.LIST_OFFSETS: ListOffsetsHandler(self.access, clock.wall_ms).handle,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: LeaderEpochHandler(self.access).handle,
            ApiKey.DELETE_RECORDS: self._delete_records.handle,
            ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(logs, replicas).handle,
        }

    def _failed(self, operation: DelayedOperation, error: Exception) -> None:
        """A request that waited and whose answer could not be made: the others go on."""
        self._trace.emit(Noted("error", "".join(traceback.format_exception(error)).rstrip()))

    def metadata_changed(self) -> None:
        self.fetchers.leaders_changed()
        self._delete_records.metadata_changed()

    def logs_changed(self) -> None:
        """Retention has moved where logs begin."""
        self.fetchers.logs_changed()
        self.partition_events.changed(tuple(self._replicas.partitions()))

    def _roles_taken(self, partitions: Sequence[Partition]) -> None:
        """Apply new roles; replicas that led, or followed another leader, stop doing so first, so that a log never has
        two writers."""
        self.fetchers.leave([partition for partition in partitions if partition.role is Role.LEADER])
        self.partition_events.changed(
            partitions
        )  # all at first: a fetch that one of them completes reports on all of them
        self.partition_events.roles_changed(partitions)
        self.fetchers.follow([partition for partition in partitions if partition.role is Role.FOLLOWER])

    def _stopped(self, partitions: Sequence[Partition]) -> None:
        self.fetchers.leave(partitions)
        self.partition_events.changed(partitions)
        self.partition_events.roles_changed(partitions)

    def _directory_failed(self, directory: LogDirectory, cause: Exception) -> None:
        """Found in the middle of a call on a log, so what follows waits until that is over."""
        self._trace.emit(Noted("error", f"log directory {directory.path} is offline: {cause!r}"))
        self._clock.call_later(0.0, lambda: self._gone(tuple(directory.logs)))

    def _gone(self, keys: Sequence[tuple[str, int]]) -> None:
        self._replicas.go_offline(keys)
        self._report_failed_directory()
