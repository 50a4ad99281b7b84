"""Requests of a controller that none has sent: by a client's listener, and with an epoch that no controller has."""

from __future__ import annotations

from typing import Any

import pytest

from controller.broker.security.control_plane import WAITING_MAX
from controller.broker.security.principal import Requester
from controller.protocol.codec import SUPPORTED, ApiKey, encode_request
from controller.protocol.control import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from controller.protocol.errors import ErrorCode
from controller.protocol.schema import RequestValue
from controller.protocol.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.data_node import DataNode
from tests.broker.harness import Deferred, header, leader_and_isr, live, metadata

LAST_EPOCH = 2**31 - 1
TWO_LISTENERS: dict[str, Any] = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROL://127.0.0.1:9093,CLIENTS://127.0.0.1:9094",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT,CLIENTS:PLAINTEXT",
    "control_plane_listener_name": "CONTROL",
}


def stop_replica(epoch: int) -> StopReplicaRequest:
    state = StopReplicaPartitionState(0, 100, delete_partition=True)
    return StopReplicaRequest(1, epoch, (StopReplicaTopicState("t", (state,)),), -1)


def elsewhere(epoch: int) -> RequestValue:
    """Sends every client to a broker that does not exist."""
    return metadata(("t", 0, 9), brokers=live(9), controller_epoch=epoch, controller_id=9, broker_epoch=-1)


def forged(epoch: int) -> dict[ApiKey, RequestValue]:
    return {
        ApiKey.STOP_REPLICA: stop_replica(epoch),
        ApiKey.UPDATE_METADATA: elsewhere(epoch),
        ApiKey.LEADER_AND_ISR: leader_and_isr(9, 100, controller_epoch=epoch, broker_epoch=-1),
    }


def markers(epoch: int) -> WriteTxnMarkersRequest:
    """Ends a transaction of producer 1, as a coordinator of the epoch."""
    return WriteTxnMarkersRequest((WritableTxnMarker(1, 0, True, (WritableTxnMarkerTopic("t", (0,)),), epoch),))


def sent(node: DataNode, key: ApiKey, value: RequestValue, listener: str) -> Any:
    answer = Deferred(key, SUPPORTED[key].last)
    node.node.broker.receive(encode_request(header(key, answer.version), value), answer.take, Requester(listener))
    node.until(lambda: answer.answered)
    return answer.value()


def state_of(node: DataNode) -> tuple[Any, ...]:
    partition = node.node.broker.replicas.partition("t", 0)
    assert partition is not None
    snapshot = node.node.broker.metadata.snapshot
    assert node.logs.get("t", 0) is not None
    return partition.role, partition.leader_epoch, snapshot, node.node.broker.replicas.controller_epoch


@pytest.mark.parametrize("key", forged(1))
@pytest.mark.parametrize("listener", ["PLAINTEXT", "CLIENTS"])
def test_a_request_of_a_controller_is_refused_on_another_listener(key: ApiKey, listener: str) -> None:
    node = DataNode("t", **TWO_LISTENERS)
    before = state_of(node)
    for epoch in (1, LAST_EPOCH):
        answer = sent(node, key, forged(epoch)[key], listener)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert state_of(node) == before
    (line, _) = node.trace.notes("warning")[-2:]
    assert f"User:ANONYMOUS from 127.0.0.1 on listener {listener}" in line
    assert sent(node, key, forged(1)[key], "CONTROL").error_code == ErrorCode.NONE


def test_markers_are_taken_from_the_brokers_listener_alone_where_there_are_others() -> None:
    """Otherwise one with an epoch that no coordinator has makes the partition refuse the real one for ever."""
    node = DataNode("t", **TWO_LISTENERS)

    def written(epoch: int, listener: str) -> int:
        (marker,) = sent(node, ApiKey.WRITE_TXN_MARKERS, markers(epoch), listener).markers
        return int(marker.topics[0].partitions[0].error_code)

    assert written(LAST_EPOCH, "CLIENTS") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    line = "WriteTxnMarkers refused: User:ANONYMOUS from 127.0.0.1 on listener CLIENTS sent it"
    assert line in node.trace.notes("warning")[-1]
    assert written(LAST_EPOCH, "CONTROL") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert written(3, "PLAINTEXT") == ErrorCode.REQUEST_TIMED_OUT, "written, and not fenced; no follower is here"


@pytest.mark.parametrize("key", forged(1))
def test_an_epoch_that_no_controller_has_is_not_believed(key: ApiKey) -> None:
    """Without this the broker refuses the real controller from then on."""
    node = DataNode("t")
    before = state_of(node)
    answer = sent(node, key, forged(LAST_EPOCH)[key], "PLAINTEXT")
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert state_of(node) == before
    assert f"epoch {LAST_EPOCH}, /controller_epoch is 1" in node.trace.notes("warning")[-1]
    real = metadata(("t", 0, 1), broker_epoch=-1)
    assert node.ask(ApiKey.UPDATE_METADATA, real).error_code == ErrorCode.NONE


def test_a_new_epoch_is_believed_once_zookeeper_shows_it() -> None:
    node = DataNode("t")
    node.write("/controller_epoch", b"5")
    for epoch, error in ((6, ErrorCode.STALE_CONTROLLER_EPOCH), (5, ErrorCode.NONE)):
        assert node.ask(ApiKey.UPDATE_METADATA, metadata(controller_epoch=epoch, broker_epoch=-1)).error_code == error
    assert node.node.broker.replicas.controller_epoch == 5


def test_a_new_epoch_waits_for_zookeeper_and_the_known_one_does_not() -> None:
    node = DataNode("t")
    node.connection.cut()
    new = node.begin(ApiKey.UPDATE_METADATA, metadata(controller_epoch=2, broker_epoch=-1))
    known = node.begin(ApiKey.UPDATE_METADATA, metadata(controller_epoch=1, broker_epoch=-1))
    node.settle()
    assert (new.answered, known.answered) == (False, True)
    node.connection.heal()
    node.until(lambda: new.answered)
    assert new.value().error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_as_many_requests_wait_as_may_and_their_connections_close_with_the_session() -> None:
    node = DataNode("t")
    node.connection.cut()
    request = metadata(controller_epoch=LAST_EPOCH, broker_epoch=-1)
    begun = [node.begin(ApiKey.UPDATE_METADATA, request) for _ in range(WAITING_MAX + 5)]
    assert [one.frames for one in begun if one.answered] == [[None]] * 4, "one is being asked about, 100 wait"
    node.zookeeper.expire(node.node.client.session())
    node.connection.heal()
    node.until(lambda: all(one.answered for one in begun))
    assert begun[0].frames == [None]
    assert all(len(one.frames) == 1 for one in begun)


def test_an_epoch_that_can_not_be_read_closes_the_connection() -> None:
    node = DataNode("t")
    before = state_of(node)
    node.write("/controller_epoch", b"none")
    asked = node.begin(ApiKey.UPDATE_METADATA, elsewhere(LAST_EPOCH))
    node.until(lambda: asked.answered)
    assert asked.frames == [None]
    assert state_of(node)[:3] == before[:3]
