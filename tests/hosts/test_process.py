"""A broker process in this process, without ZooKeeper: what becomes of a defect of our own."""

from __future__ import annotations

from pathlib import Path

from controller.broker.settings import parse_settings
from controller.hosts.process import BrokerProcess
from controller.trace import Noted
from controller.trace_records import decode_record


def trip() -> None:
    raise KeyError("planted")


def test_an_exception_in_a_callback_is_told_in_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    process = BrokerProcess(
        parse_settings({"broker.id": "1", "zookeeper.connect": "nowhere:1", "camerlengo.trace.file": str(file)})
    )
    process._network.start()
    process._clock.call_later(0.0, trip)

    async def after() -> None:
        """Runs when the loop has come to what was asked before."""

    process._network.run(after(), 10.0)
    assert process._network.stop(10.0)
    events = [decode_record(line).event for line in file.read_bytes().splitlines()]
    assert [event.level for event in events if isinstance(event, Noted)] == ["error"]
    assert "planted" in str(events[0])
