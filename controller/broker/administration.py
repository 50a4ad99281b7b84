"""What a broker that holds records has to do with ZooKeeper besides its registration: the configs that it goes by and
those that clients change, and blocks of producer ids.

Made by the node, which has the client; puts itself into the broker: its requests, its topics' settings. All of it is
called on the broker's thread, but for `config_event`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from controller.broker.broker import Broker
from controller.broker.config_requests import Configs
from controller.broker.data_plane import DataPlane
from controller.broker.directory_notices import DirectoryNotices
from controller.broker.partition import Partition
from controller.broker.producer_ids import ProducerIds
from controller.broker.settings import BrokerSettings
from controller.broker.topic_configs import ConfigGate, ConfigWatch, TopicConfigs
from controller.clock import Clock
from controller.core.events import Event
from controller.core.ports import EventSink
from controller.protocol.api_keys import ApiKey
from controller.trace import Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_data_writes import BrokerDataWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.drive import drive


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """There is a notice in /config/changes, or a connection was made. Never queued: see `ClientEvents`."""

    coalesces: ClassVar[bool] = True


class ClientEvents:
    """Where the ZooKeeper client of a node puts events: the controller's go to its queue, the broker's own to the
    broker's thread, so that a config takes effect however long the controller is at something."""

    def __init__(self, queue: EventSink, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self.administration: Administration | None = None

    def put(self, event: Event) -> None:
        """On any thread."""
        administration = self.administration
        if not isinstance(event, ConfigsChanged):
            self._queue.put(event)
        elif administration is not None:
            self._clock.call_later(0.0, administration.watch.look)


class Administration:
    """`data`: the broker's, which holds records."""

    def __init__(
        self,
        settings: BrokerSettings,
        client: ZooKeeperClient,
        broker: Broker,
        data: DataPlane,
        clock: Clock,
        trace: Trace,
    ) -> None:
        self._client = client
        self._clock = clock
        self._logs = data.logs
        self.configs = TopicConfigs(settings, trace)
        self.watch = ConfigWatch(settings.broker_id, client, self.configs, clock, trace)
        self._here: set[str] | None = {topic for directory in self._logs.directories for topic, _ in directory.logs}
        writes = BrokerDataWrites(client)
        producer_ids = ProducerIds(lambda: drive(writes.next_producer_id_block(settings.broker_id)), clock, trace)
        requests = Configs(settings, self.configs, client, broker.metadata, clock, trace)
        self.loggers = requests.loggers
        broker.serve(
            {
                ApiKey.INIT_PRODUCER_ID: producer_ids.handle,
                ApiKey.DESCRIBE_CONFIGS: requests.describe,
                ApiKey.ALTER_CONFIGS: requests.alter,
                ApiKey.INCREMENTAL_ALTER_CONFIGS: requests.alter_incrementally,
            }
        )
        notices = DirectoryNotices(lambda: drive(writes.notify_of_failed_directory(settings.broker_id)), clock, trace)
        data.directory_failed = notices.failed
        data.min_insync = self.configs.min_insync
        data.deletes = self.configs.deletes
        for throttle, role in ((data.throttle, "leader"), (data.follower_throttle, "follower")):
            throttle.rate = partial(self.configs.throttle_rate, f"{role}.replication.throttled.rate")
            throttle.replicas = partial(self.configs.throttled_replicas, f"{role}.replication.throttled.replicas")
        self._logs.settings_of = self.configs.log_settings
        self.configs.changed = self._changed
        self._changed(None)
        broker.roles_gate = ConfigGate(self.watch, self.configs, clock).let_in
        broker.replicas.of_roles.append(self._roles_taken)
        broker.replicas.of_stops.append(self._stopped)

    def start(self) -> None:
        """Once the tree in ZooKeeper is there."""
        self._client.keep_watching_children(paths.CONFIG_CHANGES, ConfigsChanged())
        here, self._here = self._here or (), None  # from here on `_roles_taken` asks for what is new by itself
        self.watch.wanted(sorted(here))
        self.watch.look()

    def _changed(self, topics: Collection[str] | None) -> None:
        """Logs that are there go by their new settings at once."""
        named = None if topics is None else frozenset(topics)
        for directory in self._logs.directories:
            for (topic, _), log in directory.logs.items():
                if named is None or topic in named:
                    log.settings = self.configs.log_settings(topic)

    def _roles_taken(self, partitions: Sequence[Partition]) -> None:
        """Where the gate did not wait for a config to be read, it is read all the same."""
        if self._here is not None:
            self._here.update(partition.topic for partition in partitions)
        named = dict.fromkeys(partition.topic for partition in partitions)
        self.watch.wanted([topic for topic in named if not self.configs.known(topic)])

    def _stopped(self, partitions: Sequence[Partition]) -> None:
        """Forget the config of a topic whose last log was removed: a later one of the same name is another topic."""
        deleted = dict.fromkeys(one.topic for one in partitions if one.log is None and not one.offline)
        if not deleted:
            return
        left = {topic for directory in self._logs.directories for topic, _ in directory.logs}
        for topic in deleted:
            if topic not in left:
                if self._here is not None:
                    self._here.discard(topic)
                self.watch.gone(topic)
