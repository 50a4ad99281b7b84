"""One ZooKeeper server process on loopback: its files, its command line, and what it answers when asked.

`embedded.py` makes ensembles of them. A server is asked how it is by the four-letter word `srvr`, on a connection of
its own with a short deadline: the port accepts some 0.25 s before the server serves, and a connection made in that
gap may hang for a whole session timeout.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.zookeeper import launch
from controller.zookeeper.ports import LOOPBACK

PROBE_DEADLINE_SECONDS = 0.1
_PROBE_DEADLINE_MAX_SECONDS = 1.0
_PROBE_PAUSE_SECONDS = 0.02
_LOG_TAIL_LINES = 15

_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=*",
)
_LOG4J = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p [%t] %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class ServerDied(Exception):
    """The server's process ended while it was being started; carries the end of its log."""

    def __init__(self, server: ServerProcess, status: int) -> None:
        super().__init__(
            f"ZooKeeper server {server.index + 1} ended with status {status} as it started; {server.log_path} says:\n"
            f"{server.log_tail()}"
        )
        self.address_in_use = "Address already in use" in server.log_tail(200)


class ServerTimedOut(Exception):
    """The server did not serve before the deadline."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings that all servers of an ensemble share. Times in ms; `max_request_bytes` is jute.maxbuffer."""

    java: Path
    class_path: str
    tick_ms: int
    min_session_timeout_ms: int
    max_session_timeout_ms: int
    fsync: bool
    max_request_bytes: int
    java_options: tuple[str, ...]


class ServerProcess:
    """A server with its own directory (`zoo.cfg`, `data`, `log`). Not running until `start`."""

    def __init__(self, index: int, directory: Path, settings: ServerSettings) -> None:
        self.index = index
        self.directory = directory
        self.settings = settings
        self.port = 0
        self._process: launch.Process | None = None

    @property
    def log_path(self) -> Path:
        """The file with the server's output of all its starts."""
        return self.directory / "log"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process's pid, while there is one."""
        return self._process.pid if self.running else None  # type: ignore[union-attr]

    @property
    def running(self) -> bool:
        """Paused counts as running."""
        return self._process is not None and self._process.poll() is None

    def configure(self, port: int, peers: Mapping[int, tuple[int, int]]) -> None:
        """Writes the server's files. `peers` maps each server's number (from 1) to its quorum and election ports;
        empty for a server that stands alone."""
        self.port = port
        settings = self.settings
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        lines = [
            f"tickTime={settings.tick_ms}",
            f"dataDir={data}",
            f"clientPort={port}",
            f"clientPortAddress={LOOPBACK}",
            "maxClientCnxns=0",
            f"minSessionTimeout={settings.min_session_timeout_ms}",
            f"maxSessionTimeout={settings.max_session_timeout_ms}",
            "initLimit=20",
            "syncLimit=10",
        ]
        lines += [
            f"server.{number}={LOOPBACK}:{quorum}:{election}" for number, (quorum, election) in sorted(peers.items())
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (self.directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        if peers:
            (data / "myid").write_text(f"{self.index + 1}\n", encoding="utf-8")

    def start(self) -> None:
        """Start the process and return at once; `await_serving` waits until it serves."""
        if self.running:
            return
        settings = self.settings
        argv = [
            str(settings.java),
            *_JVM,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            f"-Djute.maxbuffer={settings.max_request_bytes}",
            f"-Dzookeeper.forceSync={'yes' if settings.fsync else 'no'}",
            *settings.java_options,
            "-cp",
            settings.class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]
        with self.log_path.open("ab") as log:
            self._process = launch.launch(argv, stdout=log, stderr=log)

    def mode(self, deadline_seconds: float = PROBE_DEADLINE_SECONDS) -> str | None:
        """ "standalone", "leader" or "follower", as the server itself says; None if it does not serve."""
        answer = four_letter_word(self.port, "srvr", deadline_seconds)
        match = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
        return match[1] if match and answer.startswith("Zookeeper version:") else None

    def await_serving(self, deadline: float) -> None:
        """Waits until the server serves. `deadline` is on time.monotonic. Raises ServerDied, ServerTimedOut."""
        patience = PROBE_DEADLINE_SECONDS
        while self.mode(patience) is None:
            status = None if self._process is None else self._process.poll()
            if status is not None:
                raise ServerDied(self, status)
            if time.monotonic() > deadline:
                raise ServerTimedOut(f"ZooKeeper server {self.index + 1} does not serve; its log is {self.log_path}")
            patience = min(patience * 1.2, _PROBE_DEADLINE_MAX_SECONDS)
            time.sleep(_PROBE_PAUSE_SECONDS)

    def stop(self) -> None:
        """Asks the server to end, and sees that it does."""
        if self._process is not None:
            launch.stop(self._process)

    def kill(self) -> None:
        if self._process is not None:
            launch.kill(self._process)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        if self._process is not None:
            launch.pause(self._process)

    def resume(self) -> None:
        if self._process is not None:
            launch.resume(self._process)

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def four_letter_word(port: int, word: str, deadline_seconds: float) -> str:
    """A server's answer to one of ZooKeeper's four-letter words; "" if it gave none in time."""
    deadline = time.monotonic() + deadline_seconds
    answer = b""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=deadline_seconds) as connection:
            connection.sendall(word.encode("ascii"))
            while (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                received = connection.recv(65536)
                if not received:
                    return answer.decode("utf-8", errors="replace")
                answer += received
    except OSError:
        # Refused, reset or too late: each says the same of the server, that it does not answer.
        return ""
    return ""
