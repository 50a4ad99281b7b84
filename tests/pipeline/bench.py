"""`python -m tests.pipeline.bench`: what parsing logs costs, beside a plain parse of the same lines in Python, and what
memory it takes as files grow. Processor time, so that it can be read on a busy machine; no part of the test suite.

The logs are a real broker's, over and over, an hour later each time. The plain parse reads the same texts with the same
patterns by `re`, one line after the other, into one list a column; it writes nothing. The other one is a task's whole
work (`store.write_chunk`), Parquet files included.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from controller.pipeline.event_table import EVENTS, FIELDS
from controller.pipeline.log_parsing import (
    CONTINUED,
    CONTROLLER,
    STATE_CHANGE_LOGGER,
    STATE_CHANGES,
    WHO_EPOCH,
    WHO_NODE,
)
from controller.pipeline.reading import chunks_of
from controller.pipeline.store import write_chunk

REAL = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "logs" / "broker-3" / "state-change.log"
HEAD = re.compile(
    r"\[(?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8},[0-9]{3})\] (?P<level>[A-Z]+) "
    r"(?:\[(?P<who>[^\]]*)\]:? ?)?(?P<text>.*) \((?P<logger>[A-Za-z_][\w.$]*)\)$"
)
_CONTINUED, _NODE, _EPOCH = re.compile(CONTINUED), re.compile(WHO_NODE), re.compile(WHO_EPOCH)
_TEXTS = {
    name: [(text.phrase, re.compile(text.pattern), text) for text in texts]
    for name, texts in (("state", STATE_CHANGES), ("other", CONTROLLER))
}
_NUMBERS = re.compile(r"-?[0-9]+")


def generate(path: Path, megabytes: float) -> int:
    """How many lines it has."""
    real, lines = REAL.read_bytes(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        hour = datetime.fromisoformat("2026-01-01T00:00:00")
        while file.tell() < megabytes * 1e6:
            file.write(real.replace(b"[2026-11-21 08:", hour.strftime("[%Y-%m-%d %H:").encode()))
            hour += timedelta(hours=1)
            lines += real.count(b"\n")
    return lines


def plain_parse(path: Path) -> int:
    """How many events."""
    columns: dict[str, list[Any]] = {name: [] for name in EVENTS.names}
    with path.open(encoding="utf-8") as file:
        for place, line in enumerate(file):
            row = _plain_row(line.rstrip("\n"))
            if row is not None:
                row["place"] = place
                for name, values in columns.items():
                    values.append(row.get(name))
    return len(columns["at"])


def _plain_row(line: str) -> dict[str, Any] | None:
    head = HEAD.match(line)
    if head is None:
        _CONTINUED.match(line)
        return None
    who, text = head["who"] or "", head["text"]
    node, epoch = _NODE.search(who), _EPOCH.search(who)
    row: dict[str, Any] = {
        "at": datetime.fromisoformat(head["at"].replace(",", ".")),
        "level": head["level"],
        "node": int(node["node"]) if node else -1,
        "controller_epoch": int(epoch["controller_epoch"]) if epoch else None,
    }
    for phrase, pattern, one in _TEXTS["state" if head["logger"] == STATE_CHANGE_LOGGER else "other"]:
        if phrase in text and (found := pattern.match(text)) is not None:
            row |= {"event": one.event, **one.constants}
            row |= {name: _plain_value(name, word) for name, word in found.groupdict().items() if word is not None}
            return row
    return None


def _plain_value(name: str, word: str) -> Any:
    if pa.types.is_list(FIELDS[name]):
        return [int(number) for number in _NUMBERS.findall(word)]
    return int(word) if FIELDS[name] == pa.int64() else word


def tasks(path: Path, table: Path) -> None:
    for number, chunk in enumerate(chunks_of([path])):
        write_chunk(chunk, f"{number:06}", table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100.0], help="sizes of the file, one run each")
    parser.add_argument("--parse", type=Path, help="parses this file and tells the memory; what the runs start")
    arguments = parser.parse_args()
    if arguments.parse is not None:
        with tempfile.TemporaryDirectory() as scratch:
            tasks(arguments.parse, Path(scratch))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    for megabytes in arguments.megabytes:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "broker-3" / "state-change.log"
            lines = generate(path, megabytes)
            began_s = time.process_time()
            tasks(path, Path(scratch) / "table")
            arrow_s = time.process_time() - began_s
            began_s = time.process_time()
            events = plain_parse(path)
            plain_s = time.process_time() - began_s
            command = [sys.executable, "-m", "tests.pipeline.bench", "--parse", str(path)]
            memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            print(
                f"{megabytes:g} MB, {lines} lines, {events} events: {arrow_s:.2f} s to Parquet"
                f" ({arrow_s / lines * 1e6:.2f} us a line), plain parse {plain_s:.2f} s"
                f" ({plain_s / lines * 1e6:.2f} us a line): {plain_s / arrow_s:.2f} times; {memory} MB at most",
                flush=True,
            )


if __name__ == "__main__":
    main()
