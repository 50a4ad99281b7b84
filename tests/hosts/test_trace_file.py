"""A process's trace: whole lines at once, on the machine's monotonic clock, from any thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from controller.hosts.process_output import ProcessTrace
from controller.trace import Noted, SessionStarted
from controller.trace_records import decode_record


def test_every_event_is_a_line_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = ProcessTrace(path, node=3)
    before_ms = time.monotonic() * 1_000.0
    trace.emit(SessionStarted(7))
    record = decode_record(path.read_bytes())
    assert (record.node, record.event) == (3, SessionStarted(7))
    assert before_ms - 0.001 <= record.at_ms <= time.monotonic() * 1_000.0 + 0.001
    trace.close()


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = ProcessTrace(path, node=1)

    def emit(name: int) -> None:
        for number in range(200):
            trace.emit(Noted("debug", f"{name}:{number}"))

    threads = [threading.Thread(target=emit, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    records = [decode_record(line) for line in path.read_bytes().splitlines()]
    assert len(records) == 800
    assert [record.at_ms for record in records] == sorted(record.at_ms for record in records)


def test_a_broker_that_starts_again_adds_to_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for session in (1, 2):
        trace = ProcessTrace(path, node=1)
        trace.emit(SessionStarted(session))
        trace.close()
        trace.emit(SessionStarted(99))  # after the end: the log alone
    events = [decode_record(line).event for line in path.read_bytes().splitlines()]
    assert events == [SessionStarted(1), SessionStarted(2)]
    assert not ProcessTrace(None, node=1).enabled
