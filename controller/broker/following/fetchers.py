"""Which fetcher follows what: a broker's replicas that are followers, each with its leader.

Plain synchronous code, called from the broker's one thread as roles are taken and lost; the fetchers go on by
themselves from there. A partition is in one fetcher at most, and out of its old one before anything else happens.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

from controller.broker.configs.settings import BrokerSettings
from controller.broker.following.fetcher import Fetcher, FetcherTools
from controller.broker.following.fetcher_queue import Followed, Key
from controller.broker.following.truncation import FollowerLogs
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.partition import Partition
from controller.broker.ports import Peers
from controller.broker.replication_throttle import Quota
from controller.clock import Clock
from controller.protocol.control_values import NO_BROKER_EPOCH, UpdateMetadataBroker
from controller.protocol.versions import control_versions
from controller.storage import LogOffline, PartitionLog
from controller.trace import Noted, Trace


class ReplicaFetchers:
    """Assigns followed partitions to fetchers.

    `truncate` truncates a partition's log (`Logs.truncate`). `appended` is called with each followed partition after
    its log or high watermark has changed. `broker_epoch` returns the epoch of this broker's current registration.
    `throttle` limits the rate at which lagging replicas catch up."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        peers: Peers,
        truncate: Callable[[Partition, int], None],
        clock: Clock,
        trace: Trace,
        appended: Callable[[Partition], None],
        broker_epoch: Callable[[], int] = lambda: NO_BROKER_EPOCH,
        throttle: Quota | None = None,
    ) -> None:
        self._count = settings.num_replica_fetchers
        self._metadata = metadata
        self._brokers: Mapping[int, UpdateMetadataBroker] = {}  # as the metadata had them when it was looked at last
        self._trace = trace
        self._logs = FollowerLogs(truncate, appended, trace)
        versions = control_versions(settings.inter_broker_protocol)
        self._truncation_on_fetch = versions.truncation_on_fetch
        throttle = throttle or Quota(settings.broker_id, clock)
        self._losing: list[Fetcher] = []
        self._tools = FetcherTools(
            settings, versions, metadata, peers, self._logs, clock, trace, broker_epoch, throttle, self._drops
        )
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._placed: dict[Key, Fetcher] = {}

    def __len__(self) -> int:
        """Fetchers, each with a leader of its own or one of several with one."""
        return len(self._fetchers)

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Each from its own log's end, as the follower of `partition.leader` in `partition.leader_epoch`. One without a
        log is not followed."""
        given: dict[tuple[int, int], Fetcher] = {}
        for partition in partitions:
            key = partition.key
            self._take_out(key)
            followed = None if partition.log is None else self._begun(partition, partition.log)
            if followed is not None:
                place = (partition.leader, self._number(key))
                fetcher = self._fetchers.get(place) or Fetcher(*place, self._tools)
                fetcher.add(followed)
                self._placed[key] = fetcher
                given[place] = self._fetchers[place] = fetcher
        self._close_idle()
        for fetcher in given.values():
            fetcher.start()

    def leave(self, partitions: Sequence[Partition]) -> None:
        """Stop following: this broker leads the partitions now or was asked to stop, or they were removed or are
        offline."""
        for partition in partitions:
            self._take_out(partition.key)
        self._close_idle()

    def leaders_changed(self) -> None:
        """Handle new metadata: a leader's endpoint may have changed. A leader whose metadata is the same object as
        before has not changed."""
        before, self._brokers = self._brokers, self._metadata.snapshot.brokers
        changed = {broker for broker, value in self._brokers.items() if before.get(broker) is not value}
        if not changed:
            return
        for fetcher in [one for (leader, _), one in self._fetchers.items() if leader in changed]:
            fetcher.endpoint_changed()

    def logs_changed(self) -> None:
        """Some may begin elsewhere than before."""
        for fetcher in self._fetchers.values():
            fetcher.logs_changed()

    def close(self) -> None:
        """Nothing is followed any more; no answer is taken from here on."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._placed.clear()

    def _number(self, key: Key) -> int:
        return (zlib.crc32(key[0].encode()) + key[1]) % self._count

    def _take_out(self, key: Key) -> None:
        fetcher = self._placed.pop(key, None)
        if fetcher is not None:  # one that has dropped all it had by itself was closed as idle since, and has it not
            fetcher.remove(key)
            self._losing.append(fetcher)

    def _drops(self, fetcher: Fetcher) -> None:
        self._losing.append(fetcher)

    def _close_idle(self) -> None:
        """There is none unless something was taken out, here or by a fetcher itself."""
        losing, self._losing = self._losing, []
        if not any(fetcher.idle for fetcher in losing):
            return
        for place, fetcher in tuple(self._fetchers.items()):
            if fetcher.idle:
                del self._fetchers[place]
                fetcher.close()

    def _begun(self, partition: Partition, log: PartitionLog) -> Followed | None:
        """A log that knows epochs is compared with the leader's by them: by what the leader says to a fetch, or before
        the first one where fetches don't tell. One that knows none keeps what is committed, as before there were
        any."""
        knows_epochs = log.epochs.latest >= 0
        followed = Followed(
            partition, log, partition.leader_epoch, agreed=self._truncation_on_fetch or not knows_epochs
        )
        try:
            log.health.check()
            if not knows_epochs:
                kept = max(partition.high_watermark, log.log_start_offset)
                if log.log_end_offset > kept:
                    self._logs.cut(followed, kept, "its records have no leader epochs")
        except LogOffline as offline:
            self._trace.emit(Noted("error", f"{followed} is not followed: {offline}"))
            return None
        return followed
