"""ISR changes below inter-broker protocol 2.7, where there is no AlterIsr: the leader writes the state znode itself,
and names the partitions to the controller in a notification znode seconds later. Kafka's ZkIsrManager.

Which ISR to write is decided in `isr_changes.py`, which takes the outcome as it takes the controller's answer. On the
broker's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from controller.broker.isr_proposals import Key, Proposal
from controller.clock import Clock, Timer
from controller.pending import Pending
from controller.protocol.control_values import AlterIsrPartitionResult
from controller.protocol.errors import ErrorCode
from controller.trace import Noted, Trace
from controller.zookeeper.codecs import PartitionState
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import DamagedZnode, ZooKeeperError

CHECK_MS = 2_500.0
LINGER_MS = 5_000.0
"""No change for so long, and what changed is notified of."""
DELAY_MAX_MS = 60_000.0
"""The last notification is so old, and what changed is notified of although changes go on."""
WRITES_AT_ONCE = 100

Results: TypeAlias = dict[Key, AlterIsrPartitionResult]


class StateWrites(Protocol):
    """What of `BrokerDataWrites` is needed."""

    async def change_isr(self, topic: str, partition: int, state: PartitionState, version: int) -> StateFound: ...

    async def notify_of_isr_changes(self, partitions: tuple[Key, ...]) -> None: ...


StateFound: TypeAlias = tuple[PartitionState, int] | None
"""The state that stands and its version, None if there is none."""


class IsrZnodes:
    """`controller_epoch` gives that of a partition's latest LeaderAndIsr, which the state keeps."""

    def __init__(
        self, broker: int, writes: StateWrites, controller_epoch: Callable[[Key], int], clock: Clock, trace: Trace
    ) -> None:
        self._broker = broker
        self._writes = writes
        self._controller_epoch = controller_epoch
        self._clock = clock
        self._trace = trace
        self._changed: dict[Key, None] = {}
        self._changed_ms = self._notified_ms = clock.now_ms()
        self._timer: Timer | None = None

    def change(self, proposals: Mapping[Key, Proposal], done: Callable[[Pending[Results]], None]) -> None:
        """Writes the proposed ISRs, and calls `done` with what came of each, in the terms of AlterIsr's answer."""
        states = {
            key: PartitionState(self._broker, one.leader_epoch, one.isr, self._controller_epoch(key))
            for key, one in proposals.items()
        }
        answer = drive(self._change(proposals, states))
        answer.on_done(lambda: self._hop(lambda: self._settle(proposals, answer, done)))

    async def _change(self, proposals: Mapping[Key, Proposal], states: Mapping[Key, PartitionState]) -> Results:
        results: Results = {}
        keys = list(proposals)
        for start in range(0, len(keys), WRITES_AT_ONCE):
            sent = [
                (key, drive(self._writes.change_isr(*key, states[key], proposals[key].zk_version)))
                for key in keys[start : start + WRITES_AT_ONCE]
            ]
            for key, written in sent:
                try:
                    results[key] = _result(key, proposals[key], self._broker, await written)
                except DamagedZnode:
                    results[key] = _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)
        return results

    def _settle(
        self, proposals: Mapping[Key, Proposal], answer: Pending[Results], done: Callable[[Pending[Results]], None]
    ) -> None:
        try:
            results = answer.result()
        except ZooKeeperError:
            results = {}  # some may be written all the same; they are found so, or written, when they are tried again
        for key, result in results.items():
            if result.error_code == ErrorCode.NONE and result.current_isr_version > proposals[key].zk_version:
                self._changed[key] = None
                self._changed_ms = self._clock.now_ms()
        self._check_later()
        done(answer)

    def _hop(self, go_on: Callable[[], None]) -> None:
        """From the ZooKeeper client's thread to the broker's."""
        self._clock.call_later(0.0, go_on)

    # -- the controller's notification

    def _check_later(self) -> None:
        if self._changed and self._timer is None:
            self._timer = self._clock.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        if now_ms - self._changed_ms <= LINGER_MS and now_ms - self._notified_ms <= DELAY_MAX_MS:
            self._check_later()
            return
        keys, self._changed = tuple(self._changed), {}
        self._notified_ms = now_ms
        notified = drive(self._writes.notify_of_isr_changes(keys))
        notified.on_done(lambda: self._hop(lambda: self._notified(keys, notified)))

    def _notified(self, keys: tuple[Key, ...], notified: Pending[None]) -> None:
        try:
            notified.result()
        except ZooKeeperError as error:
            self._trace.emit(
                Noted("warning", f"the controller is not notified of {len(keys)} ISR changes yet: {error}")
            )
            self._changed = dict.fromkeys(keys) | self._changed
        self._check_later()


def _result(key: Key, proposal: Proposal, broker: int, found: StateFound) -> AlterIsrPartitionResult:
    if found is None:
        return _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)
    state, version = found
    if (state.leader, state.leader_epoch) != (broker, proposal.leader_epoch):
        return _error(key, ErrorCode.FENCED_LEADER_EPOCH)
    if broker not in state.isr or len(set(state.isr)) < len(state.isr):
        return _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)  # tried again: somebody may mend it
    return AlterIsrPartitionResult(key[1], ErrorCode.NONE, state.leader, state.leader_epoch, state.isr, version)


def _error(key: Key, error: ErrorCode) -> AlterIsrPartitionResult:
    return AlterIsrPartitionResult(key[1], error)
