"""The controller of one broker: stands for election, leads for a term, resigns, stands again.

`process` handles one event completely, whatever its outcome. A term ends when the fence fails, the session ends, the
lease runs out or the host requests it. It always ends in one place, synchronously: first the watches are removed, then
the channels are closed, then the context is discarded, then every waiting callback is answered. An unexpected error
ends the term too, because the context after a half-processed event can't be trusted. This module uses no threads; the
handlers do the work, on a `Term`. What failed is put into the queue again by a `Backoff`: one timer, and the count of
failures in a row.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller.backoff import backoff_ms
from controller.clock import Clock, Coro, Timer
from controller.core import events
from controller.core.channels import Channels, Resign
from controller.core.event_loop import EventQueue
from controller.core.events import Event, Reelect, RegisterBrokerAndReelect, is_answerable
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
from controller.core.leadership import (
    EPOCH_STEP,
    BrokerKnowledge,
    ControllerSettings,
    ElectionBlocked,
    EpochRefused,
    EpochTooLow,
    Lost,
    Obstacle,
    Term,
    another_cluster,
    elect,
    in_cluster_id,
    in_controller,
    named_in,
    no_access,
    shown,
    wiped,
)
from controller.core.metrics import ControllerMetrics
from controller.core.placement import Rng
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerElected, ControllerResigned, Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.operations import (
    ANY_VERSION,
    ControllerMoved,
    Delete,
    LeaseExpired,
    NoAuth,
    SessionGone,
    WrongCluster,
    Znode,
)

FIRST_BACKOFF_MS = 100.0
LONGEST_BACKOFF_MS = 10_000.0


class Backoff:
    """Puts `event` again after a failure: after `FIRST_BACKOFF_MS`, twice as long each time, `LONGEST_BACKOFF_MS` at
    most. Each thing that is retried has a Backoff of its own, so that no retry cancels another."""

    def __init__(self, event: Event, put: Callable[[Any], None], clock: Clock) -> None:
        self._event = event
        self._put = put
        self._clock = clock
        self._failures = 0
        self._not_before_ms = 0.0
        self._timer: Timer | None = None

    def failed(self) -> None:
        """Schedule the event, in place of an earlier schedule."""
        self._failures += 1
        delay_ms = backoff_ms(self._failures, FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        self._not_before_ms = self._clock.now_ms() + delay_ms
        self.cancel()
        self._schedule()

    def is_early(self) -> bool:
        """Return whether the back-off is not over yet; the event is then scheduled for its end."""
        if self._clock.now_ms() >= self._not_before_ms:
            return False
        if self._timer is None:
            self._schedule()
        return True

    def succeeded(self) -> None:
        """The next failure is the first of a new series."""
        self._failures = 0

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        def put() -> None:
            self._timer = None
            self._put(self._event)

        self._timer = self._clock.call_later(max(0.0, self._not_before_ms - self._clock.now_ms()), put)


NO_CONTROLLER = -1
SAID_AGAIN_MS = 60_000.0
"""How often the log says again what is in the way of every election."""
SOUND_TERM_MS = 60_000.0
"""A term that lasted this long before it failed was none of a series: the backoff begins anew."""

Handler = Callable[[Term, Any], Awaitable[None]]
HANDLERS: Mapping[type, Handler] = {
    events.BrokerChange: broker_changes.broker_change,
    events.BrokerModifications: broker_changes.broker_modifications,
    events.TopicChange: topic_changes.topic_change,
    events.PartitionModifications: topic_changes.partition_modifications,
    events.IsrChangeNotification: isr_changes.isr_change_notification,
    events.LogDirEventNotification: log_directories.log_dir_event_notification,
    events.AlterIsrRequested: isr_changes.alter_isr,
    events.ControlledShutdownRequested: controlled_shutdown.controlled_shutdown,
    events.UncleanLeaderElectionEnabled: unclean.unclean_election_may_be_allowed,
    events.TopicConfigChange: unclean.unclean_election_may_be_allowed,
    events.PauseChanged: pause.pause_changed,
    events.ElectLeadersRequested: elections.elect_leaders,
    events.PreferredElectionAsked: elections.preferred_election_asked,
    events.AutoPreferredElection: elections.automatic_preferred_election,
    events.ReassignmentAsked: reassignment.reassignment_asked,
    events.ReassignmentIsrChange: reassignment.reassignment_isr_change,
    events.AlterReassignmentsRequested: reassignment.alter_reassignments,
    events.ListReassignmentsRequested: reassignment.list_reassignments,
    events.UpdateFeaturesRequested: features.update_features,
    events.AllocateProducerIdsRequested: producer_ids.allocate_producer_ids,
    events.CreateTopicsRequested: topic_creation.create_topics,
    events.CreatePartitionsRequested: topic_creation.create_partitions,
    events.TopicDeletion: topic_deletion.topic_deletion,
    events.DeleteTopicsRequested: topic_deletion.delete_topics,
    events.RetryDeletions: topic_deletion.retry_deletions,
    events.LeaderAndIsrResponseReceived: responses.response,
    events.UpdateMetadataResponseReceived: responses.response,
    events.StopReplicaResponseReceived: responses.response,
}
"""What only an active controller does anything about."""


class Controller:
    """The controller role of one broker.

    `register` registers the broker in the current session and returns its broker epoch; `channels` creates a term's
    channels. `active_controller_id` is a gauge: the id of the active controller as this broker knows it, -1 for none
    (KAFKA-16509). `obstacle` is what prevents every election, None if nothing does.

    `cluster_id` returns the id of the broker's cluster (None: it is not checked), `epoch_seen` the highest controller
    epoch that the broker has seen in a request. Both may be called on the controller's thread.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        zookeeper: ZooKeeperClient,
        channels: Callable[[], Channels],
        clock: Clock,
        trace: Trace,
        settings: ControllerSettings,
        register: Callable[[], Coro[int]],
        events: EventQueue,
        rng: Rng,
        cluster_id: Callable[[], str | None] = lambda: None,
        epoch_seen: Callable[[], int] = lambda: 0,
    ) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._channels = channels
        self._clock = clock
        self._trace = trace
        self._settings = settings
        self._register = register
        self._events = events
        self._rng = rng
        self._term: Term | None = None
        self._elected_ms = 0.0
        self._cluster_id = cluster_id
        self._epoch_seen = epoch_seen
        self._highest_epoch = 0
        self._refused = NO_CONTROLLER
        self._refusals = 0
        self._registering = False
        self._registration = Backoff(RegisterBrokerAndReelect(), events.put, clock)
        self._election = Backoff(Reelect(), events.put, clock)
        self._said_ms = 0.0
        self._stopped = False
        self.active_controller_id = NO_CONTROLLER
        self.obstacle: Obstacle | None = None
        self.measures = ControllerMetrics(clock)
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
    def controller_epoch(self) -> int:
        """That of the present term; 0 with none (KAFKA-1096: never another's)."""
        return 0 if self._term is None else self._term.epoch

    @property
    def unanswered(self) -> int:
        """Return the number of the current term's requests without a response. May be called on any thread."""
        term = self._term
        return 0 if term is None else term.requests.unanswered

    def void_reason(self) -> str | None:
        """Return why the term must end now, or None if it need not or there is none."""
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
        self.active_controller_id = NO_CONTROLLER
        self._events.close_callbacks()
        self._trace.emit(ControllerResigned(term.epoch, reason))
        self.measures.publish(None)

    async def process(self, event: Event) -> None:
        """One event to its end. Its callback is answered, and nothing is raised but what ends the program."""
        self.measures.began(event)
        self._registering = False
        ended: str | None = None
        failure: Exception | None = None
        try:
            await self._dispatch(event)
        except (ControllerMoved, LeaseExpired, SessionGone) as error:
            ended = str(error)
        except EpochRefused as refused:
            ended = self._refused_by(refused)
        except EpochTooLow as too_low:
            self._highest_epoch = max(self._highest_epoch, too_low.highest)
            ended = str(too_low)
        except Resign as resign:
            ended = str(resign)
        except Exception as error:  # noqa: BLE001 - named in the log, and the term ends with it
            failure = error
        if failure is not None:
            await self._fail(event, failure)
        elif ended is not None:
            self._end_term(ended)
        if self._registering and (failure is not None or self._zookeeper.session()):
            self._registration.failed()
        if is_answerable(event) and not event.answered:
            event.refuse(ErrorCode.NOT_CONTROLLER)
        self.measures.ended(self._term)

    # -- one event

    async def _dispatch(self, event: Event) -> None:
        if self._stopped:
            return
        if isinstance(event, events.Startup | events.RegisterBrokerAndReelect):
            await self._start()
        elif isinstance(event, events.Reelect):
            await self._stand()
        elif isinstance(event, events.ControllerChange):
            await self._controller_change()
        elif isinstance(event, events.SessionExpired):
            self._session_expired(event)
        elif isinstance(event, events.Shutdown):
            self._stop()
        else:
            await self._handle(event)

    async def _handle(self, event: Event) -> None:
        """An event for an active controller. That it was active when the event was put says nothing (KAFKA-4447)."""
        handler = HANDLERS[type(event)]
        if self._term is not None:
            await handler(self._term, event)

    async def _start(self) -> None:
        self._registering = True
        await self._zookeeper.watch_node(paths.CONTROLLER, events.ControllerChange())
        await self._register()
        self._registering = False
        self._registration.succeeded()
        await self._stand()

    async def _controller_change(self) -> None:
        """Handle a change of /controller: read which broker it names, and stand for election if there is none."""
        row, cluster_id = (await self._zookeeper.read([paths.CONTROLLER, paths.CLUSTER_ID])).rows
        term = self._term
        if term is not None and (row is None or row.stat.ephemeral_owner != term.leadership.session):
            self.resign(f"{paths.CONTROLLER} is {'gone' if row is None else 'held by another session'}")
        if row is None:
            self.active_controller_id = NO_CONTROLLER
            await self._stand()
            return
        if self._term is not None:
            if named_in(row) != self._broker_id:
                await self._step_down(row)
            return
        obstacle = in_cluster_id(self._cluster_id(), cluster_id, others_there=True)
        obstacle = obstacle or in_controller(row, self._zookeeper.session())
        if obstacle is not None:
            self._blocked(obstacle)
        else:
            self._unblocked()
            self._take_for_controller(named_in(row))

    def _take_for_controller(self, broker_id: int | None) -> None:
        """Set the active controller's id, -1 for none.

        This broker's own id comes from an earlier session or from a term that has just ended: there is no controller.
        """
        self.active_controller_id = NO_CONTROLLER if broker_id in (None, self._broker_id) else broker_id

    async def _step_down(self, row: Znode) -> None:
        """Resign because another client rewrote this session's /controller, as Kafka's controller does.

        Kafka's controller leaves the znode as it is, and the broker that it names acts as controller without having
        loaded the cluster. Here the znode is deleted, and brokers stand for election.
        """
        why = f"{paths.CONTROLLER} of this controller was rewritten by hand with {shown(row.data)}"
        self._note(
            "error",
            f"{why}; broker {self._broker_id} resigns and deletes it, so that a controller is elected. To have another"
            f" broker elected, delete {paths.CONTROLLER} instead",
        )
        await self._give_up(why)

    def _session_expired(self, event: events.SessionExpired) -> None:
        if self._term is not None and self._term.leadership.session == event.session:
            self.resign(f"session 0x{event.session:x} has ended")

    def _stop(self) -> None:
        self.resign("shutting down")
        self._stopped = True
        self._registration.cancel()
        self._election.cancel()

    # -- terms

    async def _stand(self) -> None:
        """Stands for election, unless this broker leads already, has no session, or has failed a moment ago."""
        if self._term is not None or not self._zookeeper.session():
            return
        if self._election.is_early():
            return
        blocked: Obstacle | None = None
        try:
            outcome = await elect(self._zookeeper, self._broker_id, self._clock, self._known())
        except ElectionBlocked as error:
            blocked = error.obstacle
        except NoAuth as error:
            if error.path not in (paths.CONTROLLER, paths.CONTROLLER_EPOCH):
                raise
            blocked = no_access(error.path)
        if blocked is not None:
            self._blocked(blocked)
            return
        self._unblocked()
        if outcome.corrected:
            self._note("error", outcome.corrected)
        if isinstance(outcome, Lost):
            self._take_for_controller(outcome.controller_id)
            return
        leadership = outcome.leadership
        term = Term(
            broker_id=self._broker_id,
            leadership=leadership,
            settings=self._settings,
            zookeeper=self._zookeeper,
            channels=self._channels(),
            clock=self._clock,
            trace=self._trace,
            rng=self._rng,
            put=self._events.put,
        )
        self._term = term
        self._elected_ms = self._clock.now_ms()
        self._highest_epoch = max(self._highest_epoch, leadership.epoch)
        self.active_controller_id = self._broker_id
        self._trace.emit(ControllerElected(leadership.epoch, leadership.epoch_zk_version, leadership.session))
        await fail_over(term)

    def _end_term(self, reason: str) -> None:
        """Resign, and stand for election again if the session still exists.

        /controller may still belong to this broker, and no other broker can stand for election before it is deleted.
        Without a session, the start of the next session puts an event of its own.
        """
        self.resign(reason)
        if self._zookeeper.session():
            self._events.put(events.Reelect())

    async def _fail(self, event: Event, failure: Exception) -> None:
        """An error that no handler expected: logged, the term given up whatever event carried it, and retried later."""
        if isinstance(failure, WrongCluster):
            expected, found = failure.expected, failure.found
            self.resign(str(failure))
            self._blocked(wiped(expected) if found is None else another_cluster(expected, found))
            return
        where = "".join(traceback.format_exception(failure)).strip()
        self._note("error", f"{event} failed: {failure!r}\n{where}")
        if self._term is not None or not self._registering:
            await self._give_up(f"{event} failed: {failure!r}")

    async def _give_up(self, reason: str) -> None:
        """Resigns, deletes /controller so that others can stand, and stands again after a back-off."""
        term = self._term
        if term is not None and self._clock.now_ms() - self._elected_ms >= SOUND_TERM_MS:
            self._election.succeeded()
        self.resign(reason)
        self._election.failed()
        if term is not None:
            await self._let_others_stand(term)

    async def _let_others_stand(self, term: Term) -> None:
        """Deletes /controller, as long as it is that term's: another broker may fare better with the same cluster."""
        try:
            await self._zookeeper.commit(term.leadership, [Delete(paths.CONTROLLER, ANY_VERSION)])
        except Exception as error:  # noqa: BLE001 - logged; the next election takes over what is left
            self._note("warning", f"{paths.CONTROLLER} not given up: {error!r}")

    # -- what is in the way of every election

    def _known(self) -> BrokerKnowledge:
        step = min(EPOCH_STEP * 4**self._refusals, 2**31)
        epoch = max(self._highest_epoch, self._epoch_seen())
        return BrokerKnowledge(self._cluster_id(), epoch, self._refused, step)

    def _refused_by(self, refused: EpochRefused) -> str:
        """The next election decides: either another controller leads, or /controller_epoch was lowered, and the next
        term's epoch is higher by more each time."""
        self._refusals += self._refused >= 0
        self._refused = refused.epoch
        return str(refused)

    def _blocked(self, obstacle: Obstacle) -> None:
        """No election is possible: says so, now and every minute, and looks again after a back-off."""
        self.active_controller_id = NO_CONTROLLER
        now_ms = self._clock.now_ms()
        if obstacle != self.obstacle or now_ms - self._said_ms >= SAID_AGAIN_MS:
            self._said_ms = now_ms
            self._note("error", f"no controller can be elected: {obstacle}")
        self.obstacle = obstacle
        if obstacle.concerns_cluster:
            self._registration.failed()  # with the cluster back, the broker registers again before it stands
            self._registering = False
        else:
            self._election.failed()

    def _unblocked(self) -> None:
        if self.obstacle is not None:
            self._note("info", f"controllers can be elected again: {self.obstacle.path} was repaired")
            self.obstacle = None
            self._election.succeeded()

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, f"broker {self._broker_id}: {message}"))
