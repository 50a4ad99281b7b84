"""The runner takes the steps in order, resolves who they speak of, waits with a deadline, and says what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.clock import VirtualClock
from controller.scenarios.faults import (
    NODE_FIELDS,
    Cut,
    Expire,
    Fault,
    HostFailure,
    Kill,
    KillZooKeeper,
    Link,
    Operation,
    Pause,
    Stop,
    kind_of,
)
from controller.scenarios.files import parse_scenario
from controller.scenarios.host import Observation, PartitionView, Snapshot, TopicSpec, Workload
from controller.scenarios.language import ClusterSpec
from controller.scenarios.records.history import History, history_of
from controller.scenarios.records.workload import PartitionName, RecordWorkload, TransactionStage
from controller.scenarios.runner import Outcome, run_steps
from controller.trace import FaultInjected, MetadataSeen, StepEnded, StepStarted, TraceEvent
from controller.trace_records import TraceRecord

HEAD = 'name = "x"\n[cluster]\nbrokers = 3\nzookeeper_servers = 3\n'


class ScriptedHost:
    """Brokers register the moment they start; killed ones are gone 100 ms later; 1 leads everything it can."""

    name = "scripted"
    seed = None

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.calls: list[str] = []
        self.alive: dict[int, bool] = {}
        self.seen: list[TraceEvent] = []
        self.refused = ""
        self.producing = False

    def take(self, event: TraceEvent) -> None:
        self.seen.append(event)

    async def boot(self, cluster: ClusterSpec, workload: Workload) -> None:
        self.calls.append(f"boot {cluster.brokers}")

    async def start(self, node: int) -> None:
        self.alive[node] = True
        self.calls.append(f"start {node}")

    async def hold_transaction(self, client: int, stage: TransactionStage, deadline_ms: float) -> bool:
        self.calls.append(f"hold {client} {stage.value}")
        return client == 0

    def release_transaction(self, client: int) -> None:
        self.calls.append(f"release {client}")

    async def resume(self, node: int) -> None:
        self.calls.append(f"resume {node}")

    async def heal(self, link: Link) -> None:
        self.calls.append(f"heal {link}")

    async def inject(self, step: Fault | Operation) -> None:
        match step:
            case Cut():
                self.calls.append(f"cut {step.link}")
            case KillZooKeeper():
                self.calls.append(f"kill zookeeper {step.number}")
            case Kill() | Stop() | Pause() | Expire():
                self.calls.append(f"{kind_of(step)} {step.broker}")
                if isinstance(step, Kill):
                    self.clock.call_later(100.0, lambda: self.alive.__delitem__(step.broker))
                if isinstance(step, Stop):
                    del self.alive[step.broker]
            case _:
                nodes = [f" {name}={getattr(step, name)}" for name in NODE_FIELDS if hasattr(step, name)]
                self.calls.append(f"inject {kind_of(step)}{''.join(nodes)}")

    async def heal_all(self) -> None:
        self.calls.append("heal-all")

    async def zookeeper_leader(self) -> int:
        return 2

    def zookeepers_running(self) -> tuple[int, ...]:
        return (1, 2, 3)

    async def start_zookeeper(self, server: int) -> None:
        self.calls.append(f"start zookeeper {server}")

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        if self.refused:
            raise HostFailure(self.refused)
        self.calls.append(f"create {[topic.name for topic in topics]}")

    async def produce(self, workload: RecordWorkload, partitions: Sequence[PartitionName]) -> None:
        self.calls.append(f"produce {workload.rate_per_s:g} to {list(partitions)}")
        self.producing = True

    async def quiesce(self, deadline_ms: float) -> None:
        self.calls.append(f"quiesce {deadline_ms:g}")

    def history(self) -> History | None:
        return history_of([("t-0", 0)], [], []) if self.producing else None

    def running(self) -> tuple[int, ...]:
        return tuple(self.alive)

    def observe(self) -> Observation:
        live = tuple(sorted(self.alive))
        seen = MetadataSeen(4, 4, live[0] if live else -1, live, "")
        return Observation({node: node for node in live}, live[0] if live else -1, seen, self.clock.now_ms())

    async def leaders(self) -> Mapping[tuple[str, int], PartitionView]:
        return {("t", 0): PartitionView(min(self.alive), tuple(self.alive), tuple(self.alive))}

    async def snapshot(self) -> Snapshot:
        return Snapshot({}, tuple(self.alive), min(self.alive, default=-1), 1, {node: {} for node in self.alive})

    async def shut_down(self) -> None:
        self.calls.append("shut down")

    def records(self) -> Sequence[TraceRecord]:
        return [TraceRecord(0.0, -1, event) for event in self.seen]


def run(host: ScriptedHost, text: str) -> Outcome:
    task = run_steps(parse_scenario(HEAD + text, "x"), host)
    try:
        while True:
            pending = task.send(None)
            assert host.clock.run_until(lambda pending=pending: pending.done, 1e6)  # type: ignore[misc]
    except StopIteration as ended:
        outcome: Outcome = ended.value
        return outcome


def steps(*lines: str) -> str:
    return "".join(f"[[steps]]\n{line}\n" for line in lines)


START = 'do = "start"'


def test_steps_are_taken_in_order_and_told_to_the_trace() -> None:
    host = ScriptedHost()
    outcome = run(
        host,
        steps(START, 'do = "kill"\nnode = 2', 'do = "wait"\nuntil = "gone"\nnode = 2', 'do = "start"\nnodes = [2]'),
    )
    assert outcome.failure is None
    assert host.calls == ["boot 3", "start 1", "start 2", "start 3", "kill 2", "start 2"]
    assert [event.text for event in host.seen if isinstance(event, StepStarted)] == [
        "start brokers 1, 2, 3", "kill broker 2", "wait until gone (broker 2), at most 30 s", "start broker 2",
    ]  # fmt: skip
    assert all(event.ok for event in host.seen if isinstance(event, StepEnded))
    assert FaultInjected("kill", "2") in host.seen
    assert host.clock.now_ms() >= 100.0


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("node = 3", 3),
        ('node = "controller"', 1),
        ('node = "not-controller"', 2),
        ('node = "not-controller"\nother_than = [2]', 3),
        ('node = "leader:t:0"', 1),
    ],
)
def test_a_step_names_its_node_by_what_it_is(selector: str, expected: int) -> None:
    host = ScriptedHost()
    assert run(host, steps(START, f'do = "pause"\n{selector}\nas = "it"', 'do = "resume"\nnode = "it"')).failure is None
    assert host.calls[-2:] == [f"pause {expected}", f"resume {expected}"]


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        ('do = "restart"\nnode = 2', ["stop 2", "start 2"]),
        ('do = "cut"\nsource = 1\ntarget = "zookeeper"', ["cut 1->zookeeper"]),
        ('do = "heal"\nsource = 1\ntarget = 2', ["heal 1->2"]),
        ('do = "expire"\nnode = 3', ["expire 3"]),
        ('do = "create-topics"\ncount = 2\nprefix = "a"', ["create ['a0', 'a1']"]),
        ('do = "kill-zookeeper"\nserver = 1', ["kill zookeeper 1"]),
        ('do = "start-zookeeper"\nserver = 3', ["start zookeeper 3"]),
        ('do = "kill-zookeeper"\nserver = "leader"', ["kill zookeeper 2"]),
        ('do = "kill-zookeeper"\nserver = "follower"', ["kill zookeeper 1"]),
        ('do = "kill"\nnode = 2\nwhen = false', []),
        ('do = "slow"\nsource = "controller"\ntarget = 3\nslower = 20.0', ["inject slow source=1 target=3"]),
        ('do = "drift"\nnode = "not-controller"\nrate = 1.5', ["inject drift node=2"]),
        ('do = "elect-zookeeper"', ["inject elect-zookeeper"]),
        ('do = "heal-all"', ["heal-all"]),
    ],
)
def test_every_step_reaches_the_host(step: str, calls: list[str]) -> None:
    host = ScriptedHost()
    assert run(host, steps(START, step)).failure is None
    assert host.calls[4:] == calls


def test_a_server_keeps_the_name_that_a_step_gave_it() -> None:
    host = ScriptedHost()
    kill, start = 'do = "kill-zookeeper"\nserver = "leader"\nas = "dead"', 'do = "start-zookeeper"\nserver = "dead"'
    assert run(host, steps(START, kill, start)).failure is None
    assert host.calls[4:] == ["kill zookeeper 2", "start zookeeper 2"]
    assert [event for event in host.seen if isinstance(event, FaultInjected)] == [
        FaultInjected("kill", "zookeeper 2"), FaultInjected("start", "zookeeper 2"),
    ]  # fmt: skip


def test_a_cut_names_its_source() -> None:
    host = ScriptedHost()
    cut = 'do = "cut"\nsource = "controller"\ntarget = "zookeeper"\nas = "island"'
    assert run(host, steps(START, cut, 'do = "heal"\nsource = "island"\ntarget = "zookeeper"')).failure is None
    assert host.calls[4:] == ["cut 1->zookeeper", "heal 1->zookeeper"]


def test_a_struck_broker_is_registered_once_it_has_another_session() -> None:
    """The registration of before the fault may linger, or its end be seen late."""

    class Lingering(ScriptedHost):
        def observe(self) -> Observation:
            session = 7 if self.clock.now_ms() < 400.0 else 8
            return replace(super().observe(), registered=dict.fromkeys(self.alive, session))

    host = Lingering()
    wait = 'do = "wait"\nuntil = "registered"\nnode = 2'
    assert run(host, steps(START, 'do = "expire"\nnode = 2', wait)).failure is None
    assert host.clock.now_ms() >= 400.0


def test_full_isr_is_every_registered_replica_in_every_isr_once_all_that_start_are_registered() -> None:
    """A session of before the fault does not count."""

    class Growing(ScriptedHost):
        def __init__(self) -> None:
            super().__init__()
            self.registered = {1: 6, 2: 6}

        def observe(self) -> Observation:
            return replace(super().observe(), registered=self.registered)

        async def leaders(self) -> Mapping[tuple[str, int], PartitionView]:
            isr = (1, 3) if self.clock.now_ms() < 400.0 else (1, 2)
            return {("t", 0): PartitionView(1, isr, (1, 2, 9)), ("t", 1): PartitionView(1, (1,), (1,))}

    host = Growing()
    wait = 'do = "wait"\nuntil = "full-isr"\ndeadline_ms = '
    assert "[3] have been started and are not" in (run(host, steps(START, wait + "100")).failure or "")
    host.registered = {1: 6, 2: 6, 3: 7}
    assert "[3] have been started" in (run(host, steps('do = "expire"\nnode = 3', wait + "100")).failure or "")
    assert "without [2]" in (run(host, steps(wait + "100")).failure or "")
    assert run(host, steps(wait + "5000")).failure is None  # replica 9 is not registered, so it is not missed
    assert host.clock.now_ms() >= 400.0


def test_brokers_are_known_when_the_client_is_told_of_all_that_are_registered() -> None:
    class Learning(ScriptedHost):
        def observe(self) -> Observation:
            now = self.clock.now_ms()
            known = (1, 2) if now < 400.0 else (1, 2, 3)
            told = MetadataSeen(0, 0, 1, known if now < 1_200.0 else (1, 2), "")
            return Observation(dict.fromkeys(self.alive, 7), 1, told, now)

    host = Learning()
    wait = 'do = "wait"\nuntil = "brokers"'
    assert "brokers [1, 2], registered are [1, 2, 3]" in (
        run(host, steps(START, wait + "\ndeadline_ms = 100")).failure or ""
    )
    assert run(host, steps(wait)).failure is None  # with no topic there is nothing to be led
    assert 400.0 <= host.clock.now_ms() < 800.0
    host.clock.advance_to(1_300.0)
    assert "brokers [1, 2]" in (run(host, steps(wait + "\ndeadline_ms = 100")).failure or "")


def test_a_wait_in_vain_fails_the_scenario_and_ends_it() -> None:
    host = ScriptedHost()
    outcome = run(
        host, steps(START, 'do = "wait"\nuntil = "gone"\nnode = 1\ndeadline_ms = 200', 'do = "kill"\nnode = 1')
    )
    assert outcome.failure is not None
    assert "broker 1 is still registered" in outcome.failure
    assert not outcome.could_not_run
    assert outcome.snapshot is not None
    assert "kill 1" not in host.calls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (steps('do = "kill"\nnode = "controller"'), "there is none"),
        (steps(START, 'do = "kill"\nnode = "nobody"'), "nobody"),
        (steps(START, 'do = "kill"\nnode = 7'), "expected 1 to 3"),
        (steps('do = "kill-zookeeper"\nserver = 4'), "expected leader, follower, 1 to 3"),
        (steps('do = "kill-zookeeper"\nserver = "dead"'), "expected leader, follower, 1 to 3"),
        (steps(START, 'do = "kill"\nnode = "leader:u:0"'), "no such partition"),
        (steps(START, 'do = "pause"\nnode = "not-controller"\nother_than = [2, 3]'), "no registered broker"),
    ],
)
def test_a_node_that_there_is_not_stops_the_run(text: str, said: str) -> None:
    outcome = run(ScriptedHost(), text)
    assert outcome.could_not_run
    assert said in (outcome.failure or "")


def test_what_the_cluster_refused_stops_the_run_with_its_error() -> None:
    host: Any = ScriptedHost()
    host.refused = "INVALID_REPLICATION_FACTOR"
    assert run(host, steps('do = "create-topics"')).failure == "INVALID_REPLICATION_FACTOR"


def test_a_cluster_that_never_agrees_is_looked_at_until_the_deadline() -> None:
    class Disagreeing(ScriptedHost):
        async def snapshot(self) -> Snapshot:
            return Snapshot({("t", 0): PartitionView(1, (1,), (1,))}, (1,), 1, 1, {1: {}})

    host = Disagreeing()
    assert run(host, steps(START)).snapshot is not None
    assert host.clock.now_ms() >= 5_000.0


TWO_TOPICS = 'do = "create-topics"\ncount = 2\npartitions = 2\nprefix = "t-"'
OTHERS = 'do = "create-topics"\nprefix = "u-"'


def records(rate: str, *lines: str) -> str:
    return f'[workload.records]\ntopics = "t-"\n{rate}\n' + steps(START, *lines)


def test_records_are_produced_from_their_step_on_and_quiet_at_the_end() -> None:
    host = ScriptedHost()
    outcome = run(host, records("rate_per_s = 5", TWO_TOPICS, OTHERS, 'do = "produce"', 'do = "kill"\nnode = 2'))
    assert host.calls[-3:] == [
        "produce 5 to [('t-0', 0), ('t-0', 1), ('t-1', 0), ('t-1', 1)]",
        "kill 2",
        "quiesce 60000",
    ]
    assert outcome.workload is not None
    assert outcome.history is not None


def test_records_are_quiet_when_the_scenario_says_so_and_not_again() -> None:
    host = ScriptedHost()
    quiesce = 'do = "quiesce"\ndeadline_ms = 7'
    run(host, records("", TWO_TOPICS, 'do = "produce"', quiesce, 'do = "kill"\nnode = 2'))
    assert host.calls[-2:] == ["quiesce 7", "kill 2"]


@pytest.mark.parametrize(("rate", "produce"), [("rate_per_s = 0", 'do = "produce"'),
                                               ("rate_per_s = 5", 'do = "produce"\nwhen = false')])  # fmt: skip
def test_no_records_are_produced_if_none_are_wanted(rate: str, produce: str) -> None:
    host = ScriptedHost()
    outcome = run(host, records(rate, TWO_TOPICS, produce, 'do = "quiesce"'))
    assert outcome.history is None
    assert outcome.workload is None
    assert not any("produce" in call or "quiesce" in call for call in host.calls)


def test_a_simulation_may_have_a_rate_of_its_own() -> None:
    host = ScriptedHost()
    host.name = "simulated"
    run(host, records("simulated_rate_per_s = 3", TWO_TOPICS, 'do = "produce"'))
    assert any(call.startswith("produce 3 to") for call in host.calls)


def test_records_without_a_topic_to_go_to_stop_the_run() -> None:
    outcome = run(ScriptedHost(), records("", OTHERS, 'do = "produce"'))
    assert outcome.could_not_run
    assert "no topic t-*" in (outcome.failure or "")


def test_a_run_that_fails_is_quiesced_too() -> None:
    """What was acknowledged until then is looked for all the same."""
    host = ScriptedHost()
    wait = 'do = "wait"\nuntil = "gone"\nnode = 1\ndeadline_ms = 20'
    outcome = run(host, records("", TWO_TOPICS, 'do = "produce"', wait))
    assert outcome.failure is not None
    assert host.calls[-1] == "quiesce 60000"
