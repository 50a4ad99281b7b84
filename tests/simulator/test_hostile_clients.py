"""Hostile clients in plans: what they do, that clusters bear it, and that what cannot is found."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from controller.protocol import SUPPORTED, ApiKey, decode_request
from controller.protocol.errors import ProtocolError
from controller.scenarios.faults import CreateTopic, HostileClient, HostileKind, Operation
from controller.scenarios.files import ScenarioError, parse_plan, plan_text
from controller.scenarios.language import ClusterSpec, Plan
from controller.simulator.hostile_clients import CONNECTIONS_MAX, TOPIC_NAMES, _Connection
from controller.simulator.plan_generator import draw_plan
from controller.simulator.senseless_requests import OF_BROKERS
from controller.simulator.server import Server
from controller.simulator.swarm import PlanWorld, run_plan
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from tests.simulator import planted

KINDS: tuple[HostileKind, ...] = get_args(HostileKind)


def attacked(kind: HostileKind) -> Plan:
    """A cluster of three that one hostile client of that kind attacks for three seconds."""
    return Plan(
        name="attacked",
        seed=3,
        cluster=ClusterSpec(brokers=3, settings={"log.dirs": "/logs"}),
        core=(1, 2, 3),
        calm_ms=5_000.0,
        happenings=(
            CreateTopic(at_ms=1_000.0, topic="t", partitions=3, replication_factor=3),
            HostileClient(at_ms=1_500.0, node=1, kind=kind, for_ms=3_000.0, rate=5.0 if kind == "drops" else 120.0),
        ),
    )


class Watched:
    """What hostile clients send, and what they are answered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        self.answers = self.opened = 0
        send, open_it = _Connection.send, _Connection.__init__

        def sent(connection: _Connection, frame: bytes) -> None:
            self.sent.append(frame)
            send(connection, frame)

        def arrived(connection: _Connection, frame: bytes) -> None:
            self.answers += 1

        def opened(connection: _Connection, *arguments: object) -> None:
            self.opened += 1
            open_it(connection, *arguments)  # type: ignore[arg-type]  # as it was called

        patch.setattr(_Connection, "send", sent)
        patch.setattr(_Connection, "arrived", arrived)
        patch.setattr(_Connection, "__init__", opened)

    def apis(self) -> Counter[str]:
        return Counter(decode_request(frame, SUPPORTED).header.api_key.name for frame in self.sent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_bears_a_hostile_client(kind: HostileKind, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    run = run_plan(attacked(kind))
    assert run.violation is None, str(run.violation)
    assert run.rest_ms is not None
    assert watched.opened > 0
    if kind == "connections":
        assert (len(watched.sent), watched.opened) == (0, CONNECTIONS_MAX)
    elif kind == "frames":
        for frame in watched.sent:
            with pytest.raises(ProtocolError):
                decode_request(frame, SUPPORTED)
    else:
        assert watched.answers > 20
        assert not {ApiKey[name] for name in watched.apis()} & OF_BROKERS
        assert len(watched.apis()) >= (6 if kind == "operations" else 15)


def test_some_operations_are_carried_out_and_no_topic_of_a_plan_is_touched() -> None:
    world = PlanWorld(attacked("operations"))
    world.run_to(4_400.0)
    assert world.safety_checker.violation is None
    written = [one.event for one in world.safety_checker.records if isinstance(one.event, PartitionStateWritten)]
    created = {event.topic for event in written if event.why == "initial"} - {"t"}
    assert len(created) >= 3
    assert created <= TOPIC_NAMES
    assert world.simulation.zookeeper.row(paths.topic("t")) is not None


def test_a_run_with_hostile_clients_is_the_same_each_time() -> None:
    assert run_plan(attacked("drops")).trace_hash == run_plan(attacked("drops")).trace_hash


def test_a_drawn_plan_has_them_now_and_then_and_sometimes_nothing_else() -> None:
    plans = [draw_plan(seed) for seed in range(200)]
    found = [plan for plan in plans if plan.has_hostile_clients]
    assert 20 < len(found) < 80
    assert any(plan.terms_last for plan in found)
    assert {each.kind for plan in found for each in plan.happenings if isinstance(each, HostileClient)} == {*KINDS}
    for plan in found:
        assert parse_plan(plan_text(plan), "its own text") == plan
        assert not {each.topic for each in plan.happenings if isinstance(each, Operation)} & TOPIC_NAMES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "friendly"}, "Invalid enum value 'friendly'"),
        ({"node": 4}, r"happenings\[1\] \(hostile-client\): node: expected 1 to 3, found 4"),
        ({"rate": 0.0}, r"Expected `float` > 0.0 - at `\$.happenings\[1\].rate`"),
        ({"rate": 5_000.0}, r"Expected `float` <= 1000.0 - at `\$.happenings\[1\].rate`"),
    ],
)
def test_a_hostile_client_that_no_plan_can_have_is_refused(change: dict[str, object], said: str) -> None:
    text = plan_text(attacked("frames"))
    for name, value in change.items():
        before = next(line for line in text.splitlines()[::-1] if line.startswith(f"{name} = "))
        head, _, tail = text.rpartition(before)
        text = f"{head}{name} = {value!r}{tail}"
    with pytest.raises(ScenarioError, match=said):
        parse_plan(text, "a plan")


PLANTED: dict[str, HostileKind] = {
    "topic-names-not-checked": "operations",
    "replicas-named-twice-accepted": "operations",
    "malformed-frames-not-answered": "frames",
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.FAULTS[fault](monkeypatch)
    assert run_plan(attacked(PLANTED[fault])).violation is not None


def test_a_term_that_ends_without_a_fault_is_found() -> None:
    world = PlanWorld(attacked("connections"))
    world.run_to(2_000.0)
    controller = world.simulation.node(world.simulation.controller or 0)
    assert controller is not None
    controller.controller.resign("a client asked for something")
    violation = world.safety_checker.violation
    assert violation is not None
    assert violation.invariant == "terms-last"
    assert violation.detail == "epoch 1 ended without a fault: a client asked for something"


def test_a_broker_that_answers_clients_no_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listener takes no connection after the first hundred."""
    accept, accepted = Server.accept, Counter[int]()

    def accept_some(server: Server, socket: object) -> None:
        accepted[id(server)] += 1
        if accepted[id(server)] <= 100:
            accept(server, socket)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(Server, "accept", accept_some)
    violation = run_plan(attacked("connections")).violation
    assert violation is not None
    assert (violation.invariant, violation.nodes) == ("clients-answered", (1,))
