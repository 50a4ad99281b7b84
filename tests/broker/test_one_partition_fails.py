"""An unexpected exception in one partition: that partition's error, the others unaffected, and a retry succeeds."""

from __future__ import annotations

from typing import Any

import pytest

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.isr_manager import IsrManager
from controller.broker.log_maintenance import LogMaintenance
from controller.broker.partition import Partition, PartitionEvents, Role
from controller.broker.replica_manager import ReplicaManager
from controller.protocol.errors import ErrorCode
from controller.storage import PartitionLog
from tests.broker.leading import Holder, produced

NONE, FAILED = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


def fail_in(monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str, index: int = 1) -> None:
    """Plants an exception in a method for the partition with this index: it is the object or an argument of the
    method, or among the partitions in one."""
    method = getattr(kind, name)

    def planted(self: Any, *arguments: Any, **named: Any) -> Any:
        for one in (self, *arguments):
            held = one if isinstance(one, list | tuple) else (one,)
            if any(isinstance(each, Partition) and each.index == index for each in held):
                raise RuntimeError(f"planted in {name}")
        return method(self, *arguments, **named)

    monkeypatch.setattr(kind, name, planted)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Partition, "make_leader"),
        (Partition, "attach"),
        (ReplicaManager, "_take_role"),
        (PartitionEvents, "roles_changed"),
    ],
)
def test_a_leader_that_fails_leaves_the_others_of_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str
) -> None:
    broker = Holder(3)
    broker.hear((1,))
    with monkeypatch.context() as patch:
        fail_in(patch, kind, name)
        assert broker.lead((1,)) == [NONE, FAILED, NONE]
        assert any("t-1" in note and "planted" in note for note in broker.trace.notes("error"))
        assert produced(broker.produce(numbers=(0,))).base_offset == 0
        assert produced(broker.produce(numbers=(2,))).base_offset == 0
        assert produced(broker.produce(numbers=(1,))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.partition(1).leader_epoch < 4, "the epoch of what was not applied is not recorded"
    assert broker.lead((1,))[1] is NONE
    assert produced(broker.produce(numbers=(1,))).base_offset == 0


def test_a_follower_whose_fetcher_can_not_begin_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(3)
    broker.hear((1, 2))
    with monkeypatch.context() as patch:
        fail_in(patch, ReplicaFetcherManager, "_begun")
        assert broker.lead((1, 2), leader=2) == [NONE, FAILED, NONE]
        assert [broker.partition(number).fetching for number in range(3)] == [True, False, True]
    assert broker.lead((1, 2), leader=2)[1] is NONE
    assert broker.partition(1).fetching


def test_a_leader_that_fails_in_its_next_epoch_leads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(2)
    broker.begin_leading((1,))
    waiting = broker.produce(numbers=(1,))
    with monkeypatch.context() as patch:
        fail_in(patch, Partition, "make_leader")
        assert broker.lead((1,), leader_epoch=5) == [NONE, FAILED]
    assert produced(waiting).base_offset == 0
    assert (broker.partition(1).role, broker.partition(1).leader_epoch) == (Role.NONE, 4)
    assert broker.lead((1,), leader_epoch=4)[1] is ErrorCode.STALE_CONTROLLER_EPOCH
    assert broker.lead((1,), leader_epoch=5)[1] is NONE


def test_a_stop_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(3)
    broker.begin_leading((1,))
    with monkeypatch.context() as patch:
        fail_in(patch, Partition, "stop")
        assert broker.stop_replica(delete=True) == [NONE, FAILED, NONE]
    assert [broker.logs.get("t", number) is None for number in range(3)] == [True, False, True]
    assert broker.stop_replica(delete=True)[1] is NONE
    assert broker.logs.get("t", 1) is None


def test_a_step_after_metadata_that_fails_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(2)
    broker.begin_leading((1, 2), leader_epoch=4)
    told: list[str] = []
    monkeypatch.setattr(broker.broker.elections, "metadata_changed", lambda: 1 / 0)
    monkeypatch.setattr(broker.broker.data, "metadata_changed", lambda: told.append("data"))
    broker.hear((1, 2))
    assert told == ["data"]
    assert any("ZeroDivisionError" in note for note in broker.trace.notes("error"))


def test_an_isr_that_can_not_be_looked_at_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(3)
    broker.begin_leading((1, 2, 3))
    broker.produce(numbers=(0, 1, 2), acks=1)  # followers that fetch nothing fall behind
    fail_in(monkeypatch, IsrManager, "_propose")
    broker.later(61_000)
    assert broker.wanted()[-1] == {0: (1,), 2: (1,)}
    asked = len(broker.wanted())
    broker.later(61_000)
    assert len(broker.trace.notes("error")) > 1, "all of them are looked at again"
    assert len(broker.wanted()) >= asked


def test_upkeep_goes_on_after_a_log_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Holder(3, log_flush_scheduler_interval_ms="1000", log_flush_interval_ms="1")
    broker.begin_leading((1,))
    assert broker.broker.data is not None
    log_maintenance = LogMaintenance(broker.settings, broker.logs, broker.broker.replicas, broker.clock, broker.trace)
    log_maintenance.start()
    flush = PartitionLog.flush
    failing = [broker.log(1)]

    def planted(log: PartitionLog, up_to: int | None = None) -> None:
        if log in failing:
            raise RuntimeError("planted in flush")
        flush(log, up_to)

    monkeypatch.setattr(PartitionLog, "flush", planted)
    broker.log_settings = broker.settings.log
    for number in range(3):
        broker.log(number).settings = broker.settings.log
    broker.produce(numbers=(0, 1, 2))
    broker.later(3_000)
    assert [broker.log(number).recovery_point for number in range(3)] == [1, 0, 1]
    failing.clear()
    broker.later(3_000)
    assert broker.log(1).recovery_point == 1, "the task is done again at its next time"
