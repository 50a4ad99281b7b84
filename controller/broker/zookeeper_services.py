"""What a broker with logs does in ZooKeeper besides its registration: configs, producer ids, failed directories.

All of it is called on the broker's thread, except `ClientEvents.put`; answers of ZooKeeper are brought back to it.

Producer ids come from blocks that this broker reserves. An id is assigned once, by one broker, over the cluster's
lifetime. A new producer gets an id of its own with epoch 0; no state is kept for it here.

A failed log directory is reported to the controller through the same znode as Kafka's. The write is retried until the
notice exists or the session ends: after a new registration, the controller queries all replicas of the broker anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from controller.broker.config_requests import BrokerLoggers, ConfigHandler
from controller.broker.log_manager import LogManager
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition
from controller.broker.request_context import Steps, on_broker_thread
from controller.broker.settings import BrokerSettings
from controller.broker.topic_configs import ConfigGate, TopicConfigs
from controller.clock import Clock, Future, spawn
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import InitProducerIdResponse
from controller.storage import LogSettings
from controller.trace import Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import ProducerIdBlock
from controller.zookeeper.operations import DamagedZnode, SessionGone, ZooKeeperError

OpenLogs: TypeAlias = Callable[[Callable[[str], LogSettings]], LogManager]
Answer: TypeAlias = Callable[[InitProducerIdResponse], None]
TakeBlock: TypeAlias = Callable[[], Future[ProducerIdBlock]]
"""Takes the next block of all; may be answered on another thread."""


class ProducerIds:
    """One block is asked for at a time, and all who come meanwhile wait for it."""

    def __init__(self, take_block: TakeBlock, clock: Clock, trace: Trace) -> None:
        self._take_block = take_block
        self._clock = clock
        self._trace = trace
        self._next = 0
        self._end = -1
        self._waiting: deque[Answer] = deque()
        self._asking = False

    @property
    def left(self) -> int:
        """Ids that can be given without asking."""
        return self._end - self._next + 1

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def give(self, answer: Answer) -> None:
        """Answer with an id that was never given before, and epoch 0."""
        if self._waiting or not self.left:
            self._waiting.append(answer)
            self._ask()
        else:
            answer(self._given())

    def _given(self) -> InitProducerIdResponse:
        assert self.left > 0
        self._next += 1
        return InitProducerIdResponse(ErrorCode.NONE, self._next - 1, 0)

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        block = self._take_block()
        on_broker_thread(block, self._clock, lambda: self._arrived(block))

    def _arrived(self, block: Future[ProducerIdBlock]) -> None:
        self._asking = False
        try:
            taken = block.result()
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"no block of producer ids: {error}"))
            self._refuse_all(error)
            return
        except Exception as error:
            self._refuse_all(error)  # who asked is answered, whatever is wrong with us
            raise
        self._next, self._end = taken.block_start, taken.block_end
        while self._waiting and self.left:
            self._waiting.popleft()(self._given())
        if self._waiting:
            self._ask()

    def _refuse_all(self, error: Exception) -> None:
        """Another attempt may find ZooKeeper again, but not whole what is damaged."""
        hopeless = isinstance(error, DamagedZnode) or not isinstance(error, ZooKeeperError)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if hopeless else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            answer(InitProducerIdResponse(code))


AGAIN_MS = 1_000.0


class DirectoryNotices:
    """`leave` writes the notice; it may be answered on another thread. One notice covers all directories that had
    failed when it was written, because it names no directory."""

    def __init__(self, leave: Callable[[], Future[None]], clock: Clock, trace: Trace) -> None:
        self._write = leave
        self._clock = clock
        self._trace = trace
        self._writing = False
        self._owed = False

    def failed(self) -> None:
        """A directory failed just now."""
        self._owed = True
        if not self._writing:
            self._next()

    def _next(self) -> None:
        self._owed, self._writing = False, True
        notice = self._write()
        on_broker_thread(notice, self._clock, lambda: self._written(notice))

    def _written(self, notice: Future[None]) -> None:
        self._writing = False
        try:
            notice.result()
        except SessionGone:
            return
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"the controller is not notified of a failed log directory yet: {error}"))
            self._clock.call_later(AGAIN_MS, self.failed)
            return
        if self._owed:
            self._next()


class ConfigsChanged(msgspec.Struct, frozen=True):
    """There is a notice in /config/changes, or a connection was made. Never queued: see `node.ClientEvents`."""

    coalesces: ClassVar[bool] = True


class ZooKeeperServices:
    """`open_logs` opens the broker's logs, given what returns a topic's settings. `handlers` answer the requests that
    need ZooKeeper."""

    def __init__(
        self,
        settings: BrokerSettings,
        client: ZooKeeperClient,
        metadata: MetadataCache,
        clock: Clock,
        trace: Trace,
        loggers: BrokerLoggers,
        open_logs: OpenLogs,
    ) -> None:
        self._client = client
        self.brokers_changed: Callable[[Mapping[str, str], Mapping[str, str]], None] = lambda _own, _default: None
        """Called with the dynamic configs of this broker and of all brokers when they have changed."""
        self.configs = TopicConfigs(settings, trace, self._configs_changed)
        self.logs = open_logs(self.configs.log_settings)
        self.gate = ConfigGate(settings.broker_id, client, self.configs, clock, trace)
        self.watch = self.gate.watch
        self._here: set[str] | None = {topic for directory in self.logs.directories for topic, _ in directory.logs}
        writes = BrokerDataWrites(client)
        self.producer_ids = ProducerIds(lambda: spawn(writes.next_producer_id_block(settings.broker_id)), clock, trace)
        requests = ConfigHandler(settings, self.configs, client, metadata, clock, trace, loggers)
        self.handlers: Mapping[ApiKey, Callable[[Any, int, Callable[[Any], None]], Steps | None]] = {
            ApiKey.DESCRIBE_CONFIGS: requests.describe,
            ApiKey.ALTER_CONFIGS: requests.alter,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: requests.alter_incrementally,
        }
        notices = DirectoryNotices(lambda: spawn(writes.notify_of_failed_directory(settings.broker_id)), clock, trace)
        self.directory_failed = notices.failed

    def start(self) -> None:
        """Once the tree in ZooKeeper exists."""
        self._client.keep_watching_children(paths.CONFIG_CHANGES, ConfigsChanged())
        here, self._here = self._here or (), None  # from here on `roles_taken` asks for what is new by itself
        self.watch.wanted(sorted(here))
        self.watch.check()

    def _configs_changed(self, topics: Collection[str] | None) -> None:
        """Existing logs apply their new settings at once."""
        self.logs.settings_changed(topics)
        if topics is None:
            self.brokers_changed(self.configs.broker, self.configs.default)

    def roles_taken(self, partitions: Sequence[Partition]) -> None:
        """Where the gate did not wait for a config to be read, it is read all the same."""
        if self._here is not None:
            self._here.update(partition.topic for partition in partitions)
        named = dict.fromkeys(partition.topic for partition in partitions)
        self.watch.wanted([topic for topic in named if not self.configs.known(topic)])

    def stopped(self, partitions: Sequence[Partition]) -> None:
        """Forget the config of a topic whose last log was removed: a later one of the same name is another topic."""
        deleted = dict.fromkeys(one.topic for one in partitions if one.log is None and not one.offline)
        if not deleted:
            return
        left = {topic for directory in self.logs.directories for topic, _ in directory.logs}
        for topic in deleted:
            if topic not in left:
                if self._here is not None:
                    self._here.discard(topic)
                self.watch.topic_removed(topic)
