"""A controller under test: real core, ZooKeeper in memory, virtual time, and channels that write down what is sent.

A `Host` drives one controller as the hosts do: one event at a time, `Resign` thrown in where the term is void. It can
die at any await. Other brokers are registrations only (`Cluster.register`): nothing answers the requests unless
`answering` is set.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.clock import Coro, Future, VirtualClock, spawn
from controller.core.channels import ControlRequest, Endpoint, Resign
from controller.core.context import NO_STATE, ControllerContext, members
from controller.core.controller import Controller
from controller.core.event_loop import EventQueue
from controller.core.events import Event, Reelect, RegisterBrokerAndReelect, SessionExpired, Startup
from controller.core.handlers.failover import WATCHED_NODES
from controller.core.leadership import ControllerSettings, Term
from controller.core.loading import topic_id_text
from controller.core.request_batch import NAMES as REQUEST_NAMES
from controller.protocol import control
from controller.protocol.codec import (
    ApiKey,
    RequestHeader,
    decode_request,
    encode_response,
    request_head,
    response_body,
)
from controller.protocol.control import NO_TOPIC_ID
from controller.protocol.schema import RequestValue
from controller.simulator.fencing import Fencing
from controller.trace import Noted, PartitionStateWritten, RequestSent, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import (
    BrokerEndpoint,
    BrokerRegistration,
    ConfigZnode,
    PartitionStateZnode,
    TopicAssignment,
    decode_partition_state,
    decode_topic_assignment,
    encode_broker_registration,
    encode_config,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SessionState, SetData, Write
from statemachines.partition import PartitionState
from statemachines.reassignment import Assignment
from statemachines.replica import ReplicaState

TIMEOUT_MS = 2_000
LIMIT_MS = 300_000.0
LATEST_ZXID = 1 << 40
TOPIC_ID = "AAAAAAAAQACAAAAAAAAAAQ"


def answer_to(api: ApiKey, request: Any) -> Any:
    """As a broker answers that does what it is told."""
    if api is ApiKey.LEADER_AND_ISR:
        return control.LeaderAndIsrResponse(0)
    if api is ApiKey.UPDATE_METADATA:
        return control.UpdateMetadataResponse(0)
    stopped = tuple(
        control.StopReplicaPartitionError(topic.topic_name, state.partition_index, 0)
        for topic in request.topic_states
        for state in topic.partition_states
    )
    return control.StopReplicaResponse(0, stopped)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its broker would read it."""

    broker: int
    api: ApiKey
    value: Any
    response_event: Callable[[bytes], Any]
    rest: bytes = b""

    def states(self) -> dict[str, Any]:
        """Its partition states, by topic-partition."""
        return {
            f"{topic.topic_name}-{state.partition_index}": state
            for topic in self.value.topic_states
            for state in topic.partition_states
        }


class RecordingChannels:
    """`Channels` that keep what is sent, and refuse what no channel may be asked."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.announced: tuple[Endpoint, ...] = ()
        self.closed = False

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        assert not self.closed
        self.announced = tuple(brokers)

    def send(self, broker: int, request: ControlRequest) -> None:
        assert not self.closed, "a request after the term's end"
        reason = self._host.controller.void_reason()
        if reason is not None:
            self._host.cluster.wrong.append(f"broker {self._host.broker_id} sends a request though {reason}")
        if broker not in {endpoint.broker for endpoint in self.announced}:
            raise KeyError(broker)
        api = ApiKey(request.api_key)
        header = RequestHeader(api, request.api_version, 0, "test")
        value: RequestValue = decode_request(request_head(header) + request.body + request.rest).value
        assert request.response_event is not None
        if reason is None:
            term = self._host.controller.term
            assert term is not None
            self._host.cluster.wrong += [f"{api.name} to {broker}: {fault}" for fault in faults_of(term, broker, value)]
        self._host.sent.append(Sent(broker, api, value, request.response_event, request.rest))
        answer = self._host.answer(broker, api, value)
        if answer is not None:
            frame = encode_response(header, answer)
            self._host.events.put(request.response_event(response_body(api, request.api_version, frame)[1]))

    def close(self) -> None:
        self.closed = True


class RecordingTrace:
    enabled = True

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []

    def emit(self, event: TraceEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Host:
    """One broker's controller and the thread that would drive it."""

    def __init__(self, cluster: Cluster, broker_id: int, settings: ControllerSettings, rack: str | None) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.rack = rack
        self.trace = RecordingTrace()
        self.sent: list[Sent] = []
        self.answering = False
        self.answer_to = answer_to
        self.slow: set[int] = set()  # brokers that do not answer; asked whether it holds one, never walked
        self.channels: list[RecordingChannels] = []
        self.events = EventQueue(1_000, wake=self._wake)
        self.connection: InMemoryConnection = cluster.server.connect(TIMEOUT_MS, latency=lambda: 1.0)
        self.client = ZooKeeperClient(
            self.connection, cluster.clock, self.events, session_event=self._session_event, seed=broker_id
        )
        self.writes = BrokerWrites(self.client)
        self.controller = Controller(
            broker_id=broker_id,
            zookeeper=self.client,
            channels=self._make_channels,
            clock=cluster.clock,
            trace=self.trace,
            settings=settings,
            register=self._register,
            events=self.events,
            rng=random.Random(broker_id),
        )
        self.dead = False
        self.awaits = 0
        self.die_at_await: int | None = None
        self.handled: list[Event] = []
        self._session = 0
        self._task: Coro[None] | None = None
        self._waiting: Future[Any] | None = None
        self._scheduled = False

    def answer(self, broker: int, api: ApiKey, request: Any) -> Any:
        """What the broker answers at once; None: nothing."""
        return self.answer_to(api, request) if self.answering and broker not in self.slow else None

    def start(self) -> None:
        started = self.client.start()
        self.cluster.wait(started)
        self.events.put(Startup())

    def kill(self) -> None:
        """Nothing of it runs any more; its session lives on until it expires."""
        self.dead = True
        self.connection.kill()

    @property
    def idle(self) -> bool:
        return self.dead or (self._task is None and len(self.events) == 0)

    def failures(self) -> list[str]:
        """What no handler expected."""
        return [note.message for note in self.trace.of(Noted) if note.level == "error" and " failed: " in note.message]

    def notes(self, level: str) -> list[str]:
        return [note.message for note in self.trace.of(Noted) if note.level == level]

    def sent_after(self, mark: int, api: ApiKey | None = None) -> list[Sent]:
        return [sent for sent in self.sent[mark:] if api is None or sent.api is api]

    def context_states(self) -> dict[str, tuple[int, int, tuple[int, ...], int]]:
        """Leader, leader epoch, ISR and version as the context has them, of the partitions that have a state."""
        term = self.controller.term
        assert term is not None
        table = term.context.partitions
        return {
            table.name_of(row): (
                int(table.leader[row]),
                int(table.leader_epoch[row]),
                members(table.isr[row]),
                int(table.zk_version[row]),
            )
            for row in term.context.rows_with_state().tolist()
        }

    def _make_channels(self) -> RecordingChannels:
        self.channels.append(RecordingChannels(self))
        return self.channels[-1]

    async def _register(self) -> int:
        await self.writes.ensure_persistent_paths()
        return await self.writes.register_broker(self.broker_id, registration(self.broker_id, self.rack))

    def _session_event(self, state: SessionState, session: int) -> Event | None:
        if state is SessionState.CONNECTED and session != self._session:
            first, self._session = self._session == 0, session
            return None if first else RegisterBrokerAndReelect()
        return SessionExpired(session) if state is SessionState.EXPIRED and session else None

    # -- the event thread

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.cluster.clock.call_later(0.0, self._run)

    def _run(self) -> None:
        self._scheduled = False
        while not self.dead:
            if self._task is None and not self._next():
                return
            if self._waiting is not None and not self._waiting.done and self.controller.void_reason() is None:
                return
            self._resume()

    def _next(self) -> bool:
        reason = self.controller.void_reason()
        if reason is not None:
            self.controller.resign(reason)
            self.events.put(Reelect())
        event = self.events.take()
        if event is None:
            return False
        self.handled.append(event)
        self._task = self.controller.process(event)
        return True

    def _resume(self) -> None:
        assert self._task is not None
        reason = self.controller.void_reason()
        waited, self._waiting = self._waiting, None
        try:
            if reason is not None and waited is not None:
                self._waiting = self._task.throw(Resign(reason))
            else:
                self._waiting = self._task.send(None)
        except StopIteration:
            self._task = None
            return
        self.awaits += 1
        if self.awaits == self.die_at_await:
            self.kill()
            return
        self._waiting.on_done(self._wake)

    def watch_lease(self) -> None:
        """As a host does while it waits and when it is idle."""
        if not self.dead and self.controller.void_reason() is not None:
            self._wake()


class Cluster:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock)
        self.hosts: list[Host] = []
        self.brokers: dict[int, InMemoryConnection] = {}
        self.registered: set[int] = set()  # every broker that ever was
        self.wrong: list[str] = []  # raised by `until`: a controller would take it for an error of its own
        self.by_hand: set[int] = set()  # other sessions of administrators; asked whether it holds one, never walked
        self._fencing = Fencing()
        self.server.on_commit(self._committed)
        self._admin = self.server.connect(60_000, latency=lambda: 0.5)
        self.client = ZooKeeperClient(self._admin, self.clock, EventQueue(10))
        self.wait(self.client.start())
        self.wait(spawn(BrokerWrites(self.client).ensure_persistent_paths()))

    def _committed(self, session: int, operations: Sequence[Write]) -> None:
        """Whatever a broker writes is fenced, or a broker's own."""
        if session == self._admin.session() or session in self.by_hand:
            self._fencing.followed(session, operations)
        else:
            wrong = self._fencing.unfenced(session, operations)
            self.wrong += [] if wrong is None else [wrong]

    # -- time

    def wait(self, pending: Future[Any]) -> Any:
        self.until(lambda: pending.done)
        return pending.result()

    def until(self, condition: Callable[[], bool], limit_ms: float = LIMIT_MS) -> None:
        deadline_ms = self.clock.now_ms() + limit_ms

        def looked() -> bool:
            for host in self.hosts:
                host.watch_lease()
            return condition()

        came = self.clock.run_until(looked, deadline_ms)
        assert self.wrong == []
        assert came, "it did not come to that"

    def settle(self) -> None:
        """Until nobody has anything to do: idle, and still idle after what was on its way has arrived."""
        quiet_since: float | None = None

        def quiet() -> bool:
            nonlocal quiet_since
            if not all(host.idle for host in self.hosts):
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.clock.now_ms()
            return quiet_since is not None and self.clock.now_ms() >= quiet_since + 50

        self.clock.call_later(60.0, lambda: None)
        self.until(quiet)

    def pass_ms(self, ms: float) -> None:
        until_ms = self.clock.now_ms() + ms
        self.clock.call_later(ms, lambda: None)
        self.until(lambda: self.clock.now_ms() >= until_ms)

    # -- the cluster

    def host(self, broker_id: int, settings: ControllerSettings | None = None, rack: str | None = None) -> Host:
        """A broker with a controller, registered and settled."""
        host = self.new_host(broker_id, settings, rack)
        host.start()
        self.settle()
        return host

    def new_host(self, broker_id: int, settings: ControllerSettings | None = None, rack: str | None = None) -> Host:
        host = Host(self, broker_id, settings or ControllerSettings(), rack)
        self.hosts.append(host)
        self.registered.add(broker_id)
        return host

    def register(self, *brokers: int, rack: str | None = None) -> None:
        """Brokers that are there: a session and a registration."""
        for broker in brokers:
            connection = self.server.connect(TIMEOUT_MS, latency=lambda: 1.0)
            client = ZooKeeperClient(connection, self.clock, EventQueue(10), seed=broker)
            self.wait(client.start())
            self.wait(spawn(BrokerWrites(client).register_broker(broker, registration(broker, rack))))
            self.brokers[broker] = connection
            self.registered.add(broker)

    def unregister(self, *brokers: int) -> None:
        """Their sessions end at once."""
        closing = [self.brokers.pop(broker).close() for broker in brokers]
        for pending in closing:
            self.wait(pending)

    def write(self, *operations: Write) -> None:
        """States are of the brokers' present lives, though registrations may be made later than they here."""
        self.wait(self._admin.multi(operations))
        for operation in operations:
            if paths.partition_of(operation.path) is not None and not isinstance(operation, Delete):
                self.server.set_mzxid(operation.path, LATEST_ZXID)

    def put(self, path: str, data: bytes) -> None:
        there = self.server.row(path) is not None
        self.write(SetData(path, data, ANY_VERSION) if there else Create(path, data))

    def topic(self, name: str, assignment: dict[int, tuple[int, ...]], topic_id: str | None = "") -> None:
        """A topic as an admin tool leaves it: without states. Topic "t" has `TOPIC_ID`, another one an
        id made of its name, unless it is given."""
        if topic_id == "":
            topic_id = TOPIC_ID if name == "t" else topic_id_text(hashlib.md5(name.encode()).digest())
        self.put(paths.topic(name), encode_topic_assignment(TopicAssignment(topic_id, assignment)))

    def topic_config(self, name: str, **config: str) -> None:
        values = {key.replace("_", "."): value for key, value in config.items()}
        self.put(paths.config_topic(name), encode_config(ConfigZnode(values)))

    def state(
        self, topic: str, partition: int, leader: int, isr: tuple[int, ...], epoch: int = 0, controller_epoch: int = 0
    ) -> None:
        """A partition's state, as an earlier controller left it. Each call is a version more."""
        for parent in (paths.partitions(topic), paths.partition(topic, partition)):
            if self.server.row(parent) is None:
                self.write(Create(parent, None))
        state = PartitionStateZnode(leader, epoch, isr, controller_epoch)
        self.put(paths.partition_state(topic, partition), encode_partition_state(state))

    def read_state(self, topic: str, partition: int) -> PartitionStateZnode | None:
        path = paths.partition_state(topic, partition)
        row = self.server.row(path)
        return None if row is None else decode_partition_state(path, row.data)

    def states(self) -> dict[str, tuple[int, int, tuple[int, ...], int]]:
        """As `Host.context_states`, from ZooKeeper."""
        found = {}
        for row in self.server.rows():
            partition = paths.partition_of(row.path)
            if partition is not None:
                state = decode_partition_state(row.path, row.data)
                found[f"{partition[0]}-{partition[1]}"] = (
                    state.leader,
                    state.leader_epoch,
                    state.isr,
                    row.stat.version,
                )
        return found

    def leader(self) -> Host:
        """The one active controller."""
        active = [host for host in self.hosts if not host.dead and host.controller.active]
        assert len(active) == 1, [host.broker_id for host in active]
        return active[0]

    def check(self, *, errors: bool = False, told: bool = True) -> None:
        """Check what holds whenever a cluster is quiescent.

        The context agrees with ZooKeeper (invariant 7), with each broker's latest requests (unless not `told`), and
        with its own gauges; the armed watches are those that the role needs (invariant 6). No error is logged, unless
        `errors`.
        """
        for host in self.hosts:
            assert host.failures() == []
            assert errors or host.notes("error") == []
        leader = self.leader()
        assert leader.context_states() == self.states()
        check_figures(leader)
        self._check_context(leader)
        if told:
            self._check_told(leader)
        for host in self.hosts:
            if not host.dead:
                assert self.server.watched(host.client.session()) >= host.client.watched()
                assert host.client.watched() == self._needed(host)
            self._check_traced(host)
        for written in leader.trace.of(PartitionStateWritten):
            check_written(written)

    def _check_context(self, host: Host) -> None:
        """Check the context's assignments against the topics' znodes, and its machines' states against both."""
        term = host.controller.term
        assert term is not None
        context, table = term.context, term.context.partitions
        assert table.leaving == {}
        for one, data in table.extra.items():
            path = paths.partition_state(*table.topic_and_partition(one))
            assert decode_partition_state(path, data).kept.unknown(), path
        for topic in table.topics:
            row = self.server.row(paths.topic(topic.name))
            if row is None or paths.topic(topic.name) in context.quarantine or topic.name in context.deletions.queued:
                continue
            znode = decode_topic_assignment(row.path, row.data)
            assert topic.id == NO_TOPIC_ID or topic_id_text(topic.id) == znode.topic_id, topic
            assert {int(table.partition[one]): table.reassignment_of(one) for one in topic.rows.tolist()} == {
                one: Assignment(replicas, znode.adding.get(one, ()), znode.removing.get(one, ()))
                for one, replicas in znode.partitions.items()
            }, topic.name
            for one in topic.rows.tolist():
                self._check_machines(context, one)

    def _check_machines(self, context: ControllerContext, row: int) -> None:
        """Check one partition's states and its replicas'. On a broker that is shutting down they may be either."""
        table, rows = context.partitions, np.array([row])
        name, state = table.name_of(row), PartitionState(table.partition_state[row])
        leader, machine = int(table.leader[row]), PartitionState
        if table.zk_version[row] == NO_STATE:
            assert state in (machine.New, machine.Offline), (name, state)
        elif leader not in context.shutting_down:
            assert state is (machine.Online if context.led(rows)[0] else machine.Offline), (name, state, leader)
        for slot, (broker, usable) in enumerate(zip(table.assignment_of(row), context.eligible(rows)[0], strict=False)):
            replica = ReplicaState(table.replica_state[row, slot])
            expected = {ReplicaState.Online if usable else ReplicaState.Offline}
            if broker in table.adding.get(row, ()):
                expected.add(ReplicaState.New)
            if broker in context.shutting_down or broker not in self.registered:
                expected.add(ReplicaState.Online)  # of a new partition every replica is, as in Kafka
            assert replica in expected, (name, broker, replica)

    def _check_told(self, host: Host) -> None:
        """Check what each live broker was told last against ZooKeeper."""
        term = host.controller.term
        assert term is not None
        table, states = term.context.partitions, self.states()
        told: dict[tuple[int, ApiKey], dict[str, Any]] = {}
        for sent in host.sent:
            told.setdefault((sent.broker, sent.api), {}).update(sent.states())
        for broker in term.context.broker_ids:
            of_all = told.get((broker, ApiKey.UPDATE_METADATA), {})
            own = told.get((broker, ApiKey.LEADER_AND_ISR), {})
            rows = term.context.not_deleting(term.context.rows_with_state())
            beside = (table.assignment[rows] == broker) & term.context.eligible(rows)
            for row, replica in zip(rows.tolist(), beside.any(axis=1).tolist(), strict=True):
                name, replicas = table.name_of(row), table.assignment_of(row)
                one = of_all[name]
                assert (one.leader, one.leader_epoch, one.isr, one.zk_version) == states[name], (broker, name)
                assert one.replicas == replicas, (broker, name)
                if replica:
                    assert (own[name].leader_epoch, own[name].replicas) == (states[name][1], replicas), (broker, name)

    def _check_traced(self, host: Host) -> None:
        """Check that the trace has each request that was sent, numbered by broker from 0 in each term."""
        numbers: dict[tuple[int, int], int] = {}
        expected = []
        for sent in host.sent:
            epoch = sent.value.controller_epoch
            number = numbers[epoch, sent.broker] = numbers.get((epoch, sent.broker), -1) + 1
            name = REQUEST_NAMES[sent.api]
            expected.append((epoch, sent.broker, sent.value.broker_epoch, name, number, len(sent.states())))
        traced = host.trace.of(RequestSent)
        found = [
            (one.controller_epoch, one.to_broker, one.to_broker_epoch, one.api, one.sequence, one.partitions)
            for one in traced
        ]
        assert found == expected[len(expected) - len(found) :]

    def _needed(self, host: Host) -> frozenset[tuple[str, str]]:
        if not host.controller.active:
            return frozenset({("node", paths.CONTROLLER)})
        parents = [paths.BROKER_IDS, paths.BROKER_TOPICS, paths.ISR_CHANGE_NOTIFICATION]
        parents += [paths.LOG_DIR_EVENT_NOTIFICATION]
        parents += [paths.CONFIG_CHANGES, paths.DELETE_TOPICS]
        nodes = [paths.CONTROLLER, *(path for path, _ in WATCHED_NODES)]
        term = host.controller.term
        assert term is not None
        nodes += [path for path in term.context.quarantine if paths.partition_of(path) is not None]
        nodes += [paths.broker(int(name)) for name in self.server.children(paths.BROKER_IDS) or ()]
        nodes += [paths.topic(name) for name in self.server.children(paths.BROKER_TOPICS) or ()]
        return frozenset([("children", parent) for parent in parents] + [("node", path) for path in nodes])


def faults_of(term: Term, broker: int, request: Any) -> Iterator[str]:
    """Yield what a request says other than the context, as it is sent."""
    context, table = term.context, term.context.partitions
    receiver = context.broker(broker)
    assert receiver is not None, broker
    versions = term.settings.versions
    sender = (request.controller_id, request.controller_epoch, request.broker_epoch)
    if sender != (term.broker_id, term.epoch, receiver.epoch):
        yield f"it is of {sender}"
    topics = [topic.topic_name for topic in request.topic_states]
    if len(set(topics)) != len(topics) or not all(topic.partition_states for topic in request.topic_states):
        yield f"its topics are {topics}"
    if isinstance(request, control.StopReplicaRequest):
        flags = [state.delete_partition for topic in request.topic_states for state in topic.partition_states]
        if versions.stop_replica < 3 and len(set(flags)) > 1:
            yield f"one flag for {flags}"
        return
    live, leaders = context.broker_ids, set[int]()
    for topic in request.topic_states:
        for state in topic.partition_states:
            name, row = (
                f"{topic.topic_name}-{state.partition_index}",
                table.row_of(topic.topic_name, state.partition_index),
            )
            if row is None:
                yield f"{name} is not known"
                continue
            rows = np.array([row])
            own = (state.leader, state.leader_epoch, state.controller_epoch, state.isr, state.zk_version)
            columns = (table.leader, table.leader_epoch, table.controller_epoch, table.zk_version)
            leader, epoch, controller_epoch, version = (int(column[row]) for column in columns)
            if context.deleting(rows)[0] and isinstance(request, control.UpdateMetadataRequest):
                leader, epoch, version = control.LEADER_DURING_DELETE, 0, 0
            if (*own, state.replicas) != (
                leader,
                epoch,
                controller_epoch,
                table.isr_of(row),
                version,
                table.assignment_of(row),
            ):
                yield f"{name} is {state}"
            if isinstance(request, control.UpdateMetadataRequest):
                eligible = context.eligible(rows)[0].tolist()
                offline = [one for one, usable in zip(state.replicas, eligible, strict=False) if not usable]
                if list(state.offline_replicas) != offline:
                    yield f"{name}: offline replicas {state.offline_replicas}, not {offline}"
                continue
            leaders.add(leader)
            if broker not in state.replicas:
                yield f"{name}: it is no replica of {state.replicas}"
            moving = (table.adding.get(row, ()), table.removing.get(row, ()))
            if versions.leader_and_isr >= 3 and (state.adding_replicas, state.removing_replicas) != moving:
                yield f"{name}: {state}, not {moving}"
    if isinstance(request, control.UpdateMetadataRequest):
        if [one.id for one in request.live_brokers] != list(live):
            yield f"live brokers {request.live_brokers}"
    elif [one.broker_id for one in request.live_leaders] != sorted(leaders.intersection(live)):
        yield f"live leaders {request.live_leaders}, not those of {sorted(leaders)}"


def check_figures(host: Host) -> None:
    """What gauges show is what a count finds."""
    term = host.controller.term
    assert term is not None
    context, table = term.context, term.context.partitions
    off = [
        row
        for row in context.not_deleting(table.all_rows()).tolist()
        if table.zk_version[row] >= 0 and table.assignment_of(row)[:1] not in ((), (int(table.leader[row]),))
    ]
    figures = host.controller.measures.figures
    assert (figures.active, figures.preferred_replica_imbalance) == (True, len(off))
    assert figures.offline_partitions == int((table.partition_state == PartitionState.Offline).sum())
    assert (figures.topics, figures.partitions, figures.brokers) == (
        len(table.topics),
        len(table),
        len(context.brokers),
    )
    assert figures.topics_to_delete == len(context.deletions.queued)
    assert figures.topics_ineligible_to_delete == len(context.deletions.ineligible)
    assert (figures.paused, figures.quarantined) == (context.paused is not None, len(context.quarantine))


def check_written(written: PartitionStateWritten) -> None:
    """Invariant 2, on one write."""
    assert written.isr, written
    assert isinstance(written.live, tuple), written
    assert written.leader == -1 or written.leader in written.isr, written
    assert set(written.isr) <= set(written.assignment), written
    if written.why in ("initial", "offline", "controlled shutdown"):
        eligible = [broker for broker in written.assignment if broker in written.live]
        if written.why != "initial" and not written.unclean:
            eligible = [broker for broker in eligible if broker in written.previous_isr]
        assert written.leader == eligible[0], written
    if written.why not in ("initial", "alter isr") and not written.unclean:
        assert list(written.isr) == [broker for broker in written.previous_isr if broker in written.isr], written


def registration(broker: int, rack: str | None = None, port: int | None = None) -> bytes:
    endpoint = BrokerEndpoint("PLAINTEXT", "PLAINTEXT", f"host-{broker}", port or 9000 + broker)
    return encode_broker_registration(BrokerRegistration(broker, (endpoint,), rack))
