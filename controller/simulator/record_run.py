"""Records in a plan's run: clients that write and read while faults are on, and what must have become of it at rest.

Which promises hold depends on the plan, and on what befell its disks. Without unclean elections, and unless a
partition's leader had forgotten records (`DataLossModel`), what is below a high watermark stays, and all of the ISR has
it: so nothing is lost that was acknowledged with `acks=all`, and nothing that a consumer has read. Whatever the plan,
nothing is there that was not sent, nor twice if its producer is idempotent, and no consumer sees beyond the high
watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.broker.groups.offsets_topic import OFFSETS_TOPIC
from controller.broker.partition import Partition, Role
from controller.broker.transactions.transaction import TRANSACTIONS_TOPIC
from controller.clock import spawn
from controller.machine.process import ProcessState
from controller.scenarios.faults import CreateTopic
from controller.scenarios.host import PartitionView
from controller.scenarios.invariants import Finding
from controller.scenarios.language import Plan, PlanRecords
from controller.scenarios.records import checks
from controller.scenarios.records.checks import RecordChecker, RecordEvidence
from controller.scenarios.records.delivery_audit import DeliveryAudit, beyond_high_watermark
from controller.scenarios.records.workload import ACKS_ALL, PartitionName, RecordWorkload, TransactionWorkload
from controller.simulator.consumer import WRONG_CRC
from controller.simulator.host import SimulatedHost
from controller.simulator.liveness_checker import LivenessChecker, Unmet
from controller.simulator.record_clients import OFFSETS_UNSTABLE
from controller.storage import PartitionLog
from controller.storage.batches import headers_of, whole_bytes
from controller.zookeeper import paths

FINAL_READ_MS = 30_000.0
LOOK_MS = 25.0
"""How often members of ISRs are looked into."""
OFFLINE_MS = 200.0
"""How long after a log directory failed its replicas may not be offline: the broker finishes what it is doing."""
ENDS_MS = 200_000.0
"""Longer than a producer's records and a final read take together."""
MIN_INSYNC = "min.insync.replicas"
TRANSACTIONS_MIN_ISR = "transaction.state.log.min.isr"
ALWAYS: Mapping[str, RecordChecker] = {
    name: checks.RECORD_CHECKS[name] for name in ("records-as-sent", "duplicate", "G1a")
}
CLEAN: Mapping[str, RecordChecker] = {
    name: checks.RECORD_CHECKS[name]
    for name in (
        "nonmonotonic-send",
        "inconsistent-offsets",
        "reads-kept",
        "poll-skip",
        "int-poll-skip",
        "nonmonotonic-poll",
        "int-nonmonotonic-poll",
        "partitions-readable",
    )
}
ACKNOWLEDGED_BY_ALL: Mapping[str, RecordChecker] = {"lost-write": checks.lost_write}
AT_REST = ("members-assigned", "unseen")
OF_GROUPS = {name: check for name, check in checks.GROUP_RECORD_CHECKS.items() if name not in AT_REST}
OF_GROUPS_AT_REST = {name: checks.GROUP_RECORD_CHECKS[name] for name in AT_REST}
NOT_IN_TIME = "not delivered in time"


class RecordRun:
    """Of a plan with records, begun when its topic is created. `judge` once the cluster is at rest."""

    def __init__(
        self, plan: Plan, records: PlanRecords, host: SimulatedHost, liveness_checker: LivenessChecker, *, clean: bool
    ) -> None:
        self._host = host
        self._liveness_checker = liveness_checker
        self._clean = clean
        self._topic = next(
            (one for one in plan.happenings if isinstance(one, CreateTopic) and one.topic == records.topic), None
        )
        self._ledger = next(
            (one for one in plan.happenings if isinstance(one, CreateTopic) and one.topic == records.ledger), None
        )
        transactions = None
        if self._ledger is not None:
            transactions = TransactionWorkload(
                records.ledger,
                writers=records.writers,
                rate_per_s=2.0 * max(records.writers, 1),
                timeout_ms=records.transaction_timeout_ms,
                transform=records.transform,
            )
            self._clean = clean and liveness_checker.safety_checker.is_clean(records.ledger)
        self._workload = RecordWorkload(
            transactions=transactions,
            topics=records.topic,
            rate_per_s=records.rate_per_s,
            producers=1,
            consumers=1,
            keys=8,
            record_bytes=64,
            acks=records.acks,
            idempotent=records.idempotent,
            in_flight=records.in_flight,
            members=records.members,
            group_session_ms=records.group_session_ms,
            static_members=records.static_members,
        )
        # A hostile client may delete the offsets topic, and all groups with it.
        self._keeps_groups = liveness_checker.safety_checker.is_clean(OFFSETS_TOPIC) and not plan.has_hostile_clients
        self._begun = False
        self._failed_since_ms: dict[tuple[int, int], float] = {}
        self._transactions_min_isr = int(plan.cluster.properties.get(TRANSACTIONS_MIN_ISR, "2"))
        safety_checker = liveness_checker.safety_checker
        self._keeps_transactions = not plan.has_hostile_clients and safety_checker.is_clean(TRANSACTIONS_TOPIC)
        if self._topic is not None:
            began_ms = max(self._topic.at_ms, 0.0 if self._ledger is None else self._ledger.at_ms)
            host.clock.call_later(began_ms, self._begin)

    @property
    def _partitions(self) -> list[PartitionName]:
        assert self._topic is not None
        topics = [self._topic, *([] if self._ledger is None else [self._ledger])]
        return [(topic.topic, number) for topic in topics for number in range(topic.partitions)]

    def _begin(self) -> None:
        self._begun = True
        spawn(self._host.produce(self._workload, self._partitions)).result()
        self._look()

    def _look(self) -> None:
        """(3) Every member of an ISR has what is committed: what its leader takes for that, and what was acknowledged
        by all. Looked at from time to time, in the members that live."""
        self._look_for_lost_directories()
        if not self._keeps or self._liveness_checker.safety_checker.violation is not None:
            return
        acknowledged = self._host.acknowledged() if self._workload.acks == ACKS_ALL else [0] * len(self._partitions)
        states = self._liveness_checker.partitions()
        for (topic, number), acknowledged_end in zip(self._partitions, acknowledged, strict=True):
            state = states.get((topic, number))
            if state is not None:
                self._look_at(topic, number, state, acknowledged_end)
        self._host.clock.call_later(LOOK_MS, self._look)

    def _look_for_lost_directories(self) -> None:
        """A replica whose log directory was found to have failed is offline soon: it serves nothing."""
        checker, now_ms = self._liveness_checker, self._host.clock.now_ms()
        for node, process in self._host.processes.items():
            for topic, number in self._partitions:
                replica = self._replica(node, topic, number) if process.process.state is ProcessState.RUNNING else None
                if replica is None or replica.log is None or replica.log.health.cause is None:
                    self._failed_since_ms.pop((node, number), None)
                elif now_ms - self._failed_since_ms.setdefault((node, number), now_ms) > OFFLINE_MS:
                    detail = f"{topic}-{number}: its log directory has failed, and it is not offline"
                    checker.safety_checker.violated("failed-directories-offline", [node], detail)

    def _look_at(self, topic: str, number: int, state: PartitionView, committed: int) -> None:
        led = self._replica(state.leader, topic, number)
        if led is not None and led.role is Role.LEADER and led.leader_epoch == state.leader_epoch:
            committed = max(committed, led.high_watermark)
        safety_checker = self._liveness_checker.safety_checker
        for member in state.isr:
            held = self._replica(member, topic, number)
            if held is None or held.log is None or held.log.log_end_offset >= committed:
                continue
            if not safety_checker.data_loss.may_have_lost_records(member, paths.partition_state(topic, number)):
                detail = (
                    f"{topic}-{number}: it is in the ISR and has {held.log.log_end_offset} of {committed} committed"
                )
                safety_checker.violated("committed-by-all", [member, state.leader], detail)

    def _replica(self, node: int, topic: str, number: int) -> Partition | None:
        inside = self._liveness_checker.node(node)
        return None if inside is None else inside.broker.replicas.partition(topic, number)

    def judge(self) -> Unmet | None:
        """What does not hold, the first; None if all does. Lets virtual time pass, until all was read once more, from
        the core's brokers: a former leader outside, that is cut off, answers with the log that it has."""
        if not self._begun:
            return None
        if self._served():
            ended = spawn(self._host.quiesce(FINAL_READ_MS, self._liveness_checker.core))
            self._host.clock.run_until(lambda: ended.done, self._host.clock.now_ms() + ENDS_MS)
            if not ended.done or ended.error is not None:
                why = "no end of it" if ended.error is None else str(ended.error)
                return Unmet("clients-served", (), why)
        return next(iter(self._troubles()), None)

    def _served(self) -> bool:
        """Whether the core alone can serve every partition: otherwise clients wait in vain."""
        assert self._topic is not None
        states = self._liveness_checker.partitions()
        for name in self._partitions:
            topic = self._topic if self._ledger is None or name[0] == self._topic.topic else self._ledger
            state, needed = states.get(name), int(topic.config.get(MIN_INSYNC, "1"))
            if state is None or state.leader not in self._liveness_checker.core or len(state.isr) < needed:
                return False
        return self._ledger is None or self._transactions_served()

    def _transactions_served(self) -> bool:
        """Whether the core coordinates transactions, and the group if its offsets are in transactions."""
        states = self._liveness_checker.partitions()
        found = [state for (topic, _), state in states.items() if topic == TRANSACTIONS_TOPIC]
        led = bool(found) and all(
            state.leader in self._liveness_checker.core and len(state.isr) >= self._transactions_min_isr
            for state in found
        )
        return led and (not self._workload.members or self._group_served())

    def _group_served(self) -> bool:
        """Whether the core coordinates the group."""
        states = self._liveness_checker.partitions()
        offsets = [state for (topic, _), state in states.items() if topic == OFFSETS_TOPIC]
        return bool(offsets) and all(state.leader in self._liveness_checker.core for state in offsets)

    def _troubles(self) -> Iterator[Unmet]:
        history = self._host.history()
        assert history is not None
        audit = DeliveryAudit(history)
        beyond = beyond_high_watermark(audit)
        if len(beyond):
            yield Unmet("reads-kept", (), f"{checks.read_in_words(history, int(beyond[0]))}: beyond the high watermark")
        evidence = RecordEvidence(self._workload, audit, frozenset(self._partitions) if self._served() else None)
        for name, check in self._promised(transactional=history.transactions is not None).items():
            found: Finding = check(evidence)
            if found.held is False:
                yield Unmet(name, (), found.detail)
        yield from self._replicas_agree()
        is_served = self._keeps and self._served()
        transactional = () if history.transactions is None else history.transactions.transactional_ids
        for failure in history.troubles:
            if WRONG_CRC in failure:
                yield Unmet("records-as-sent", (), failure)
            elif failure == OFFSETS_UNSTABLE and not self._keeps_decisions:
                continue  # the marker that ended a transaction is lost, as in Kafka
            elif failure.partition(":")[0] in transactional and self._has_lost_decisions:
                continue  # the coordinator forgot the client, or what it decided, as in Kafka
            elif is_served and NOT_IN_TIME not in failure:
                yield Unmet("clients-served", (), failure)

    @property
    def _keeps(self) -> bool:
        """Whether what is below a high watermark stays."""
        names = [paths.partition_state(*name) for name in self._partitions]
        return self._clean and not any(name in self._liveness_checker.safety_checker.data_loss.broken for name in names)

    @property
    def _keeps_offsets(self) -> bool:
        """Whether what the group has committed stays."""
        broken = self._liveness_checker.safety_checker.data_loss.broken
        names = [name for name in self._liveness_checker.partitions() if name[0] == OFFSETS_TOPIC]
        return self._keeps_groups and not any(paths.partition_state(*name) in broken for name in names)

    @property
    def _has_lost_decisions(self) -> bool:
        """Whether a promise was broken to __transaction_state, so that its coordinator may have forgotten records."""
        broken = self._liveness_checker.safety_checker.data_loss.broken
        names = [name for name in self._liveness_checker.partitions() if name[0] == TRANSACTIONS_TOPIC]
        return any(paths.partition_state(*name) in broken for name in names)

    @property
    def _keeps_decisions(self) -> bool:
        """Whether what the coordinator of transactions has decided stays, and the offsets in transactions."""
        kept = self._keeps_transactions and not self._has_lost_decisions
        return kept and (not self._workload.members or self._keeps_offsets)

    def _promised(self, *, transactional: bool) -> dict[str, RecordChecker]:
        promised = dict(ALWAYS)
        if self._workload.members and self._keeps_offsets:
            promised |= OF_GROUPS
            if self._keeps and self._workload.acks == ACKS_ALL and self._served() and self._group_served():
                promised |= OF_GROUPS_AT_REST
        if self._keeps:
            promised |= CLEAN
            if transactional and self._keeps_decisions:
                promised |= checks.TRANSACTION_RECORD_CHECKS
            if self._workload.acks == ACKS_ALL and (self._keeps_decisions or not transactional):
                promised |= ACKNOWLEDGED_BY_ALL
        if transactional and not (self._keeps and self._keeps_decisions):
            del promised["G1a"]  # a coordinator that forgot what it decided may decide otherwise
        return promised

    def _replicas_agree(self) -> Iterator[Unmet]:
        """(3) What two members of an ISR have below both high watermarks is the same, to the byte."""
        states = self._liveness_checker.partitions()
        for topic, number in self._partitions:
            state = states.get((topic, number))
            if state is None or state.leader not in self._liveness_checker.core:
                continue
            leads = self._replica(state.leader, topic, number)
            for member in state.isr:
                if member == state.leader or member not in self._liveness_checker.core:
                    continue
                follows = self._replica(member, topic, number)
                start = max(_first_readable(leads), _first_readable(follows))
                mine, theirs = _committed(leads, start), _committed(follows, start)
                both = min(len(mine), len(theirs))
                if mine[:both] != theirs[:both]:
                    where = next(at for at in range(both) if mine[at] != theirs[at])
                    yield Unmet(
                        "replicas-agree",
                        (state.leader, member),
                        f"{topic}-{number}: they differ from the byte {where} on, below both high watermarks",
                    )


def _first_readable(partition: Partition | None) -> int:
    """The offset; an HDD that is lost may have had the beginning of a log."""
    if partition is None or partition.log is None:
        return 0
    lost = partition.log.unavailable
    return partition.log.log_start_offset if lost is None else max(lost.end_offset, partition.log.log_start_offset)


def _committed(partition: Partition | None, start: int) -> bytes:
    """The bytes of all batches from `start` to the high watermark; none without a log."""
    if partition is None or partition.log is None:
        return b""
    return b"".join(_batches(partition.log, start, partition.high_watermark))


def _batches(log: PartitionLog, at: int, up_to: int) -> Iterator[bytes]:
    while at < up_to:
        raw = bytes(log.read(at, 1 << 20, up_to=up_to).read())
        raw = raw[: whole_bytes(memoryview(raw))]
        if not raw:
            return
        yield raw
        at = headers_of(raw)[-1].last_offset + 1
