"""A client that is a process of its own, so that it can stand still (SIGSTOP) and die (SIGKILL) as an application does.

The child runs a module of this package with one argument, its configuration as JSON. It writes an event a line to its
standard output, as a JSON array that begins with the event's name; a thread of this process takes them. What was
written before a SIGKILL is taken; a line that it tore is not. SIGTERM asks the child to end in order, SIGUSR1 says that
another has come in its place.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

from controller.scenarios.records.workload import TransactionStage
from controller.zookeeper.launch import kill, launch, pause, resume

Event = list[Any]
Undo = Callable[[], None]
_JOIN_S = 10.0


class ClientProcess:
    """Starts on construction. `taken` receives each event, on a thread of the client's own. `log`: where the child's
    standard error goes."""

    def __init__(self, module: str, config: Mapping[str, Any], log: Path, taken: Callable[[Event], None]) -> None:
        self.is_paused = False
        self.leaving = False
        self._killed = False
        self._taken = taken
        with log.open("ab") as errors:
            self._process = launch(
                [sys.executable, "-m", module, json.dumps(dict(config))], stdin=PIPE, stdout=PIPE, stderr=errors
            )
        assert self._process.stdout is not None
        self._thread = threading.Thread(
            target=self._take_all, args=(self._process.stdout,), name=module.rpartition(".")[2], daemon=True
        )
        self._thread.start()

    def _take_all(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                if line.endswith(b"\n"):
                    self._taken(json.loads(line))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def error(self) -> str | None:
        """That it ended of itself with an error; None if it did not."""
        status = self._process.poll()
        if status in (None, 0) or self._killed:
            return None
        return f"ended of itself with status {status}"

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def say(self, words: str) -> None:
        """Write a line to its standard input, if it runs."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(words.encode() + b"\n")
            self._process.stdin.flush()

    def leave(self) -> None:
        """Ask it to end in order."""
        self.leaving = True
        self._signal(signal.SIGTERM)

    def supersede(self) -> None:
        """Say that another has come in its place."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: int) -> None:
        if self.is_running:
            self._process.send_signal(number)

    def pause(self) -> None:
        if self.is_running:
            self.is_paused = True
            pause(self._process)

    def resume(self) -> None:
        if self.is_running:
            self.is_paused = False
            resume(self._process)

    def kill(self) -> None:
        """SIGKILL; all events that it wrote are taken when this returns."""
        self._killed = True
        kill(self._process)
        self._thread.join(_JOIN_S)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended within the time, with all its events taken."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


class StopsOfClient:
    """Where a client is to stop, and whether it is there."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._process: ClientProcess | None = None

    def of(self, process: ClientProcess) -> None:
        """The client's present life."""
        self._process = process

    def take(self, event: Event) -> None:
        if event[0] == "stage":
            self._reached.set()

    def hold(self, stage: TransactionStage, deadline_ms: float) -> bool:
        self._reached.clear()
        self._ask(f"hold {stage.value}")
        if self._reached.wait(deadline_ms / 1000):
            return True
        self.release()
        return False

    def release(self) -> None:
        self._ask("release")

    def _ask(self, words: str) -> None:
        if self._process is not None:
            self._process.say(words)


class ClientLife(ABC):
    """A client from its start to its end. `take` is called with each event of its process, under `lock`; what it needs
    is set before this class begins."""

    def __init__(
        self, module: str, config: Mapping[str, Any], log: Path, lock: threading.Lock, stops: StopsOfClient
    ) -> None:
        self.superseded = False
        self._lock = lock
        self._stops = stops
        self.process = ClientProcess(module, config, log, self._taken)
        stops.of(self.process)

    @abstractmethod
    def take(self, event: Event) -> None: ...

    def _taken(self, event: Event) -> None:
        self._stops.take(event)
        with self._lock:
            self.take(event)

    def stand_still(self) -> Undo:
        """Return what has it go on."""
        self.process.pause()
        return self.process.resume

    def go_on(self) -> Undo:
        self.process.resume()
        return lambda: None

    def give_way(self) -> None:
        """It stands still, and is to know that another takes its place. It goes on with what it was at once it is
        resumed."""
        self._stops.release()
        self.process.pause()
        self.superseded = True
        self.process.supersede()


class EventPipe:
    """A child's end of the pipe."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer

    def write(self, *event: Any) -> None:
        self._out.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        self._out.flush()


class SignalsTaken:
    """What a child was asked to do by signals."""

    def __init__(self) -> None:
        self.leaving = self.superseded = False
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGUSR1, self._supersede)

    def _leave(self, *_: object) -> None:
        self.leaving = True

    def _supersede(self, *_: object) -> None:
        self.superseded = True


def configuration(arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration that a child was started with."""
    parsed: dict[str, Any] = json.loads(arguments[1])
    return parsed
