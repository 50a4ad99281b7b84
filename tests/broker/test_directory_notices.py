"""A log directory that fails is told to the controller: by a notice that is there in the end, and one for many."""

from __future__ import annotations

import pytest

from controller.broker.zookeeper_services import AGAIN_MS, DirectoryNotices
from controller.clock import Future, VirtualClock
from controller.trace import Noted
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import LogDirEvent, decode_log_dir_event
from controller.zookeeper.operations import ConnectionLost, SessionGone
from tests.broker.harness import KeptTrace
from tests.zookeeper.client_bench import Bench


class Leaving:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.trace = KeptTrace()
        self.asked: list[Future[None]] = []
        self.notices = DirectoryNotices(self._leave, self.clock, self.trace)

    def _leave(self) -> Future[None]:
        self.asked.append(Future())
        return self.asked[-1]


def test_one_notice_speaks_for_all_that_failed_before_it_was_written() -> None:
    leaving = Leaving()
    for _ in range(3):
        leaving.notices.failed()
    assert len(leaving.asked) == 1
    leaving.asked[0].resolve(None)
    leaving.clock.advance_to(1.0)
    assert len(leaving.asked) == 2, "two failed after the first was sent"
    leaving.asked[1].resolve(None)
    leaving.clock.advance_to(2.0)
    assert len(leaving.asked) == 2


def test_a_notice_that_was_not_left_is_left_later() -> None:
    leaving = Leaving()
    leaving.notices.failed()
    leaving.asked[0].fail(ConnectionLost("planted"))
    leaving.clock.advance_to(AGAIN_MS / 2)
    assert [note.level for note in leaving.trace.events(Noted)] == ["warning"]
    assert len(leaving.asked) == 1
    leaving.clock.advance_to(2 * AGAIN_MS)
    assert len(leaving.asked) == 2


def test_a_session_that_ended_needs_no_notice() -> None:
    leaving = Leaving()
    leaving.notices.failed()
    leaving.asked[0].fail(SessionGone(1))
    leaving.clock.advance_to(10 * AGAIN_MS)
    assert len(leaving.asked) == 1


def test_a_defect_of_ours_is_not_taken_for_zookeepers() -> None:
    leaving = Leaving()
    leaving.notices.failed()
    leaving.asked[0].fail(KeyError("planted"))
    with pytest.raises(KeyError):
        leaving.clock.advance_to(1.0)


def test_the_notice_is_a_child_that_kafka_would_read() -> None:
    bench = Bench()
    writes = BrokerDataWrites(bench.node().client)
    bench.run(writes.ensure_persistent_paths())
    for _ in range(2):
        bench.run(writes.notify_of_failed_directory(3))
    names = bench.server.children(paths.LOG_DIR_EVENT_NOTIFICATION)
    assert names == ("log_dir_event_0000000000", "log_dir_event_0000000001")
    path = paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, names[1])
    row = bench.row(path)
    assert row is not None
    assert decode_log_dir_event(path, row.data) == LogDirEvent(3)
