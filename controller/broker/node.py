"""One broker with its controller, as both hosts run it: a connection, a client over it, events, controller, broker.

Knows no thread. The host gives frames to `Broker.begin` on its network's thread, events to `process` one at a time
where events are handled, and drives `shut_down` from a third place, since both of the others have work to do for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import msgspec

from controller.broker.broker import Broker
from controller.broker.config_requests import BrokerLoggers
from controller.broker.lifecycle import Lifecycle, RandomSource, controlled_shutdown
from controller.broker.log_cleaner import LogCleaner
from controller.broker.log_maintenance import LogMaintenance
from controller.broker.metadata import BrokerIdentity, MetadataBodies, MetadataCache
from controller.broker.ports import OffLoop, Peers, at_once
from controller.broker.request_context import Drive, finish
from controller.broker.security.access import AccessControl
from controller.broker.security.acl_store import AclsChanged
from controller.broker.security.acls import Authorizer
from controller.broker.settings import BrokerSettings
from controller.broker.tier_maintenance import TierMaintenance
from controller.broker.zookeeper_services import ConfigsChanged, OpenLogs, ZooKeeperServices
from controller.clock import Clock, Future
from controller.core.channels import Channels
from controller.core.controller import Controller
from controller.core.event_loop import EventQueue
from controller.core.events import Event, RegisterBrokerAndReelect, SessionExpired, Shutdown, Startup
from controller.core.leadership import ControllerSettings
from controller.storage.devices import DeviceJobs
from controller.trace import Noted, SessionEnded, SessionStarted, Trace
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import EventSink, ZooKeeperClient
from controller.zookeeper.operations import SessionState, ZooKeeperConnection

EVENTS_MAX = 10_000
"""How many events may wait before requests are refused."""
RESIGN_LIMIT_MS = 3_000.0
"""How long a shutdown waits for the event that is being handled, and those before its own."""
ACKNOWLEDGED_LIMIT_MS = 2_000.0
"""How long a controller that shuts down waits for the brokers to acknowledge its last requests."""
ACKNOWLEDGED_CHECK_MS = 10.0
CLOSE_LIMIT_MS = 2_000.0
"""How long it waits for ZooKeeper to confirm the session's end; the session would expire by itself."""


@dataclass(eq=False)
class ClientEvents:
    """The events of a node's ZooKeeper client: the controller's go to its queue, the broker's own to the broker's
    thread, so that a config takes effect however long the controller handles an event."""

    _queue: EventSink
    _clock: Clock
    _configs_changed: Callable[[], None]
    _acls_changed: Callable[[], None] = lambda: None

    def put(self, event: Event) -> None:
        """On any thread."""
        if isinstance(event, ConfigsChanged):
            self._clock.call_later(0.0, self._configs_changed)
        elif isinstance(event, AclsChanged):
            self._clock.call_later(0.0, self._acls_changed)
        else:
            self._queue.put(event)


class SessionStatus(msgspec.Struct):
    """State of the ZooKeeper connection: the last one, and how often each change occurred."""

    state: str = "connecting"
    connects: int = 0
    disconnects: int = 0
    expires: int = 0

    def record(self, state: SessionState) -> None:
        self.state = state.value
        self.connects += state is SessionState.CONNECTED
        self.disconnects += state is SessionState.SUSPENDED
        self.expires += state is SessionState.EXPIRED


class Node:
    """`settings` with its broker id and its ports known. `lock` guards the event queue and `wake` is called after each
    event, where more than one thread puts them. `open_logs` opens the broker's logs; without it the broker holds no
    records. `on_all_offline` is called when no log directory is left. `metadata`, `metadata_bodies`, `off_loop` and
    `drive`: see `Broker`. `connected` is answered with the first session once `start` was called, `registered` with the
    first broker epoch. `authorizer`: see `AccessControl`."""

    def __init__(
        self,
        settings: BrokerSettings,
        connection: ZooKeeperConnection,
        channels: Callable[[], Channels],
        peers: Peers,
        clock: Clock,
        trace: Trace,
        rng: RandomSource,
        lock: AbstractContextManager[Any] | None = None,
        wake: Callable[[], None] = lambda: None,
        open_logs: OpenLogs | None = None,
        *,
        on_all_offline: Callable[[], None] = lambda: None,
        loggers: BrokerLoggers | None = None,
        metadata: MetadataCache | None = None,
        metadata_bodies: MetadataBodies | None = None,
        off_loop: OffLoop = at_once,
        drive: Drive = finish,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.settings = settings
        self._peers = peers
        self._clock = clock
        self._trace = trace
        self._session = 0
        self.session_status = SessionStatus()
        self._stopped: Future[None] = Future()
        self.connected: Future[int] = Future()
        self.identity = BrokerIdentity()
        self.events = EventQueue(EVENTS_MAX, lock, wake, clock.now_ms)
        self.client = ZooKeeperClient(
            connection,
            clock,
            ClientEvents(self.events, clock, self._configs_changed, lambda: self.access.acls_changed()),
            session_event=self._session_event,
            seed=rng.getrandbits(32),
        )
        self.lifecycle = Lifecycle(settings, self.identity, self.client, clock, trace, rng)
        self.controller = self._made_controller(channels, rng)
        self.access = AccessControl(settings, self.client, clock, trace, authorizer)
        metadata = metadata or MetadataCache()
        self.services: ZooKeeperServices | None = None
        if open_logs is not None:
            self.services = ZooKeeperServices(
                settings, self.client, metadata, clock, trace, loggers or BrokerLoggers(), open_logs
            )
        self.broker = Broker(
            settings,
            self.identity,
            self.events,
            lambda: self.controller.active,
            clock,
            trace,
            peers,
            None if self.services is None else self.services.logs,
            configs=None if self.services is None else self.services.configs,
            services=self.services,
            isr_writes=BrokerDataWrites(self.client),
            metadata=metadata,
            metadata_bodies=metadata_bodies,
            off_loop=off_loop,
            drive=drive,
            new_id=partial(_random_id, rng),
            access=self.access,
        )
        self.log_maintenance: LogMaintenance | None = None
        self.tiers: TierMaintenance | None = None
        if (data := self.broker.data) is not None:
            self.tiers = TierMaintenance(settings.tiers, data.logs, clock, trace, drive)
            heard = (on_all_offline, data.logs_changed, data.report_directory)
            self.log_maintenance = LogMaintenance(
                settings, data.logs, self.broker.replicas, clock, trace, *heard, self.broker.drive
            )

    def _made_controller(self, channels: Callable[[], Channels], rng: RandomSource) -> Controller:
        return Controller(
            broker_id=self.settings.broker_id,
            zookeeper=self.client,
            channels=channels,
            clock=self._clock,
            trace=self._trace,
            settings=controller_settings(self.settings),
            register=self.lifecycle.register,
            events=self.events,
            rng=rng,
            cluster_id=lambda: self.identity.cluster_id,
            epoch_seen=lambda: self.broker.replicas.controller_epoch,
        )

    @cached_property
    def log_cleaner(self) -> LogCleaner | None:
        """None in a broker without logs, and where log.cleaner.enable is false."""
        data = self.broker.data
        if data is None or self.services is None or not self.settings.log_cleaner:
            return None
        high_watermarks, setting = self.broker.replicas.high_watermarks, self.services.configs.of_cleaner
        return LogCleaner(data.logs, high_watermarks, setting, self._clock, self._trace, self.broker.drive)

    @property
    def registered(self) -> Future[int]:
        return self.lifecycle.registered

    def start(self) -> Future[int]:
        """Begins to connect to ZooKeeper, and queues what a start needs. Answered with the first session."""
        if self.services is not None:
            self.services.watch.entities_changed = self.access.entity_configs.changed
            self.services.brokers_changed = self.access.quota_store.alter_limits
        self.connected = self.client.start()
        self.events.put(Startup())
        if self.log_maintenance is not None:
            self.log_maintenance.start()
        if self.tiers is not None:
            self.tiers.start()
        if self.log_cleaner is not None:
            self.log_cleaner.start()
        if self.broker.groups is not None:
            self.broker.groups.start()
        if self.broker.transactions is not None:
            self.broker.transactions.coordinator.start()
        return self.connected

    def close_logs(self, devices: DeviceJobs | None = None) -> None:
        """Close the logs at the end of a clean shutdown, when requests are no longer answered and no log is in use. See
        `LogMaintenance.close_logs`."""
        if self.broker.data is not None:
            self.broker.data.moves.close()
            self.broker.data.fetchers.close()
        if self.broker.transactions is not None:
            self.broker.transactions.close()
        if self.tiers is not None:
            self.tiers.stop()
        if self.log_cleaner is not None:
            self.log_cleaner.stop()
        if self.log_maintenance is not None:
            self.log_maintenance.close_logs(devices)

    def _configs_changed(self) -> None:
        if self.services is not None:
            self.services.watch.check()

    async def process(self, event: Event) -> None:
        """One event to its end."""
        if isinstance(event, Startup):
            await self.connected
            await self.lifecycle.start()
            self._clock.call_later(0.0, self.broker.registered)  # on the broker's thread
            self._clock.call_later(0.0, self.access.start)
            if self.services is not None:
                self._clock.call_later(0.0, self.services.start)
        await self.controller.process(event)
        if isinstance(event, Shutdown) and not self._stopped.done:
            self._stopped.resolve(None)

    async def shut_down(self) -> str | None:
        """A controlled shutdown, then the controller's last event, then the session's end. Bounded in time, whatever
        ZooKeeper and the controller do (S18, S20).

        Returns why the controlled shutdown was not granted; None if it was, or is disabled."""
        failure: str | None = None
        self.lifecycle.stop()
        self._trace.emit(Noted("info", f"broker {self.settings.broker_id} is shutting down"))
        if self.settings.controlled_shutdown and self.registered.done:
            failure = await controlled_shutdown(
                self.settings, self.identity, self.broker.metadata, self._peers, self._clock, self._trace
            )
            if failure is not None:
                self._trace.emit(Noted("warning", f"going all the same, as the attempts are used up: {failure}"))
            await self._await_acknowledgements()
        self.events.put(Shutdown())
        if not await within(self._stopped, self._clock, RESIGN_LIMIT_MS):
            self._trace.emit(Noted("warning", "shutting down while an event is still being handled"))
        self.events.close()
        if not await within(self.client.close(), self._clock, CLOSE_LIMIT_MS):
            self._trace.emit(Noted("warning", "the ZooKeeper session was not closed in time; it will expire"))
        return failure

    async def _await_acknowledgements(self) -> None:
        """Wait until the brokers have answered this controller. If it moved its own leaders and closed its channels at
        once, clients would use the old leaders until its successor sends the new ones."""
        until_ms = self._clock.now_ms() + ACKNOWLEDGED_LIMIT_MS
        while self.controller.unanswered and self._clock.now_ms() < until_ms:
            await self._clock.sleep(ACKNOWLEDGED_CHECK_MS)

    def _session_event(self, state: SessionState, session: int) -> Event | None:
        """Return the event for a change of the session's state, or None. Runs on the connection's thread."""
        self.session_status.record(state)
        if state is SessionState.CONNECTED:
            if session == self._session:
                return None
            first, self._session = self._session == 0, session
            self._trace.emit(SessionStarted(session))
            return None if first else RegisterBrokerAndReelect()
        if state is SessionState.SUSPENDED or not session:
            return None
        self._trace.emit(SessionEnded(session))
        return SessionExpired(session) if state is SessionState.EXPIRED else None


def _random_id(rng: RandomSource) -> str:
    return str(UUID(int=rng.getrandbits(128), version=4))


def controller_settings(settings: BrokerSettings) -> ControllerSettings:
    """What of the broker's settings its controller goes by."""
    return ControllerSettings(
        inter_broker_listener=settings.control_plane_listener or settings.inter_broker_listener,
        inter_broker_protocol=settings.inter_broker_protocol,
        num_partitions=settings.num_partitions,
        default_replication_factor=settings.default_replication_factor,
        unclean_leader_election=settings.unclean_leader_election,
        delete_topic=settings.delete_topic,
        auto_leader_rebalance=settings.auto_leader_rebalance,
        leader_imbalance_per_broker_percentage=settings.leader_imbalance_per_broker_percentage,
        leader_imbalance_check_interval_seconds=settings.leader_imbalance_check_interval_seconds,
        min_insync_replicas=settings.min_insync_replicas,
        shutdown_check=settings.shutdown_check,
        reassignments_in_cluster=settings.reassignments_in_cluster,
        reassignments_on_broker=settings.reassignments_on_broker,
    )


def within(pending: Future[Any], clock: Clock, limit_ms: float) -> Future[bool]:
    """Whether `pending` was answered before `limit_ms` had passed."""
    outcome: Future[bool] = Future()
    turns = [None]  # popping is atomic: the answer and the timer may come on two threads at once

    def decide(answered: bool) -> None:
        try:
            turns.pop()
        except IndexError:
            return
        outcome.resolve(answered)

    timer = clock.call_later(limit_ms, lambda: decide(False))

    def answered() -> None:
        timer.cancel()
        decide(True)

    pending.on_done(answered)
    return outcome
