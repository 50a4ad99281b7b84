"""Real members of a consumer group, each a process: they join, leave, die, stand still and are replaced."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import confluent_kafka
import pytest

import controller.chaos
import controller.simulator
from controller.chaos.clock import ScenarioClock
from controller.chaos.group_member import generation_of
from controller.chaos.group_members import RealGroup
from controller.chaos.record_clients import CLIENT_CONFIG
from controller.scenarios.faults import REAL, ChangeMember
from controller.scenarios.files import parse_scenario
from controller.scenarios.records.checks import GROUP_RECORD_CHECKS
from controller.scenarios.records.group_checks import GROUP_CHECKS
from controller.scenarios.records.history import history_of
from controller.scenarios.records.payload import Payload, encode_payload
from controller.scenarios.records.workload import HONOURED, RecordWorkload, not_honoured
from controller.scenarios.runner import refusal
from controller.testing import Kafka
from tests.processes import DEADLINE_S, eventually

TOPIC, PARTITIONS, RECORDS = "t", 4, 40


def write(cluster: Kafka, first: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    for number in range(first, first + RECORDS):
        payload = Payload(0, number % PARTITIONS, number, 0.0)
        producer.produce(TOPIC, encode_payload(payload, 100), partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def test_members_on_processes_keep_the_groups_invariants(tmp_path: Path) -> None:
    names = [(TOPIC, number) for number in range(PARTITIONS)]
    with Kafka(brokers=1) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        write(cluster, 0)
        workload = RecordWorkload(members=2, group_session_ms=600)
        group = RealGroup(
            {"bootstrap.servers": cluster.bootstrap_servers},
            workload,
            names,
            ScenarioClock(),
            tmp_path,
            CLIENT_CONFIG | {"log_level": 2},
        )
        try:
            eventually(lambda: {one.client for one in group.log.current} == {0, 1}, "both have their assignments")
            resume = group.change(ChangeMember(member=0, how="replace"))
            assert resume is not None
            eventually(lambda: {one.client for one in group.log.current} == {0, 1}, "the third takes part")
            group.change(ChangeMember(member=1, how="die"))
            resume()
            write(cluster, RECORDS)
            group.settle([2 * RECORDS // PARTITIONS] * PARTITIONS)
        finally:
            group.close()
    history = history_of(names, [], group.reads, group=group.history())
    found = {name: check(history) for name, check in GROUP_CHECKS.items()}
    assert {name: one.detail for name, one in found.items() if one.held is not True} == {}
    assert group.live == []
    assert len(group.history().assignments) >= 4
    assert set(GROUP_CHECKS) < set(GROUP_RECORD_CHECKS)


def test_a_group_metadata_of_another_format_is_refused() -> None:
    consumer = confluent_kafka.Consumer({"group.id": "g", "bootstrap.servers": "", "log_level": 0})
    assert generation_of(consumer.consumer_group_metadata()) == -1
    with pytest.raises(ValueError, match="expected b'CGMDv2:'"):
        generation_of(b"CGMDv3:\0\0\0\0")


SCENARIO = """
name = "x"
[workload.records]
members = 2
[[steps]]
do = "start"
[[steps]]
do = "produce"
[[steps]]
do = "change-member"
member = 1
how = "{how}"
for_ms = 10
"""


def test_a_key_that_a_hosts_clients_ignore_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = parse_scenario(SCENARIO.format(how="pause"), "x")
    assert refusal(scenario, REAL) is None, "changes of members end after for_ms on real processes too"
    monkeypatch.setitem(HONOURED, REAL, HONOURED[REAL] - {"members"})
    assert refusal(scenario, REAL) == "x: workload.records.members is not supported by clients of the host 'real'"


@pytest.mark.parametrize(("host", "package"), [("real", controller.chaos), ("simulated", controller.simulator)])
def test_what_a_host_says_that_its_clients_obey_they_read(host: str, package: object) -> None:
    folder = Path(inspect.getfile(package)).parent  # type: ignore[arg-type]
    read = {
        node.attr
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert HONOURED[host] - read - {"topics"} == set(), "the runner chooses the topics"
    assert not_honoured(RecordWorkload(), host) == []
