"""Paths are spelled as a real cluster spells them, and taken apart again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.zookeeper import paths
from controller.zookeeper.cluster_state import load

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"


def test_every_path_of_a_real_cluster_is_one_that_is_spelled_here() -> None:
    fixed = {value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}
    for path in load(DATA / "znodes-after-admin.txt").nodes:
        topic, partition = paths.topic_of(path), re.search(r"/partitions/(\d+)", path)
        spelled = {*fixed, "/"}
        if topic is not None:
            spelled |= {paths.topic(topic), paths.partitions(topic)}
        if topic is not None and partition is not None:
            number = int(partition[1])
            spelled |= {paths.partition(topic, number), paths.partition_state(topic, number)}
        name = path.rpartition("/")[2]
        spelled |= {paths.config_topic(name), paths.child(paths.CONFIG_CHANGES, name)}
        if name.isdigit():
            spelled.add(paths.broker(int(name)))
        assert path in spelled


def test_persistent_paths_come_parents_first_and_are_all_in_a_real_cluster() -> None:
    nodes = load(DATA / "znodes.txt").nodes
    made: set[str] = {""}
    for path in paths.PERSISTENT_PATHS:
        assert path.rpartition("/")[0] in made
        made.add(path)
        assert path in nodes
    order = [nodes[path].stat.czxid for path in paths.PERSISTENT_PATHS]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("path", "topic", "partition", "broker"),
    [
        ("/brokers/topics/a.b-c_1", "a.b-c_1", None, None),
        ("/brokers/topics/t/partitions", "t", None, None),
        ("/brokers/topics/t/partitions/12", "t", None, None),
        ("/brokers/topics/t/partitions/12/state", "t", ("t", 12), None),
        ("/brokers/topics/t/partitions/x/state", "t", None, None),
        ("/brokers/topics", None, None, None),
        ("/brokers/ids/1001", None, None, 1001),
        ("/brokers/ids/-1", None, None, None),
        ("/brokers/ids", None, None, None),
        ("/controller", None, None, None),
    ],
)
def test_paths_are_taken_apart(
    path: str, topic: str | None, partition: tuple[str, int] | None, broker: int | None
) -> None:
    assert paths.topic_of(path) == topic
    assert paths.partition_of(path) == partition
    assert paths.broker_of(path) == broker


def test_paths_in_bulk_are_the_same() -> None:
    assert paths.partition_states("t", [0, 7]) == [paths.partition_state("t", 0), paths.partition_state("t", 7)]
    assert paths.child("/", "a") == "/a"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"
    assert paths.config_broker(1) == "/config/brokers/1"
