"""The controller of one broker: stands for election, leads for a term, resigns, stands again.

`process` takes one event to its end, whatever comes of it. What ends a term (the fence failed, the session ended, the
lease ran out, the host says so) ends it in one place, synchronously: watches first, then channels, then the context,
then every callback that waits is answered. An error that nobody expected ends the term too, for a context that a
half-done event has left can't be trusted. Knows no thread; the handlers do the work, on a `Term`.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from controller.clock import Clock, Timer
from controller.core import cluster_events, election_events, pause_events, reassignment_events
from controller.core import events as happened
from controller.core.events import Event, is_answerable
from controller.core.figures import ControllerMeasures
from controller.core.handlers import (
    broker_changes,
    controlled_shutdown,
    elections,
    features,
    isr_changes,
    log_directories,
    pause,
    producer_ids,
    reassignment,
    responses,
    topic_changes,
    topic_creation,
    topic_deletion,
    unclean,
)
from controller.core.handlers.failover import fail_over, is_watched_in_term
from controller.core.leadership import Lost, elect
from controller.core.placement import Rng
from controller.core.ports import Channels, Resign
from controller.core.settings import ControllerSettings
from controller.core.term import Term
from controller.pending import Task
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerElected, ControllerResigned, Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.errors import ControllerMoved, LeaseExpired, SessionGone, ZooKeeperError
from controller.zookeeper.leadership import Leadership
from controller.zookeeper.operations import ANY_VERSION, Delete

NOBODY = -1
FIRST_BACKOFF_MS = 100.0
LONGEST_BACKOFF_MS = 10_000.0
SOUND_TERM_MS = 60_000.0
"""A term that lasted this long before it failed was none of a series: the backoff begins anew."""

Handler = Callable[[Term, Any], Awaitable[None]]
HANDLERS: Mapping[type, Handler] = {
    happened.BrokerChange: broker_changes.broker_change,
    happened.BrokerModifications: broker_changes.broker_modifications,
    happened.TopicChange: topic_changes.topic_change,
    happened.PartitionModifications: topic_changes.partition_modifications,
    happened.IsrChangeNotification: isr_changes.isr_change_notification,
    happened.LogDirEventNotification: log_directories.log_dir_event_notification,
    happened.AlterIsrRequested: isr_changes.alter_isr,
    happened.ControlledShutdownRequested: controlled_shutdown.controlled_shutdown,
    happened.UncleanLeaderElectionEnabled: unclean.unclean_election_may_be_allowed,
    happened.TopicConfigChange: unclean.unclean_election_may_be_allowed,
    pause_events.PauseChanged: pause.pause_changed,
    election_events.ElectLeadersRequested: elections.elect_leaders,
    election_events.PreferredElectionAsked: elections.preferred_election_asked,
    election_events.AutoPreferredElection: elections.automatic_preferred_election,
    reassignment_events.ReassignmentAsked: reassignment.reassignment_asked,
    reassignment_events.ReassignmentIsrChange: reassignment.reassignment_isr_change,
    reassignment_events.AlterReassignmentsRequested: reassignment.alter_reassignments,
    reassignment_events.ListReassignmentsRequested: reassignment.list_reassignments,
    cluster_events.UpdateFeaturesRequested: features.update_features,
    cluster_events.AllocateProducerIdsRequested: producer_ids.allocate_producer_ids,
    happened.CreateTopicsRequested: topic_creation.create_topics,
    happened.CreatePartitionsRequested: topic_creation.create_partitions,
    happened.TopicDeletion: topic_deletion.topic_deletion,
    happened.DeleteTopicsRequested: topic_deletion.delete_topics,
    happened.LeaderAndIsrResponse: responses.response,
    happened.UpdateMetadataResponse: responses.response,
    happened.StopReplicaResponse: responses.response,
}
"""What only an active controller does anything about."""


class Events(Protocol):
    """The queue, as far as the controller puts into it."""

    def put(self, event: Any) -> None: ...

    def close_callbacks(self) -> None: ...


class Controller:
    """`register` registers the broker in the present session and gives its broker epoch; `channels` makes a term's
    channels. `active_controller_id` is a gauge: whom this broker takes for controller, -1 nobody (KAFKA-16509)."""

    def __init__(
        self,
        *,
        broker_id: int,
        zookeeper: ZooKeeperClient,
        channels: Callable[[], Channels],
        clock: Clock,
        trace: Trace,
        settings: ControllerSettings,
        register: Callable[[], Task[int]],
        events: Events,
        rng: Rng,
    ) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._writes = BrokerWrites(zookeeper)
        self._channels = channels
        self._clock = clock
        self._trace = trace
        self._settings = settings
        self._register = register
        self._events = events
        self._rng = rng
        self._term: Term | None = None
        self._elected_ms = 0.0
        self._failures = 0
        self._not_before_ms = 0.0
        self._again: Timer | None = None
        self._stopped = False
        self.active_controller_id = NOBODY
        self.measures = ControllerMeasures(clock)
        """For metrics: published after each event, read on any thread."""

    # -- what the host and the broker ask

    @property
    def active(self) -> bool:
        """From the election that was won to the resignation, failover included."""
        return self._term is not None

    @property
    def term(self) -> Term | None:
        """The present term, to look at."""
        return self._term

    @property
    def leadership(self) -> Leadership | None:
        return None if self._term is None else self._term.leadership

    @property
    def controller_epoch(self) -> int:
        """That of the present term; 0 with none (KAFKA-1096: never another's)."""
        return 0 if self._term is None else self._term.epoch

    @property
    def unanswered(self) -> int:
        """How many of the present term's requests no broker has answered yet. May be asked on any thread."""
        term = self._term
        return 0 if term is None else term.requests.unanswered

    def void_reason(self) -> str | None:
        """Why the term must end now; None if it need not, or there is none."""
        return None if self._term is None else self._term.void_reason()

    def lease_until_ms(self) -> float:
        """Until when nothing need be checked: infinity with no term."""
        return float("inf") if self._term is None else self._zookeeper.lease_until_ms()

    def resign(self, reason: str) -> None:
        """Ends the term, if there is one. Synchronous: between its first and last step no other event can come."""
        term = self._term
        if term is None:
            return
        self._zookeeper.unwatch([path for _, path in sorted(self._zookeeper.watched()) if is_watched_in_term(path)])
        term.timers.cancel_all()
        term.channels.close()
        self._term = None
        self.active_controller_id = NOBODY
        self._events.close_callbacks()
        self._trace.emit(ControllerResigned(term.epoch, reason))
        self.measures.publish(None)

    async def process(self, event: Event) -> None:
        """One event to its end. Its callback is answered, and nothing is raised but what ends the program."""
        self.measures.began(event)
        ended: str | None = None
        failure: Exception | None = None
        try:
            await self._dispatch(event)
        except (ControllerMoved, LeaseExpired, SessionGone) as error:
            ended = str(error)
        except Resign as resign:
            ended = str(resign)
        except Exception as error:  # noqa: BLE001 - named in the log, and the term ends with it
            failure = error
        if failure is not None:
            await self._fail(event, failure)
        elif ended is not None:
            self._end_term(ended)
        if is_answerable(event) and not event.answered:
            event.refuse(ErrorCode.NOT_CONTROLLER)
        self.measures.ended(self._term)

    # -- one event

    async def _dispatch(self, event: Event) -> None:
        if self._stopped:
            return
        if isinstance(event, happened.Startup | happened.RegisterBrokerAndReelect):
            await self._start(event)
        elif isinstance(event, happened.Reelect):
            await self._stand()
        elif isinstance(event, happened.ControllerChange):
            await self._controller_change()
        elif isinstance(event, happened.SessionExpired):
            self._session_expired(event)
        elif isinstance(event, happened.Shutdown):
            self._stop()
        else:
            await self._handle(event)

    async def _handle(self, event: Event) -> None:
        """An event for an active controller. That it was active when the event was put says nothing (KAFKA-4447)."""
        handler = HANDLERS[type(event)]
        if self._term is not None:
            await handler(self._term, event)

    async def _start(self, event: Event) -> None:
        await self._zookeeper.watch_node(paths.CONTROLLER, happened.ControllerChange())
        await self._register()
        await self._stand()

    async def _controller_change(self) -> None:
        """/controller came, went or was rewritten: looks who it is now, and stands if it is nobody."""
        row = (await self._zookeeper.read([paths.CONTROLLER])).rows[0]
        term = self._term
        if term is not None and (row is None or row.stat.ephemeral_owner != term.leadership.session):
            self.resign(f"{paths.CONTROLLER} is {'gone' if row is None else 'held by another session'}")
        if row is None:
            self.active_controller_id = NOBODY
            await self._stand()
        else:
            self.active_controller_id = decode_controller(row.path, row.data).broker_id

    def _session_expired(self, event: happened.SessionExpired) -> None:
        if self._term is not None and self._term.leadership.session == event.session:
            self.resign(f"session 0x{event.session:x} has ended")

    def _stop(self) -> None:
        self.resign("shutting down")
        self._stopped = True
        self._cancel_timer()

    # -- terms

    async def _stand(self) -> None:
        """Stands for election, unless this broker leads already, has no session, or has failed a moment ago."""
        if self._term is not None or not self._zookeeper.session():
            return
        if self._clock.now_ms() < self._not_before_ms:
            self._stand_later()
            return
        outcome = await elect(self._zookeeper, self._broker_id, self._clock)
        if isinstance(outcome, Lost):
            self.active_controller_id = outcome.controller_id
            return
        leadership = outcome.leadership
        term = Term(
            broker_id=self._broker_id,
            leadership=leadership,
            settings=self._settings,
            zookeeper=self._zookeeper,
            writes=self._writes,
            channels=self._channels(),
            clock=self._clock,
            trace=self._trace,
            rng=self._rng,
            put=self._events.put,
        )
        self._term = term
        self._elected_ms = self._clock.now_ms()
        self.active_controller_id = self._broker_id
        self._trace.emit(ControllerElected(leadership.epoch, leadership.epoch_zk_version, leadership.session))
        await fail_over(term)

    def _end_term(self, reason: str) -> None:
        """Resigns, and stands again if the session lives on: /controller may still be this broker's, and nobody else
        can stand before it is gone. With no session the next one's beginning brings an event of its own."""
        self.resign(reason)
        if self._zookeeper.session():
            self._events.put(happened.Reelect())

    async def _fail(self, event: Event, failure: Exception) -> None:
        """An error that no handler expected: said aloud, the term given up, and another chance taken later."""
        where = "".join(traceback.format_exception(failure)).strip()
        self._trace.emit(Noted("error", f"broker {self._broker_id}: {event} failed: {failure!r}\n{where}"))
        if isinstance(event, happened.Startup | happened.RegisterBrokerAndReelect):
            self._back_off(event)
            return
        term = self._term
        if term is not None and self._clock.now_ms() - self._elected_ms >= SOUND_TERM_MS:
            self._failures = 0
        self.resign(f"{event} failed: {failure!r}")
        self._back_off(happened.Reelect())
        if term is not None:
            await self._let_others_stand(term)

    async def _let_others_stand(self, term: Term) -> None:
        """Deletes /controller, as long as it is that term's: another broker may fare better with the same cluster."""
        try:
            await self._zookeeper.commit(term.leadership, [Delete(paths.CONTROLLER, ANY_VERSION)])
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"broker {self._broker_id}: {paths.CONTROLLER} not given up: {error}"))

    # -- trying again

    def _back_off(self, event: Event) -> None:
        """Puts `event` after a while, twice as long each time."""
        delay_ms = min(FIRST_BACKOFF_MS * 2.0**self._failures, LONGEST_BACKOFF_MS)
        self._failures = min(self._failures + 1, 30)
        self._not_before_ms = self._clock.now_ms() + delay_ms
        self._put_later(event, delay_ms)

    def _stand_later(self) -> None:
        if self._again is None:
            self._put_later(happened.Reelect(), self._not_before_ms - self._clock.now_ms())

    def _put_later(self, event: Event, delay_ms: float) -> None:
        self._cancel_timer()

        def put() -> None:
            self._again = None
            self._events.put(event)

        self._again = self._clock.call_later(max(0.0, delay_ms), put)

    def _cancel_timer(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
