"""Wrong variants of production methods, one for each way that a controller has gone wrong before.

Each fault is planted by `plant` and must make `check`, which passes on the real code, fail. None of them breaks a
signature or raises by itself: what is wrong is only what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.core import leadership, state_changes, znode_changes
from controller.core.context import LiveBroker
from controller.core.controller import Controller
from controller.core.event_loop import EventQueue
from controller.core.events import Answerable, BrokerChange, Once
from controller.core.handlers import broker_changes, controlled_shutdown, isr_changes, reassignment
from controller.core.leadership import Obstacle, Term
from controller.core.loading import read_brokers
from controller.core.request_batch import RequestBatch
from controller.core.state_changes import set_states
from controller.protocol.control import AlterIsrPartition
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_controller_epoch
from controller.zookeeper.operations import ANY_VERSION, Check
from tests.core import (
    test_broker_changes,
    test_controlled_shutdown,
    test_failover,
    test_isr_changes,
    test_leadership,
    test_terms,
)
from tests.incidents import interruption, operations, test_batches, test_epochs, test_unread

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    plant: Callable[[Patch], None]
    check: Callable[[], object]
    red: type[Exception] = AssertionError


# -- elections and epochs


def owner_not_checked(patch: Patch) -> None:
    """Whoever finds its id in /controller leads (S07)."""
    patch.setattr(leadership, "_is_owned_by", lambda controller, session: True)


def lost_reply_taken_for_a_loss(patch: Patch) -> None:
    """A won election is given up (S08)."""
    patch.setattr(leadership, "_is_won", lambda *_: False)


def epoch_from_zookeeper(patch: Patch) -> None:
    """Before each event the epoch is what /controller_epoch holds (S02)."""
    handle = Controller._handle

    async def copying(self: Controller, event: Any) -> None:
        term = self._term
        if term is not None:
            row = (await term.zookeeper.read([paths.CONTROLLER_EPOCH])).rows[0]
            assert row is not None
            copied = msgspec.structs.replace(
                term.leadership,
                epoch=decode_controller_epoch(row.path, row.data),
                epoch_zk_version=row.stat.version,
            )
            self._term = msgspec.structs.replace(term, leadership=copied)
        await handle(self, event)

    patch.setattr(Controller, "_handle", copying)


def fence_not_checked(patch: Patch) -> None:
    """Writes go through whoever leads now (S03)."""
    fence = Check(paths.CONTROLLER_EPOCH, ANY_VERSION)
    patch.setattr(ZooKeeperClient, "_with_fence", lambda self, _, operations: (fence, *operations))


def handlers_without_a_term(patch: Patch) -> None:
    """What was queued while it led is handled in the term that is over (S04)."""
    resign = Controller.resign
    kept: dict[Controller, Term] = {}

    def keeping(self: Controller, reason: str) -> None:
        if self._term is not None:
            kept[self] = self._term
        resign(self, reason)

    handle = Controller._handle

    async def handling(self: Controller, event: Any) -> None:
        if self._term is None and self in kept:
            self._term = kept[self]
        await handle(self, event)

    patch.setattr(Controller, "resign", keeping)
    patch.setattr(Controller, "_handle", handling)


def gauge_kept(patch: Patch) -> None:
    """The gauge goes on naming who resigned (S10)."""
    resign, change, blocked = Controller.resign, Controller._controller_change, Controller._blocked

    def keeping(self: Controller, reason: str) -> None:
        was = self.active_controller_id
        resign(self, reason)
        self.active_controller_id = was

    async def looking(self: Controller) -> None:
        was = self.active_controller_id
        try:
            await change(self)
        finally:
            self.active_controller_id = was

    def blocking(self: Controller, obstacle: Obstacle) -> None:
        was = self.active_controller_id
        blocked(self, obstacle)
        self.active_controller_id = was

    patch.setattr(Controller, "resign", keeping)
    patch.setattr(Controller, "_controller_change", looking)
    patch.setattr(Controller, "_blocked", blocking)


def stands_no_more(patch: Patch) -> None:
    """A term that ended inside a session that lives on is not followed by another attempt."""
    patch.setattr(Controller, "_end_term", Controller.resign)


# -- batches and callbacks


def batch_kept(patch: Patch) -> None:
    """One batch for all: what an exception left in it is there for the next to send (S11)."""
    left: dict[ZooKeeperClient, RequestBatch] = {}
    init, send = RequestBatch.__init__, RequestBatch.send

    def begun(self: RequestBatch, term: Term) -> None:
        init(self, term)
        former = left.get(term.zookeeper)
        if former is not None:
            self._metadata_rows += former._metadata_rows
            self._metadata_brokers |= former._metadata_brokers
            self._leader_and_isr += former._leader_and_isr
            self._stops += former._stops
        left[term.zookeeper] = self

    def sent(self: RequestBatch) -> None:
        send(self)
        left.pop(self._term.zookeeper)

    patch.setattr(RequestBatch, "__init__", begun)
    patch.setattr(RequestBatch, "send", sent)


def answered_twice(patch: Patch) -> None:
    """A resignation refuses what is queued and leaves it there, to be answered again in its turn (S19)."""

    def refuse_all(self: EventQueue) -> None:
        for event in list(self._waiting):
            if isinstance(event, Answerable):
                event.refuse()

    def respond(self: Once[Any], value: Any) -> None:
        self._respond(value)

    patch.setattr(EventQueue, "close_callbacks", refuse_all)
    patch.setattr(Once, "__call__", respond)


def callback_dropped(patch: Patch) -> None:
    """A resignation throws away what is queued (S19)."""

    def forget_all(self: EventQueue) -> None:
        kept = [event for event in self._waiting if not isinstance(event, Answerable)]
        self._waiting.clear()
        self._waiting.extend(kept)

    patch.setattr(EventQueue, "close_callbacks", forget_all)


# -- what is read, and when


def stale_children(patch: Patch) -> None:
    """The event carries the brokers that there were when its watch fired (S22)."""
    fired = ZooKeeperClient.watch_fired
    carried: list[tuple[str, ...]] = []

    def noting(self: Any, event: Any) -> None:
        if event.path == paths.BROKER_IDS and BrokerChange() not in self._events._pending:
            carried.append(self._connection._server.children(paths.BROKER_IDS) or ())
        fired(self, event)

    async def as_it_was(term: Term) -> tuple[list[LiveBroker], int]:
        brokers, zxid = await read_brokers(term)
        return [broker for broker in brokers if not carried or str(broker.id) in carried[-1]], zxid

    patch.setattr(ZooKeeperClient, "watch_fired", noting)
    patch.setattr(broker_changes, "read_brokers", as_it_was)


def bounce_unnoticed(patch: Patch) -> None:
    """A broker is its id, whichever life it is in (S29)."""

    async def by_id(term: Term) -> tuple[list[LiveBroker], int]:
        brokers, zxid = await read_brokers(term)
        return [term.context.broker(broker.id) or broker for broker in brokers], zxid

    patch.setattr(broker_changes, "read_brokers", by_id)


def notifications_deleted_unread(patch: Patch) -> None:
    """What is deleted is what is there by then, not what was read (S23)."""
    delete = znode_changes.delete_children

    async def all_there(term: Term, parent: str, names: Sequence[str]) -> None:
        await delete(term, parent, await znode_changes.list_children(term, parent))

    patch.setattr(isr_changes, "delete_children", all_there)


def notifications_deleted_before_they_are_read(patch: Patch) -> None:
    listing, delete = znode_changes.list_children, znode_changes.delete_children

    async def deleting(term: Term, parent: str) -> tuple[str, ...]:
        names = await listing(term, parent)
        await delete(term, parent, names)
        return names

    patch.setattr(isr_changes, "list_children", deleting)


# -- who is told what, and in which order


def who_lives_is_told_last(patch: Patch) -> None:
    """A new controller tells of leaders first, and of who lives afterwards (S32)."""
    complete = reassignment.take_up
    late: list[RequestBatch] = []
    send = RequestBatch.send

    def held_back(self: RequestBatch) -> None:
        if not self._leader_and_isr and not any(len(rows) for rows in self._metadata_rows):
            late.append(self)
        else:
            send(self)

    async def then_told(term: Term) -> int:
        while late:
            send(late.pop(0))
        return await complete(term)

    patch.setattr(RequestBatch, "send", held_back)
    patch.setattr(reassignment, "take_up", then_told)


def the_one_that_goes_is_not_told(patch: Patch) -> None:
    """LeaderAndIsr to those that stay alone (S46)."""
    decide = state_changes._decide_controlled_shutdown

    async def without(term: Term, rows: Any) -> state_changes.Decision:
        decision = await decide(term, rows)
        return msgspec.structs.replace(decision, receivers=term.context.eligible(rows))

    patch.setattr(
        controlled_shutdown, "CONTROLLED_SHUTDOWN", state_changes.ElectionRule("controlled shutdown", without)
    )


# -- ISRs


def last_member_removed(patch: Patch) -> None:
    """An ISR may become empty (S37)."""
    shrunk = state_changes._shrunk

    def emptied(term: Term, rows: Any, leaving: Any, every_leader: bool) -> Any:
        states, writing = shrunk(term, rows, leaving, every_leader)
        isr = states.isr.copy()
        isr[states.leader < 0] = -1
        return msgspec.structs.replace(states, isr=isr), writing

    patch.setattr(state_changes, "_shrunk", emptied)


def alter_isr_bumps_the_epoch(patch: Patch) -> None:
    """A change that the leader asked for counts as one of the controller's own."""

    async def bumped(term: Term, states: Any) -> Any:
        epochs = (states.leader_epoch + 1).astype(np.int32)
        return await set_states(term, msgspec.structs.replace(states, leader_epoch=epochs))

    patch.setattr(isr_changes, "set_states", bumped)


def one_that_goes_may_join(patch: Patch) -> None:
    """Live is live, shutting down or not (S39)."""
    decision = isr_changes._decision

    def lenient(*arguments: Any) -> ErrorCode | None:
        error = decision(*arguments)
        joins = error in (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)
        return None if joins and _live(*arguments) else error

    patch.setattr(isr_changes, "_decision", lenient)


def _live(term: Term, _sender: int, present: Any, asked: AlterIsrPartition, _version: int) -> bool:
    """Return whether those who join live, in the incarnations that the leader names."""
    joining = set(asked.new_isr).difference(present.isr)
    return joining.issubset(term.context.broker_ids) and not isr_changes._of_earlier_lives(term, joining, asked)


def a_later_leader_is_fenced(patch: Patch) -> None:
    """Whoever has another epoch than this controller is told that it is behind (S42)."""
    decision = isr_changes._decision

    def fenced(*arguments: Any) -> ErrorCode | None:
        error = decision(*arguments)
        return ErrorCode.FENCED_LEADER_EPOCH if error is ErrorCode.NOT_CONTROLLER else error

    patch.setattr(isr_changes, "_decision", fenced)


def s42() -> None:
    for why, asked, error in test_isr_changes.REFUSALS:
        test_isr_changes.test_a_change_that_cant_be_is_refused_and_nothing_is_written(why, asked, error)


def s08() -> None:
    for which in ("epoch's creation", "first term", "taken over"):
        test_leadership.test_a_lost_reply_is_settled_by_looking_again(applied=True, which=which)


def shutdown_handled_by_a_deposed_controller() -> None:
    deposed = next(strike for strike in interruption.STRIKES if strike.name == "is deposed inside its session")
    interruption.every_place(operations.SHUTDOWN, deposed)


FAULTS = (
    Fault("owner not checked at the election", owner_not_checked, test_leadership.old_session_scenario),
    Fault("a won election given up", lost_reply_taken_for_a_loss, s08),
    Fault("epoch taken from ZooKeeper: requests", epoch_from_zookeeper, test_epochs.requests_carry_the_epoch_won),
    Fault("epoch taken from ZooKeeper: writes", epoch_from_zookeeper, test_epochs.writes_need_the_epoch_won),
    Fault("fence not checked", fence_not_checked, shutdown_handled_by_a_deposed_controller),
    Fault(
        "handlers run after the resignation",
        handlers_without_a_term,
        test_terms.test_s04_a_handler_checks_that_it_leads_when_its_turn_comes,
    ),
    Fault("gauge kept", gauge_kept, test_terms.test_s10_the_gauge_says_nobody_when_nobody_leads),
    Fault(
        "stands no more in a session that lives on",
        stands_no_more,
        test_terms.test_s03_a_fenced_write_ends_the_term_and_nothing_more_is_written,
    ),
    Fault("batch kept over a resignation", batch_kept, test_batches.the_second_term_sends_what_is_its_own),
    Fault(
        "callback answered twice",
        answered_twice,
        test_terms.test_s19_every_queued_callback_is_answered_once_at_resignation,
    ),
    Fault(
        "callback dropped",
        callback_dropped,
        test_terms.test_s19_every_queued_callback_is_answered_once_at_resignation,
    ),
    Fault(
        "event acts on stale children", stale_children, test_broker_changes.test_s22_many_brokers_at_once_are_one_look
    ),
    Fault(
        "bounced broker unnoticed",
        bounce_unnoticed,
        test_broker_changes.test_s29_a_bounce_is_a_failure_and_a_start_up,
    ),
    Fault("notifications deleted unread", notifications_deleted_unread, test_unread.nothing_is_deleted_unread),
    Fault(
        "notifications deleted before they are read",
        notifications_deleted_before_they_are_read,
        test_isr_changes.test_s28_a_notification_tells_of_the_partitions_that_it_names_and_no_others,
    ),
    Fault(
        "LeaderAndIsr before UpdateMetadata",
        who_lives_is_told_last,
        test_failover.test_s32_update_metadata_precedes_leader_and_isr,
    ),
    Fault(
        "the broker that goes is not told",
        the_one_that_goes_is_not_told,
        test_controlled_shutdown.test_s46_the_broker_that_goes_is_told_that_it_leads_no_more,
        red=IndexError,
    ),
    Fault("last ISR member removed", last_member_removed, test_failover.test_s37_the_last_of_an_isr_stays_in_it),
    Fault(
        "AlterIsr bumps the leader epoch",
        alter_isr_bumps_the_epoch,
        test_isr_changes.test_an_isr_grows_keeping_the_leader_epoch_and_all_hear_of_it,
    ),
    Fault(
        "one that shuts down joins an ISR",
        one_that_goes_may_join,
        test_isr_changes.test_s39_a_follower_that_shuts_down_joins_no_isr,
    ),
    Fault("a leader that is ahead is fenced", a_later_leader_is_fenced, s42),
)
