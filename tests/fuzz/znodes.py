"""Values of no sense in a cluster's znodes, against a whole controller: `python -m tests.fuzz.znodes`.

Each round is a cluster in memory: a controller, three brokers, and topics. Values are written into znodes of the
`victims`, before the controller's term or in it; brokers come and go, clients ask for things, terms end for other
reasons. All the while the topics that are no victims are served, no term ends by itself, and nothing of no sense is
written by the controller. Then the znodes are repaired, and every topic is served, in the same term.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.core.events import (
    AlterReassignmentsRequested,
    CreatePartitionsRequested,
    DeleteTopicsRequested,
    ElectionKind,
    ElectLeadersRequested,
)
from controller.core.loading import topic_id_text
from controller.protocol.admin import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic
from controller.protocol.client import CreatePartitionsRequest, CreatePartitionsTopic
from controller.trace import ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_partition_state, decode_topic_assignment
from controller.zookeeper.codecs_columns import (
    sound_partition_state,
    sound_registration,
    sound_topic_assignment,
    state_fault,
    topic_fault,
)
from controller.zookeeper.operations import ANY_VERSION, Create, DamagedZnode, Delete, MultiFailed, NoNode, SetData
from tests.core.driving import Cluster, Host
from tests.fuzz.campaign import (
    CALM_DOWN,
    CPU_LIMIT_S,
    GROWTH_LIMIT_KIB,
    Failure,
    Hang,
    Memory,
    exit_status,
    fuzz_parser,
    memory_lines,
    refuse_memory_growth,
    watched,
)
from tests.fuzz.senseless import TEXTS, senseless

INPUTS_A_ROUND = 192
VICTIMS, WITNESSES, PARTITIONS = 24, 4, 2
AT_ONCE = (1, 8, 24)
"""How many values are written in one multi."""
GROWTH_FROM = 5_000
"""Of fewer values caches are still filling."""
BROKERS = (2, 3, 4)
"""Besides 1, the controller's own. Nobody catches up here, so that ISRs only shrink: 1 is in those of the witnesses."""
VICTIM_BROKER = 4
RAISED = "which a partition's state has"
STRANGERS = tuple(range(50, 56))
"""Broker ids whose registrations are only ever victims."""

Decode = Callable[[str, bytes | None], object]
Known = tuple[int, int, tuple[int, ...], int]
"""A partition's leader, leader epoch, ISR and version in the controller's context."""


@dataclass(frozen=True, slots=True)
class Input:
    """`quarantined`: the value makes no sense for `path`; its own topic, partition or broker may stand still."""

    path: str
    data: bytes | None
    quarantined: bool


@dataclass
class Figures:
    inputs: int = 0
    rounds: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    quarantined: int = 0
    before: Memory | None = None
    after: Memory | None = None


def victim(number: int) -> str:
    return f"victim-{number}"


def witness(number: int) -> str:
    return f"witness-{number}"


class Round:
    """One cluster and its inputs. Failure, with the seed of the round, for whatever does not hold."""

    def __init__(self, seed: int, inputs: int) -> None:
        self.seed = seed
        self._inputs = inputs
        self._rng = random.Random(seed)
        self._cluster = Cluster()
        self._host: Host
        self._given: dict[str, Input] = {}
        self._before: dict[str, bytes | None] = {}
        self._ended = 0
        self._answers: list[Any] = []
        self._sound: dict[str, bytes | None] = {}
        self._pending: dict[str, bytes | None] = {}

    def run(self, figures: Figures) -> None:
        cluster, rng = self._cluster, self._rng
        cluster.register(*BROKERS)
        for number in range(VICTIMS):
            cluster.topic(victim(number), {one: self._replicas() for one in range(PARTITIONS)})
        for number in range(WITNESSES):
            cluster.topic(witness(number), {one: tuple(rng.sample((1, 2, 3), 3)) for one in range(PARTITIONS)})
        self._host = cluster.new_host(1)
        self._host.answering = True
        self._host.start()
        cluster.settle()
        half = self._inputs // 2
        self._inject_all(half, figures)
        cluster.settle()
        self._check("after the first half")
        for _ in range(rng.randint(1, 3)):
            self._stir()
        self._check("after what came first")
        self._inject_all(self._inputs - half, figures)
        if rng.random() < 0.7:
            self._end_term()
        for _ in range(rng.randint(1, 3)):
            self._stir()
        self._check("after the second half")
        self._cluster.settle()
        self._repair()
        self._check("after the repair")
        self._check_repaired()
        figures.rounds += 1

    def _replicas(self) -> tuple[int, ...]:
        return tuple(self._rng.sample(BROKERS, 2))

    # -- inputs

    def _inject_all(self, number: int, figures: Figures) -> None:
        """One by one, or several in one multi; a path is written once in each multi."""
        at_once = self._rng.choice(AT_ONCE)
        for _ in range(number):
            self._inject(figures)
            if len(self._pending) >= at_once:
                self._write_pending()
        self._write_pending()

    def _inject(self, figures: Figures) -> None:
        kind = self._rng.choice(list(KINDS))
        path, sound, decode = KINDS[kind](self)
        data = senseless(self._rng, sound)
        quarantined = decode is not None and not _is_sound(decode, path, data)
        figures.inputs += 1
        figures.kinds[kind] += 1
        figures.quarantined += quarantined
        earlier = self._given.get(path)
        if earlier is None:
            row = self._cluster.server.row(path)
            self._before[path] = None if row is None else row.data
            if row is None:
                self._before[path] = b"absent"
        self._given[path] = Input(path, data, quarantined and (earlier is None or earlier.quarantined))
        if path in self._pending:
            self._write_pending()
        self._pending[path] = data

    def _write_pending(self) -> None:
        """In one multi; one by one if that fails, as where the controller has deleted a notification meanwhile."""
        pending, self._pending = self._pending, {}
        if len(pending) > 1:
            for path in pending:
                self._create_above(path)
            there = {path for path in pending if self._cluster.server.row(path) is not None}
            operations = [
                SetData(path, data, ANY_VERSION) if path in there else Create(path, data)
                for path, data in pending.items()
            ]
            try:
                self._cluster.write(*operations)
            except MultiFailed:
                pass
            else:
                return
        for path, data in pending.items():
            self._put(path, data)

    def _create_above(self, path: str) -> None:
        above = path.split("/")[1:-1]
        for depth in range(len(above)):
            parent = "/" + "/".join(above[: depth + 1])
            if self._cluster.server.row(parent) is None:
                self._cluster.write(Create(parent, None))

    def _put(self, path: str, data: bytes | None) -> None:
        server, cluster = self._cluster.server, self._cluster
        self._create_above(path)
        for _ in range(10):  # the controller may delete what is a request or a notification
            there = server.row(path) is not None
            try:
                cluster.write(SetData(path, data, ANY_VERSION) if there else Create(path, data))
            except MultiFailed:
                continue
            return

    def _delete(self, path: str) -> None:
        try:
            self._cluster.write(Delete(path, ANY_VERSION))
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNode):
                raise

    def a_topic(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        row = self._cluster.server.row(path := paths.topic(victim(self._rng.randrange(VICTIMS))))
        return path, _json(None if row is None else row.data) or topic_with_id(path), sound_topic_assignment

    def a_state(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name, partition = victim(self._rng.randrange(VICTIMS)), self._rng.randrange(PARTITIONS)
        path = paths.partition_state(name, partition)
        if self._cluster.server.row(path) is None:
            return self.a_topic()
        row = self._cluster.server.row(path)
        return path, _json(None if row is None else row.data) or SOUND_STATE, sound_partition_state

    def a_registration(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        path = paths.broker(self._rng.choice((VICTIM_BROKER, *STRANGERS)))
        return path, SOUND_REGISTRATION, sound_registration

    def a_broker_name(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name = self._rng.choice(("007", "-1", "x", "2147483648", "9" * 30, "2x", "\u0663"))
        return paths.child(paths.BROKER_IDS, name), SOUND_REGISTRATION, None

    def a_topic_name(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name = self._rng.choice(("x" * 250, "x" * 40_000, "a b", "\u00e9", "t:t", "*", "a\u3042"))
        path = paths.child(paths.BROKER_TOPICS, name)
        return path, topic_with_id(path), None

    def reassignments(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        items = [{"topic": victim(n), "partition": 0, "replicas": list(self._replicas())} for n in range(3)]
        return paths.REASSIGN_PARTITIONS, {"version": 1, "partitions": items}, None

    def an_election(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        items = [{"topic": victim(n), "partition": 0} for n in range(3)]
        return paths.PREFERRED_ELECTION, {"version": 1, "partitions": items}, None

    def an_isr_change(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        items = [{"topic": victim(n), "partition": 0} for n in range(3)]
        name = f"isr_change_{self._rng.randrange(100):010d}"
        return paths.child(paths.ISR_CHANGE_NOTIFICATION, name), {"version": 1, "partitions": items}, None

    def a_directory_event(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name = f"log_dir_event_{self._rng.randrange(100):010d}"
        return paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, name), {"version": 1, "broker": 99, "event": 1}, None

    def a_deletion(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        legal = [text for text in TEXTS if text and "/" not in text and text not in (".", "..") and text.isprintable()]
        name = self._rng.choice((*legal, "none"))
        return paths.child(paths.DELETE_TOPICS, name), {"version": 1}, None

    def a_topic_config(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        path = paths.config_topic(victim(self._rng.randrange(VICTIMS)))
        return path, SOUND_CONFIG, None

    def a_broker_config(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name = self._rng.choice(("1", "2", "<default>", "-1", "x"))
        return paths.child(paths.CONFIG_BROKERS, name), SOUND_CONFIG, None

    def a_config_change(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        name = self._rng.choice((f"config_change_{self._rng.randrange(100):010d}", "x", "config_change_", "\u00e9"))
        return paths.child(paths.CONFIG_CHANGES, name), {"version": 2, "entity_path": "topics/victim-0"}, None

    def the_features(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        features = {"a": {"min_version_level": 1, "max_version_level": 2}}
        return paths.FEATURE, {"features": features, "version": 1, "status": 1}, None

    def the_pause(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        return paths.CONTROLLER_PAUSE, {"version": 1, "reason": "r", "timestamp": "5"}, None

    def the_producer_ids(self) -> tuple[str, Mapping[str, Any], Decode | None]:
        block = {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
        return paths.PRODUCER_ID_BLOCK, block, None

    # -- what happens meanwhile

    def _end_term(self) -> None:
        """For another reason: the next one loads everything."""
        self._check("before a term ends")
        self._ended += 1
        self._delete(paths.CONTROLLER)
        self._cluster.settle()

    def _stir(self) -> None:
        kind = self._rng.randrange(6)
        cluster, host, rng = self._cluster, self._host, self._rng
        if kind == 0:
            self._end_term()
        elif kind <= 2:
            broker = rng.choice(BROKERS)
            if self._given.get(paths.broker(broker)) is None:
                cluster.unregister(broker)
                cluster.settle()
                self._check("with a broker gone")
                cluster.register(broker)
        elif kind == 3:
            name = rng.choice((victim(rng.randrange(VICTIMS)), witness(rng.randrange(WITNESSES)), *TEXTS))
            topics = (CreatePartitionsTopic(name, PARTITIONS, None),)
            request = CreatePartitionsRequest(topics, 1_000, validate_only=rng.random() < 0.5)
            host.events.put(CreatePartitionsRequested(request, self._answers.append))
        elif kind == 4:
            name = rng.choice((victim(rng.randrange(VICTIMS)), witness(rng.randrange(WITNESSES)), *TEXTS))
            target = rng.choice((None, (2, 2), tuple(range(130)), (), (-1,), (2**31 - 1,), self._replicas()))
            asked = ReassignableTopic(name, (ReassignablePartition(0, target),))
            alter = AlterPartitionReassignmentsRequest((asked,))
            host.events.put(AlterReassignmentsRequested(alter, self._answers.append))
        else:
            elect = tuple((rng.choice((victim(0), witness(0), *TEXTS)), rng.choice((0, -1, 2**31 - 1))) for _ in "ab")
            kind_of = rng.choice(list(ElectionKind))
            host.events.put(ElectLeadersRequested(kind_of, elect, self._answers.append))
            host.events.put(DeleteTopicsRequested(tuple(TEXTS), self._answers.append))
        cluster.settle()

    # -- what must hold

    def _fail(self, what: str) -> None:
        inputs = "\n".join(f"  {one.path[:80]} = {(one.data or b'')[:200]!r}" for one in self._given.values())
        raise Failure(f"round {self.seed}: {what}\n{inputs}")

    def _check(self, when: str) -> None:
        host = self._host
        failures = [one for one in host.failures() if RAISED not in one]
        if failures:
            self._fail(f"{when}: {failures[0]}")
        # A controller epoch above the term's says that /controller_epoch was lowered: the next term begins above it.
        ended = [one for one in host.trace.of(ControllerResigned) if RAISED not in one.reason]
        if len(ended) != self._ended or not host.controller.active:
            self._fail(f"{when}: {len(ended)} terms have ended, {self._ended} were to: {ended[-1:]}")
        self._check_all_served([witness(number) for number in range(WITNESSES)], when)
        self._check_written(when)
        host.trace.events = [event for event in host.trace.events if isinstance(event, ControllerResigned)]
        host.sent.clear()

    def _check_all_served(self, names: Sequence[str], when: str) -> None:
        known = self._host.context_states()
        for name in names:
            for partition in range(PARTITIONS):
                self._check_served(name, partition, known.get(f"{name}-{partition}"), when)

    def _check_served(self, name: str, partition: int, known: Known | None, when: str) -> None:
        """Led by a live broker that is in the ISR, as the context and ZooKeeper agree."""
        row = self._cluster.server.row(paths.partition_state(name, partition))
        if row is None:
            self._fail(f"{when}: {name}-{partition} has no state")
            return
        state = decode_partition_state(row.path, row.data)
        live = [*self._cluster.brokers, 1]
        if not set(live) & set(state.isr):
            return  # of a victim: its ISR shrank to a broker that was a victim too
        if state.leader not in live or state.leader not in state.isr:
            self._fail(f"{when}: {name}-{partition} is not served: {state}, live {live}")
        if known is None or known[:3] != (state.leader, state.leader_epoch, state.isr):
            self._fail(f"{when}: {name}-{partition}: the controller has {known}, ZooKeeper {state}")

    def _check_written(self, when: str) -> None:
        """What is not as somebody gave it was written by the controller, and makes sense."""
        for row in self._cluster.server.rows():
            given = self._given.get(row.path)
            if (given is not None and given.data == row.data) or self._sound.get(row.path, b"") is row.data:
                continue  # a value that was looked at once is not looked at again
            fault = None
            try:
                if paths.partition_of(row.path) is not None:
                    fault = state_fault(decode_partition_state(row.path, row.data))
                elif row.path.startswith(f"{paths.BROKER_TOPICS}/") and row.path.count("/") == 3:
                    fault = topic_fault(decode_topic_assignment(row.path, row.data))
            except DamagedZnode as damaged:
                fault = str(damaged)
            if fault is not None:
                self._fail(f"{when}: {row.path} was written: {fault}")
            self._sound[row.path] = row.data

    def _repair(self) -> None:
        server, at_once = self._cluster.server, self._rng.choice(AT_ONCE)
        for path, data in self._before.items():
            row = server.row(path)
            given = self._given[path]
            if data == b"absent":
                if row is not None and not row.stat.num_children:
                    self._delete(path)
            elif row is None or (row.data == given.data and given.quarantined) or paths.partition_of(path) is None:
                self._pending[path] = data
            if len(self._pending) >= at_once:
                self._write_pending()
        self._write_pending()
        self._cluster.settle()

    def _check_repaired(self) -> None:
        """In the same term every topic whose znodes made no sense, and do now, is served; nothing is in quarantine."""
        term = self._host.controller.term
        assert term is not None
        others = [path for path, given in self._given.items() if not given.quarantined]
        odd = {paths.topic_of(path) for path in others} | {path.rpartition("/")[2] for path in others}
        for path in term.context.quarantine:
            if paths.topic_of(path) not in odd:
                self._fail(f"after the repair: in quarantine still: {term.context.quarantine[path]}")
        self._check_all_served([name for name in map(victim, range(VICTIMS)) if name not in odd], "after the repair")


def _is_sound(decode: Decode, path: str, data: bytes | None) -> bool:
    try:
        decode(path, data)
    except DamagedZnode:
        return False
    return True


def _json(data: bytes | None) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


SOUND_TOPIC: Mapping[str, Any] = {
    "partitions": {"0": [2, 3], "1": [3, 4]},
    "topic_id": "7J4s9cs7RkuJaV_xmswZqQ",
    "adding_replicas": {"0": [3]},
    "removing_replicas": {"0": [2]},
    "version": 3,
}


def topic_with_id(path: str) -> Mapping[str, Any]:
    """A topic with an id of its own: one of two with the same id is left out, whatever else is wrong with it."""
    return {**SOUND_TOPIC, "topic_id": topic_id_text(hashlib.md5(path.encode()).digest())}


SOUND_STATE: Mapping[str, Any] = {"controller_epoch": 1, "leader": 2, "version": 1, "leader_epoch": 0, "isr": [2, 3]}
SOUND_REGISTRATION: Mapping[str, Any] = {
    "features": {},
    "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
    "endpoints": ["PLAINTEXT://host:9092"],
    "rack": "r",
    "jmx_port": -1,
    "port": 9092,
    "host": "host",
    "version": 5,
    "timestamp": "5",
}
SOUND_CONFIG: Mapping[str, Any] = {
    "version": 1,
    "config": {"unclean.leader.election.enable": "true", "min.insync.replicas": "2"},
}
KINDS: Mapping[str, Callable[[Round], tuple[str, Mapping[str, Any], Decode | None]]] = {
    "topic": Round.a_topic,
    "state": Round.a_state,
    "state again": Round.a_state,
    "registration": Round.a_registration,
    "broker name": Round.a_broker_name,
    "topic name": Round.a_topic_name,
    "reassignments": Round.reassignments,
    "preferred election": Round.an_election,
    "ISR change": Round.an_isr_change,
    "log directory event": Round.a_directory_event,
    "deletion": Round.a_deletion,
    "topic config": Round.a_topic_config,
    "broker config": Round.a_broker_config,
    "config change": Round.a_config_change,
    "features": Round.the_features,
    "pause": Round.the_pause,
    "producer ids": Round.the_producer_ids,
}


def campaign(inputs: int, seed: int, limit_s: float = CPU_LIMIT_S, growth_kib: int = GROWTH_LIMIT_KIB) -> Figures:
    """The same inputs for the same seed. Failure."""
    figures, rng = Figures(), random.Random(seed)
    began = time.perf_counter()
    with watched(limit_s):
        while figures.inputs < inputs:
            one = Round(rng.getrandbits(48), min(INPUTS_A_ROUND, inputs - figures.inputs))
            signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
            try:
                one.run(figures)
            except (AssertionError, Hang) as error:
                raise Failure(f"round {one.seed}: {type(error).__name__}: {error}") from error
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            del one
            if figures.before is None and figures.inputs * CALM_DOWN >= inputs >= GROWTH_FROM:
                figures.before = Memory.now()
    figures.seconds = time.perf_counter() - began
    figures.after = Memory.now()
    refuse_memory_growth(figures.before, figures.after, figures.inputs, growth_kib)
    return figures


def lines(figures: Figures) -> list[str]:
    rate = figures.inputs / max(figures.seconds, 1e-9)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in figures.kinds.most_common())
    return [
        f"{figures.inputs:,} values in {figures.rounds:,} clusters in {figures.seconds:.1f} s: {rate:,.0f} values/s",
        f"  {kinds}; quarantined {figures.quarantined:,}",
        *memory_lines(figures.before, figures.after),
        "every other topic was served, no term ended, everything was served after the repair, no growth",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = fuzz_parser("znodes", __doc__)
    parser.add_argument("--round", type=int, help="run this round alone, as a failure names it")
    given = parser.parse_args(arguments)

    def run() -> list[str]:
        if given.round is None:
            return lines(campaign(given.inputs, given.seed))
        figures = Figures()
        Round(given.round, INPUTS_A_ROUND).run(figures)
        return lines(figures)

    return exit_status(given.seed, run)


if __name__ == "__main__":
    sys.exit(main())
