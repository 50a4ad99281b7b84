"""The clients of a consumer group on real processes, by number, and the group's history.

Each life of a client is a process (`group_member.py`), so that it can die without leaving, and stand still. The same
changes and the same history as in simulation (`controller/simulator/group_members.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.chaos.client import Connect
from controller.chaos.client_process import ClientLife, Event, StopsOfClient, Undo
from controller.chaos.clock import ScenarioClock
from controller.chaos.transactional_clients import CLIENT, TransactionalSetup, TransactionEvents
from controller.scenarios.faults import ChangeMember
from controller.scenarios.records.group_checks import NOT_COMMITTED, group_at_rest, group_behind
from controller.scenarios.records.group_history import GROUP, FormerMember, GroupHistory, GroupLog, MemberAssignment
from controller.scenarios.records.history import ReadLog
from controller.scenarios.records.workload import MEMBERS_MAX, PartitionName, RecordWorkload

REBALANCE_TIMEOUT_MS = 4_000
GROUP_SETTLES_MS = 60_000.0
LEAVE_S = 10.0
ASK_OFFSETS_S = 20.0
MEMBER = "controller.chaos.group_member"

_LOOK_MS = 50.0


class _Life(ClientLife):
    """A client from its start to its end; its events are taken under the group's lock."""

    def __init__(self, group: RealGroup, number: int) -> None:
        self.assignment: MemberAssignment | None = None
        self._group = group
        self._number = number
        self._reads: ReadLog | None = None
        self._commits: dict[tuple[int, int], int] = {}
        self._transactions: TransactionEvents | None = None
        config, program = group.config(number), MEMBER
        if group.setup is not None:
            name = f"transformer-{number}"
            log = group.setup.new(name)
            self._transactions = TransactionEvents(log)
            config = {**group.setup.config(name, log), **group.transforming(config)}
            program = CLIENT
        self._offsets: dict[int, list[int]] = {}
        """By transaction, the numbers of its commits."""
        self._consuming = range(0)
        super().__init__(program, config, group.log_file(number), group.lock, group.stops[number])

    def _take_transaction(self, transactions: TransactionEvents, event: Event) -> None:
        log, number = self._group.log, self._number
        transactions.take(event)
        match event:
            case ["consuming", first, end]:
                self._consuming = range(first, end)
            case ["began", _] if self._reads is not None:
                for row in self._consuming:
                    self._reads.consumed(row, len(transactions.transactions) - 1)
            case ["sending-offsets", transaction, member_id, generation, offsets, at_ms]:
                self._pending = offsets
                self._offsets[transaction] = [
                    log.committing(number, member_id, generation, place, offset, at_ms) for place, offset in offsets
                ]
            case ["offsets-sent", transaction]:
                for place, offset in self._pending:
                    transactions.transactions.offset_sent(transaction, place, offset)
            case ["ended", transaction, committed, at_ms]:
                for commit in self._offsets.pop(transaction, []):
                    log.committed(commit, at_ms, "" if committed else NOT_COMMITTED)

    def take(self, event: Event) -> None:
        log, number = self._group.log, self._number
        if self._transactions is not None:
            self._take_transaction(self._transactions, event)
        match event:
            case ["assigned", member_id, generation, places, at_ms]:
                static = self._group.workload.static_members
                self._give_up(at_ms)
                self.assignment = log.assigned(number, member_id, generation, places, at_ms, static=static)
                transactions = None if self._transactions is None else self._transactions.transactions
                self._reads = ReadLog(
                    self.assignment.reader, committed=transactions is not None, transactions=transactions
                )
                self._group.reads.append(self._reads)
            case ["gave-up", at_ms]:
                self._give_up(at_ms)
            case ["fetched", offsets, sent_ms, at_ms]:
                for place, offset in offsets:
                    log.read(number, place, offset, sent_ms, at_ms)
            case ["read", place, offset, producer, sequence, key, at_ms] if self._reads is not None:
                self._reads.read(place, offset, producer, sequence, key, at_ms)
            case ["committing", which, member_id, generation, offsets, at_ms]:
                for place, offset in offsets:
                    self._commits[which, place] = log.committing(number, member_id, generation, place, offset, at_ms)
            case ["committed", which, results, at_ms]:
                for place, error in results:
                    log.committed(self._commits[which, place], at_ms, error)
            case ["former", member_id, error, sent_ms, at_ms] if (
                self.superseded and self._group.workload.static_members
            ):
                log.ended(FormerMember(number, member_id, error, sent_ms, at_ms))

    def _give_up(self, at_ms: float) -> None:
        if self.assignment is not None:
            self._group.log.gave_up(self.assignment, at_ms)
            self.assignment = None

    def given_up(self) -> None:
        """It reads no more for the group, which it may not know itself."""
        with self._group.lock:
            self._give_up(self._group.now_ms())

    def end(self) -> None:
        self.process.kill()
        self.given_up()


class RealGroup:
    """The clients of the workload's group; those that it begins with are started. `folder` gets their logs."""

    def __init__(
        self,
        connect: Connect,
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
        clock: ScenarioClock,
        folder: Path,
        common: Mapping[str, object],
        setup: TransactionalSetup | None = None,
    ) -> None:
        self.setup = setup
        self.stops = {number: StopsOfClient() for number in range(MEMBERS_MAX)}
        self.workload = workload
        self.now_ms = clock.now_ms
        self.lock = threading.Lock()
        self.log = GroupLog(repeats=True, session_ms=workload.group_session_ms)
        self.reads: list[ReadLog] = []
        self._connect = connect
        self._partitions = tuple(partitions)
        self._clock = clock
        self._folder = folder
        self._common = common
        self._lives: dict[int, _Life] = {}
        self._former: list[_Life] = []
        self._settled: bool | None = None
        self._detail = ""
        self._live_at_end: list[int] | None = None
        for number in range(workload.members):
            self._begin(number)

    def config(self, number: int) -> dict[str, object]:
        session_ms = self.workload.group_session_ms
        client: dict[str, object] = {
            **self._common,
            **self._connect,
            "client.id": f"member-{number}",
            "group.id": GROUP,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(session_ms // 3, 1),
            "max.poll.interval.ms": max(REBALANCE_TIMEOUT_MS, session_ms),
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "socket.timeout.ms": max(5_000, REBALANCE_TIMEOUT_MS + 1_000),
        }
        if self.workload.static_members:
            client["group.instance.id"] = f"instance-{number}"
        return {"client": client, "partitions": self._partitions, "zero_ms": self._clock.zero_ms}

    def transforming(self, config: Mapping[str, object]) -> dict[str, object]:
        """What the configuration of a member that transforms has besides that of a producer."""
        client = config["client"]
        assert isinstance(client, dict)
        return {"client": client | {"isolation.level": "read_committed"}, "inputs": self._partitions, "group": True}

    def log_file(self, number: int) -> Path:
        return self._folder / f"member-{number}.log"

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    # -- changes

    def change(self, fault: ChangeMember) -> Undo | None:
        """Carry out a change. Return what ends it; None if it makes no sense now."""
        life = self._lives.get(fault.member)
        if life is None or not life.process.is_running:
            life = None
        if fault.how == "join":
            if life is not None and not life.process.leaving:
                return None
            self._begin(fault.member)
            return lambda: self._leave(fault.member)
        if life is None:
            return None
        if fault.how in ("pause", "resume"):
            return life.stand_still() if fault.how == "pause" else life.go_on()
        if fault.how == "replace":
            return self._replace(fault.member, life)
        if fault.how == "leave":
            self._leave(fault.member)
        else:
            life.end()
        return lambda: self._begin(fault.member)

    def _begin(self, number: int) -> None:
        """Start a client, unless it runs already."""
        life = self._lives.get(number)
        if life is not None and life.process.is_running:
            if not life.process.leaving:
                return
            self._end_in_order(life)
        self._lives[number] = _Life(self, number)

    def _leave(self, number: int) -> None:
        self._lives[number].process.leave()

    def _end_in_order(self, life: _Life) -> None:
        if not life.process.wait(LEAVE_S):
            life.end()
        life.given_up()

    def _replace(self, number: int, life: _Life) -> Undo:
        """The client stands still and another takes its place, under its group.instance.id if it has one."""
        life.give_way()
        life.given_up()
        self._former.append(life)
        self._lives[number] = _Life(self, number)
        return life.process.resume

    # -- the end

    def settle(self, ends: Sequence[int]) -> None:
        """Wait until the group has read and committed everything, and every live client has its assignment."""
        for life in self._former:
            life.end()
        for life in self._lives.values():
            if life.process.is_paused:
                life.process.resume()
        if not self.live:
            self._begin(0)
        give_up_ms = self.now_ms() + GROUP_SETTLES_MS
        while not (settled := self._at_rest(ends)) and self.now_ms() < give_up_ms:
            self._clock.sleep(_LOOK_MS)
        with self.lock:
            self._settled, self._detail = settled, group_behind(self.log, ends, self._partitions)

    def end_transactions(self) -> list[int]:
        """End what dead members left open. Return the committed offset of each of the group's partitions, -1: none."""
        from confluent_kafka import Consumer, TopicPartition

        assert self.setup is not None
        known = {log.transactions.transactional_id for log in self.setup.logs if log.transactions is not None}
        for number in sorted(set(range(MEMBERS_MAX)) - set(self.live)):
            if f"transformer-{number}" in known:
                self.setup.end_open(f"transformer-{number}")
        asker: Any = Consumer({**self._common, **self._connect, "group.id": GROUP, "isolation.level": "read_committed"})
        try:
            found = asker.committed([TopicPartition(*one) for one in self._partitions], ASK_OFFSETS_S)
        finally:
            asker.close()
        return [max(one.offset, -1) for one in found]

    def _at_rest(self, ends: Sequence[int]) -> bool:
        with self.lock:
            return group_at_rest(self.log, self.live, ends, self._partitions)

    @property
    def live(self) -> list[int]:
        """The clients that take part."""
        return [
            number
            for number, life in sorted(self._lives.items())
            if life.process.is_running and not life.process.leaving
        ]

    @property
    def errors(self) -> list[str]:
        found = [(number, life.process.error) for number, life in sorted(self._lives.items())]
        return [f"member {number} {error}" for number, error in found if error is not None]

    def history(self) -> GroupHistory:
        with self.lock:
            live = self._live_at_end or ()
            return self.log.history(live, self._settled, self._detail, len(self._partitions))

    def close(self) -> None:
        """End all clients at once. Safe to call twice."""
        if self._live_at_end is None:
            self._live_at_end = self.live
        for life in [*self._former, *self._lives.values()]:
            life.process.kill()
