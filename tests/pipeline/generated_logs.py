"""Logs of a cluster, as large as one wants: a real one's, over and over, an hour later each time and with controller
epochs that go on, so that nothing in them is wrong. One broker's make up most of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

REAL = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "logs"
TERMS = 2
"""Of the real logs: epochs 1 and 2."""


def generate_cluster(folder: Path, megabytes: float) -> int:
    """How many lines there are. Broker 3's logs are three quarters of all bytes, as they are in the real ones."""
    lines = 0
    files = sorted(REAL.rglob("*.log"))
    times = max(1, round(megabytes * 1e6 / sum(file.stat().st_size for file in files)))
    for real in files:
        path = folder / real.parent.name / real.name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = real.read_bytes()
        with path.open("wb") as file:
            for number in range(times):
                file.write(later(text, number))
        lines += text.count(b"\n") * times
    return lines


def later(text: bytes, hours: int) -> bytes:
    """The same, that many hours and twice that many controller epochs later."""
    at = datetime.fromisoformat("2026-01-01T00:00:00") + timedelta(hours=hours)
    found = text.replace(b"[2026-11-21 08:", at.strftime("[%Y-%m-%d %H:").encode())
    for epoch in range(TERMS, 0, -1):  # the higher one first: what it becomes is no lower one
        new = epoch + TERMS * hours
        for before, after in ((b"epoch=", b"]"), (b"Epoch incremented to ", b" "), (b"epoch zk version is now ", b" ")):
            found = found.replace(before + b"%d" % epoch + after, before + b"%d" % new + after)
    return found
