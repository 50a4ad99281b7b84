"""The line by which a broker's parent knows that it is ready, in a log that other threads write to as well."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from controller.hosts import process
from controller.hosts.local_cluster import READY


class Unbuffered(io.StringIO):
    """Each write goes out by itself, and a warning comes right behind it."""

    def write(self, text: str) -> int:
        return super().write(text) + super().write("WARNING something else\n")


def test_nothing_can_come_between_the_ready_line_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = SimpleNamespace(name="PLAINTEXT", host="127.0.0.1", port=9092)
    settings: Any = SimpleNamespace(broker_id=2, advertised=[listener], inter_broker_listener="PLAINTEXT")
    said = Unbuffered()
    monkeypatch.setattr(sys, "stdout", said)
    process._say_ready(settings)
    match = READY.search(said.getvalue().encode())
    assert match is not None
    assert match["address"] == b"127.0.0.1:9092"
