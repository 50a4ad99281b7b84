"""Brokers as child processes: started with their settings, waited for, killed, paused, and gone when this process is.

Blocking calls with deadlines, for programs that run a cluster. A child's output goes to a log file, where its ready
line is looked for.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import javaproperties

from controller.broker.setting_types import Address, address
from controller.zookeeper import launch

READY = re.compile(rb"^broker (?P<id>[0-9]+) ready at (?P<address>\S+)$", re.MULTILINE)
LOOK_S = 0.02
LOG_TAIL_LINES = 15
STOP_LIMIT_S = 30.0
CONNECTION_TIMEOUT_MS = 60_000
"""For brokers beside a ZooKeeper of their own: the setting's default is the session timeout, which a test wants short,
and a machine that starts many processes at once may take longer than that to answer the first."""


class BrokerDied(Exception):
    """A broker ended by itself; the message has its exit status and the end of its log."""


class BrokerNotReady(Exception):
    """A broker, or a cluster of them, was not ready in time."""


class BrokerProcess:
    """One broker's process, and the next one after it is gone. `settings` are server.properties' names and values."""

    def __init__(self, broker_id: int, settings: Mapping[str, str], folder: Path) -> None:
        self.broker_id = broker_id
        self.settings = dict(settings) | {"broker.id": str(broker_id)}
        self.config_file = folder / f"broker-{broker_id}.properties"
        self.log_file = folder / f"broker-{broker_id}.log"
        self._process: launch.Process | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._alive().pid

    @property
    def exit_status(self) -> int | None:
        """The exit status as subprocess reports it (-9 for SIGKILL), or None while it runs or before the start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Returns when the process runs, not when it is ready. RuntimeError if it runs already."""
        if self.running:
            raise RuntimeError(f"broker {self.broker_id} is running already")
        self.config_file.write_text(javaproperties.dumps(self.settings, timestamp=False), encoding="latin-1")
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = launch.launch(
                [sys.executable, "-m", "controller.cli", "broker", "--config", str(self.config_file)],
                stdout=log,
                stderr=log,
            )

    def await_ready(self, deadline: float) -> Address:
        """Wait until the broker is registered and serves, and return its address.

        Args:
            deadline: as time.monotonic() counts.

        Raises:
            BrokerDied: the process ended first.
            BrokerNotReady: the deadline passed.
        """
        while (found := self.ready_at()) is None:
            self.require_running()
            if time.monotonic() > deadline:
                raise BrokerNotReady(f"broker {self.broker_id} was not ready in time{self.log_tail()}")
            time.sleep(LOOK_S)
        return found

    def ready_at(self) -> Address | None:
        """Return the address in the current process's ready line, or None if it has not written one."""
        if self._process is None:
            return None
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            match = READY.search(log.read())
        return address(match["address"].decode()) if match else None

    def require_running(self) -> None:
        if not self.running:
            raise BrokerDied(f"broker {self.broker_id} ended by itself, status {self.exit_status}{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL."""
        launch.kill(self._alive())

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """SIGTERM, a controlled shutdown; killed after `limit_s`. The exit status."""
        return launch.stop(self._alive(), limit_s)

    def pause(self) -> None:
        """SIGSTOP."""
        launch.pause(self._alive())

    def resume(self) -> None:
        launch.resume(self._alive())

    def close(self) -> None:
        """Kills it if it runs."""
        if self.running:
            self.kill()

    def log_tail(self) -> str:
        """The last lines of its log, each on a line of its own, to put behind a message."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "".join(f"\n    {line}" for line in lines[-LOG_TAIL_LINES:])

    def _alive(self) -> launch.Process:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"broker {self.broker_id} is not running")
        return self._process
