"""DescribeLogDirs: which replica lies where, and how large it is."""

from __future__ import annotations

import pytest

from controller.protocol.admin import (
    DescribableLogDirTopic,
    DescribedLogDir,
    DescribedReplica,
    DescribedReplicas,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.broker.data_node import DataNode
from tests.storage.batches import batch


@pytest.fixture
def node() -> DataNode:
    """Leads "t", with three records, and "u", with none."""
    node = DataNode("t", "u")
    log = node.logs.get("t", 0)
    assert log is not None
    log.append_as_follower(batch(3))
    return node


SIZE = len(batch(3))
T = DescribedReplicas("t", (DescribedReplica(0, SIZE, 0),))
U = DescribedReplicas("u", (DescribedReplica(0, 0, 0),))


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, (T, U)),
        ((DescribableLogDirTopic("t", (0,)), DescribableLogDirTopic("gone", (0,))), (T,)),
        ((DescribableLogDirTopic("u", (1,)),), ()),
        ((), ()),
    ],
    ids=["all", "one that is here and one that is not", "another partition", "none"],
)
def test_each_directory_says_what_is_in_it(
    node: DataNode,
    version: int,
    asked: tuple[DescribableLogDirTopic, ...] | None,
    told: tuple[DescribedReplicas, ...],
) -> None:
    answer = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(asked), version)
    assert answer == DescribeLogDirsResponse((DescribedLogDir(ErrorCode.NONE, "logs", told),))


def test_a_directory_that_failed_is_told_of_as_such(node: DataNode) -> None:
    node.logs.directories[0].health.fail(OSError("planted"))
    answer = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
    assert answer.results == (DescribedLogDir(ErrorCode.KAFKA_STORAGE_ERROR, "logs"),)


def test_a_log_that_lacks_what_is_committed_says_how_much(node: DataNode) -> None:
    partition = node.node.broker.replicas.partition("t", 0)
    assert partition is not None
    partition.high_watermark = 5  # as its leader told it
    (result,) = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None)).results
    assert result.topics[0].partitions[0].offset_lag == 2


def test_a_size_that_is_another_logs_is_seen(node: DataNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "controller.broker.replica_manager.DescribedReplica", lambda index, _size, lag: DescribedReplica(index, 0, lag)
    )
    (result,) = node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None)).results
    assert result.topics != (T, U)
