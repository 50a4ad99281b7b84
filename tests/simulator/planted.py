"""The swarm against our own code with a fault in it: how many seeds until one of them finds it.

`python -m tests.simulator.planted --seeds 0..1999` takes every fault in turn (or those that are named), plants it, runs
the swarm's plans until one is violated, and prints a row of the table in docs/swarm-faults.md. A fault is a wrong
variant of one production method, at a place where an incident happened; many are those of `tests.incidents.faults`.
Of those, some do no harm that a whole cluster shows (a won election that is given up is won again, with one more
epoch), or are in what no broker here uses (ISR notifications through ZooKeeper): they are not among these.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.broker.broker import Broker
from controller.broker.isr_manager import IsrManager
from controller.broker.metadata import MetadataCache
from controller.broker.replica_manager import ReplicaManager
from controller.core import broker_bounces, leadership, state_changes, topic_deletion
from controller.core.channels import _Channel
from controller.core.context import Replicas
from controller.core.controller import Controller
from controller.core.event_loop import EventQueue
from controller.core.handlers import broker_changes, isr_changes, topic_changes
from controller.scenarios.language import Plan
from controller.simulator.plan_generator import draw_plan
from controller.simulator.safety_checker import Violation
from controller.simulator.swarm import run_plan
from controller.zookeeper.client import StandingWatches, ZooKeeperClient
from controller.zookeeper.operations import SetData
from tests.core import test_planted_faults as core_faults
from tests.incidents import faults
from tests.scenarios import test_planted_faults as scenario_faults
from tests.simulator.planted_elections import ELECTION_FAULTS
from tests.simulator.planted_groups import GROUP_FAULTS
from tests.simulator.planted_hostile import HOSTILE_FAULTS
from tests.simulator.planted_operations import OPERATION_FAULTS
from tests.simulator.planted_reassignments import REASSIGNMENT_FAULTS
from tests.simulator.planted_records import RECORD_FAULTS
from tests.simulator.planted_tiers import TIER_FAULTS
from tests.simulator.planted_zookeeper import ZOOKEEPER_FAULTS

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


async def nothing(*arguments: Any, **options: Any) -> Any:
    return np.empty(0, dtype=np.int64)


async def none(*arguments: Any, **options: Any) -> int:
    return 0


def lease_ignored(patch: Patch) -> None:
    """It leads for as long as nobody tells it otherwise (S12)."""
    patch.setattr(Controller, "void_reason", lambda self: None)
    patch.setattr(Controller, "lease_until_ms", lambda self: math.inf)
    patch.setattr(ZooKeeperClient, "lease_until_ms", lambda self: math.inf)


def watches_not_set_again(patch: Patch) -> None:
    """S27: after a reconnection nobody is told of anything."""
    patch.setattr(StandingWatches, "connected", lambda self, same_session: None)


def watch_fires_once(patch: Patch) -> None:
    patch.setattr(StandingWatches, "fired", core_faults.fired_without_arming)


def events_coalesce_for_good(patch: Patch) -> None:
    """An event that was taken still counts as pending: what changes while it is handled is not looked at (S22)."""
    take = EventQueue.take

    def taken(self: EventQueue) -> Any:
        event = take(self)
        if event is not None and event.coalesces:
            self._pending.add(event)
        return event

    def put_anew(self: EventQueue, event: Any) -> None:
        if event.coalesces and event in self._pending and event in self._waiting:
            return
        put(self, event)
        if event.coalesces and event not in self._waiting:
            self._dropped = getattr(self, "_dropped", 0) + 1  # type: ignore[attr-defined]
            if self._dropped % 2:  # type: ignore[attr-defined]
                self._pending.discard(event)

    put = EventQueue.put
    patch.setattr(EventQueue, "take", taken)
    patch.setattr(EventQueue, "put", put_anew)


def request_leaves_its_queue_when_sent(patch: Patch) -> None:
    """Whatever comes of it, it is not sent again (S33)."""
    serve = _Channel._serve

    async def serving(self: _Channel, connection: Any) -> Any:
        error = await serve(self, connection)
        if self._queue:
            self._queue.popleft()
        return error

    patch.setattr(_Channel, "_serve", serving)


def resent_behind_the_next(patch: Patch) -> None:
    """A request that was not answered goes to the end of its queue (S33)."""
    serve = _Channel._serve

    async def serving(self: _Channel, connection: Any) -> Any:
        error = await serve(self, connection)
        if len(self._queue) > 1:
            self._queue.append(self._queue.popleft())
        return error

    patch.setattr(_Channel, "_serve", serving)


def controller_epoch_not_checked(patch: Patch) -> None:
    """Brokers obey whoever asks (S01, S31)."""
    patch.setattr(ReplicaManager, "_stale", lambda self, api, controller_id, epoch: False)


def broker_epoch_not_checked(patch: Patch) -> None:
    """What was meant for a former life is obeyed (S29)."""
    patch.setattr(Broker, "_is_of_earlier_incarnation", lambda self, exchange, request: False)


def leader_epoch_not_checked(patch: Patch) -> None:
    """A role is taken whatever leader epoch it is of (S30)."""
    apply = ReplicaManager._apply

    def applied(self: ReplicaManager, request: Any, topic: Any, state: Any, taken: Any) -> Any:
        partition = self.partition(topic.topic_name, state.partition_index)
        if partition is not None and state.leader_epoch < partition.leader_epoch:
            partition.leader_epoch = state.leader_epoch - 1
        return apply(self, request, topic, state, taken)

    patch.setattr(ReplicaManager, "_apply", applied)


def metadata_of_a_former_registration_kept(patch: Patch) -> None:
    """A broker that comes back in another session keeps topics that were deleted meanwhile."""

    def update(self: MetadataCache, request: Any) -> None:
        self.snapshot = self.snapshot.updated(request)

    patch.setattr(MetadataCache, "update", update)


def session_end_unheard(patch: Patch) -> None:
    """A controller whose session has ended is not told (S15)."""
    patch.setattr(Controller, "_session_expired", lambda self, event: None)
    patch.setattr(Controller, "void_reason", lambda self: None)


def election_without_the_epoch(patch: Patch) -> None:
    """The epoch is read, not raised: two terms have the same one."""
    attempt = leadership._attempt

    def same_epoch(session: int, broker_id: int, wall_ms: int, controller: Any, epoch: Any, *rest: Any) -> Any:
        made = attempt(session, broker_id, wall_ms, controller, epoch, *rest)
        claim, raised = made.operations
        assert isinstance(raised, SetData)
        as_before = msgspec.structs.replace(raised, data=epoch.data)
        return msgspec.structs.replace(made, epoch=made.epoch - 1, operations=(claim, as_before))

    patch.setattr(leadership, "_attempt", same_epoch)


def isr_in_the_wrong_order(patch: Patch) -> None:
    patch.setattr(state_changes, "elect_offline_columns", core_faults.isr_reversed)


def leader_by_the_isrs_order(patch: Patch) -> None:
    patch.setattr(state_changes, "elect_offline_columns", core_faults.leader_from_the_isr)


def dead_replicas_stay(patch: Patch) -> None:
    """S38: dead brokers stay in their ISRs."""
    patch.setattr(state_changes, "shrink", nothing)


def shrinking_keeps_the_epoch(patch: Patch) -> None:
    patch.setattr(state_changes, "_shrunk", core_faults.bump_nothing)


def nobody_elected_at_the_start(patch: Patch) -> None:
    patch.setattr(state_changes, "elect_offline_and_new", nothing)


def nobody_elected_for_the_dead(patch: Patch) -> None:
    patch.setattr(broker_changes, "elect_for_lost_leaders", nothing)


def those_who_go_may_lead(patch: Patch) -> None:
    patch.setattr("controller.core.context.ControllerContext.mark_shutting_down", core_faults.forget)


def changes_before_the_watch_lost(patch: Patch) -> None:
    """S25: what changed between reading and watching is not told."""
    patch.setattr(ZooKeeperClient, "watch_many", core_faults.watch_from_now)


def callbacks_forgotten(patch: Patch) -> None:
    """S19: nothing queued is answered when a term ends."""
    patch.setattr(EventQueue, "close_callbacks", lambda self: None)


def isr_frozen(patch: Patch) -> None:
    """Followers that have caught up do not come back into the ISR."""
    patch.setattr(IsrManager, "_check_partitions", lambda self, opened: None)


def pending_deletions_not_taken_up(patch: Patch) -> None:
    """S56c: a new controller does not look at what is to be deleted."""
    patch.setattr(topic_deletion, "take_up", none)
    patch.setattr(topic_deletion, "resume", none)


def deletion_not_gone_on_with(patch: Patch) -> None:
    """A topic whose replica was dead is not deleted when that comes back."""
    patch.setattr(topic_deletion, "resume_for", nothing)


def created_partitions_not_told(patch: Patch) -> None:
    """A topic's new partitions have no state."""
    patch.setattr(topic_changes, "create_partitions", nothing)


def proposals_never_cleared(patch: Patch) -> None:
    """S43: the one slot of a partition stays taken."""
    patch.setattr(IsrManager, "_empty_slot", lambda self, key, partition: None)


def bounce_before_the_term_unnoticed(patch: Patch) -> None:
    """Who came back while no controller looked has what it had."""
    nobody = broker_bounces.Bounced(np.empty(0, np.int64), Replicas(np.empty(0, np.int64), np.empty(0, np.int64)))
    patch.setattr(broker_bounces, "demote_bounced", lambda term, mzxids: nobody)


def isr_change_at_any_version(patch: Patch) -> None:
    """S47: the znode's version that a leader names is not looked at."""
    decision = isr_changes._decision

    def lenient(*arguments: Any) -> Any:
        error = decision(*arguments)
        return None if error is not None and error.name == "INVALID_UPDATE_VERSION" else error

    patch.setattr(isr_changes, "_decision", lenient)


FAULTS: Mapping[str, Plant] = {
    "owner-not-checked": faults.owner_not_checked,
    "epoch-from-zookeeper": faults.epoch_from_zookeeper,
    "fence-not-checked": faults.fence_not_checked,
    "handlers-without-a-term": faults.handlers_without_a_term,
    "gauge-kept": faults.gauge_kept,
    "stands-no-more": faults.stands_no_more,
    "batch-kept": faults.batch_kept,
    "answered-twice": faults.answered_twice,
    "callback-dropped": faults.callback_dropped,
    "bounce-unnoticed": faults.bounce_unnoticed,
    "who-lives-is-told-last": faults.who_lives_is_told_last,
    "the-one-that-goes-is-not-told": faults.the_one_that_goes_is_not_told,
    "last-member-removed": faults.last_member_removed,
    "alter-isr-bumps-the-epoch": faults.alter_isr_bumps_the_epoch,
    "one-that-goes-may-join": faults.one_that_goes_may_join,
    "a-later-leader-is-fenced": faults.a_later_leader_is_fenced,
    "silent-resignation": scenario_faults.silent_resignation,
    "lease-ignored": lease_ignored,
    "watches-not-set-again": watches_not_set_again,
    "watch-fires-once": watch_fires_once,
    "events-coalesce-for-good": events_coalesce_for_good,
    "request-leaves-its-queue-when-sent": request_leaves_its_queue_when_sent,
    "resent-behind-the-next": resent_behind_the_next,
    "controller-epoch-not-checked": controller_epoch_not_checked,
    "broker-epoch-not-checked": broker_epoch_not_checked,
    "leader-epoch-not-checked": leader_epoch_not_checked,
    "metadata-of-a-former-registration-kept": metadata_of_a_former_registration_kept,
    "session-end-unheard": session_end_unheard,
    "election-without-the-epoch": election_without_the_epoch,
    "isr-in-the-wrong-order": isr_in_the_wrong_order,
    "leader-by-the-isrs-order": leader_by_the_isrs_order,
    "dead-replicas-stay": dead_replicas_stay,
    "shrinking-keeps-the-epoch": shrinking_keeps_the_epoch,
    "nobody-elected-at-the-start": nobody_elected_at_the_start,
    "nobody-elected-for-the-dead": nobody_elected_for_the_dead,
    "those-who-go-may-lead": those_who_go_may_lead,
    "changes-before-the-watch-lost": changes_before_the_watch_lost,
    "callbacks-forgotten": callbacks_forgotten,
    "isr-frozen": isr_frozen,
    "pending-deletions-not-taken-up": pending_deletions_not_taken_up,
    "deletion-not-gone-on-with": deletion_not_gone_on_with,
    "created-partitions-not-told": created_partitions_not_told,
    "proposals-never-cleared": proposals_never_cleared,
    "isr-change-at-any-version": isr_change_at_any_version,
    "bounce-before-the-term-unnoticed": bounce_before_the_term_unnoticed,
    **ELECTION_FAULTS,
    **RECORD_FAULTS,
    **REASSIGNMENT_FAULTS,
    **OPERATION_FAULTS,
    **HOSTILE_FAULTS,
    **GROUP_FAULTS,
    **ZOOKEEPER_FAULTS,
    **TIER_FAULTS,
}


@dataclass(frozen=True, slots=True)
class Found:
    """`seeds`: how many were run, the one that found it included; `violation` None if none did."""

    fault: str
    seeds: int
    cpu_s: float
    plan: Plan | None
    violation: Violation | None


def search(fault: str, seeds: range) -> Found:
    """Plants it, and runs plans until one breaks. An exception that reaches the simulator counts as found: it would
    have ended the process."""
    began_s = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](patch)
        for count, seed in enumerate(seeds, 1):
            plan = draw_plan(seed, tiers=fault in TIER_FAULTS)
            try:
                violation = run_plan(plan).violation
            except Exception as error:  # noqa: BLE001 - told as what it found
                violation = Violation("no-defects", 0.0, (), f"{type(error).__name__}: {error}")
            if violation is not None:
                return Found(fault, count, time.process_time() - began_s, plan, violation)
    return Found(fault, len(seeds), time.process_time() - began_s, None, None)


def rows(names: list[str], seeds: range) -> Iterator[str]:
    for name in names:
        found = search(name, seeds)
        if found.violation is None or found.plan is None:
            yield f"| `{name}` | not within {found.seeds} | | {found.cpu_s:.0f} |"
        else:
            told = found.violation.detail.splitlines()[-1 if "Traceback" in found.violation.detail else 0]
            told = told[:90].replace("|", "/")
            yield f"| `{name}` | {found.seeds} | {found.violation.invariant}: {told} | {found.cpu_s:.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0..1999")
    parser.add_argument("fault", nargs="*", choices=[[], *FAULTS], default=[])
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    print("| fault | seeds | what was violated | CPU s |\n| --- | --- | --- | --- |", flush=True)
    missed = 0
    for row in rows(arguments.fault or list(FAULTS), range(int(first), int(last) + 1)):
        missed += "not within" in row
        print(row, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
