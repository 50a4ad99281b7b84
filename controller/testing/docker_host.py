"""A cluster for tests whose brokers are containers, from the user's compose files and `docker compose`.

The compose files describe services `zookeeper-1` to `zookeeper-N` and `broker-1` to `broker-M` as docker/compose.yaml
of the repository does. A file that is generated over them sets free ports of this machine, the settings of the test and
a trace file, under a project name of its own: several clusters can run beside each other.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from controller.system import LOOPBACK, HeldPorts
from controller.testing.host import ClusterOptions, Target
from controller.testing.remote_host import RemoteHost

COMMAND_S = 240.0
"""How long a command of Docker's may take, the start of all containers included."""
STOP_S = 120
ZOOKEEPER_PORT = 2181
ZOOKEEPER_NETWORK = "zookeeper"
DATA = "/var/lib/camerlengo"
TRACE = f"{DATA}/trace.jsonl"
LOG_LINES = "200"


class DockerFailed(RuntimeError):
    """A command of Docker's failed; the message has the command and what it wrote."""


class DockerHost(RemoteHost):
    """Containers of some compose files.

    Args:
        options: what the cluster is like; `directory` must be None.
        files: the compose files, each over those before it.
        variables: a file with the variables of the compose files.
    """

    name = "docker"
    abilities: ClassVar = frozenset({"zookeeper-links"})

    def __init__(self, options: ClusterOptions, *, files: Sequence[Path], variables: Path | None = None) -> None:
        super().__init__(options)
        if options.directory is not None:
            raise ValueError(f"directory {options.directory}: expected none, since containers keep their own volumes")
        self._project = f"camerlengo-{uuid.uuid4().hex[:12]}"
        named = [word for file in files for word in ("--file", str(file))]
        environment = [] if variables is None else ["--env-file", str(variables)]
        self._compose = ["docker", "compose", *environment, "--project-name", self._project, *named]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ports: dict[str, int] = {}
        self._dead: set[int] = set()
        self._cut_off: set[int] = set()

    # -- begin and end

    def start(self) -> None:
        described = json.loads(_run(*self._compose, "config", "--format", "json"))["services"]
        zookeepers = sorted(one for one in described if one.startswith("zookeeper-"))
        brokers = [_service(one) for one in range(1, self.options.brokers + 1)]
        missing = [one for one in brokers if one not in described]
        if missing or not zookeepers:
            lacking = missing[0] if missing else "zookeeper-1"
            raise ValueError(f"{self.options.brokers} brokers: no service {lacking} in the compose files")
        held = HeldPorts(len(zookeepers) + len(brokers))
        self._ports = dict(zip([*zookeepers, *brokers], held.numbers, strict=True))
        held.release()
        self._folder = tempfile.TemporaryDirectory(prefix="camerlengo-compose-")
        override = Path(self._folder.name) / "override.yaml"
        override.write_text(self._override(described), encoding="utf-8")
        self._compose += ["--file", str(override)]
        _run(*self._compose, "up", "--detach", "--wait", "--wait-timeout", str(int(COMMAND_S - 10)), *self._ports)
        self._connect(",".join(f"{LOOPBACK}:{self._ports[one]}" for one in zookeepers))

    def _override(self, described: Mapping[str, Any]) -> str:
        """A compose file: JSON but for the tag that replaces the ports instead of adding to them."""
        lines = ["services:"]
        for service, port in self._ports.items():
            is_broker = service.startswith("broker-")
            inner = port if is_broker else ZOOKEEPER_PORT
            lines += [f"  {service}:", f'    ports: !override ["{LOOPBACK}:{port}:{inner}"]']
            if is_broker:
                environment = self._environment(described[service]["environment"], port)
                lines.append(f"    environment: {json.dumps(environment)}")
        return "\n".join(lines) + "\n"

    def _environment(self, described: Mapping[str, str], port: int) -> dict[str, str]:
        """The settings of one broker, and its listener for clients at the port."""
        own = {
            "broker.id",
            "listeners",
            "advertised.listeners",
            "zookeeper.connect",
            "zookeeper.session.timeout.ms",
            "camerlengo.trace.file",
        }
        inner = [one for one in described["KAFKA_LISTENERS"].split(",") if not one.startswith("HOST://")]
        advertised = [
            one for one in described["KAFKA_ADVERTISED_LISTENERS"].split(",") if not one.startswith("HOST://")
        ]
        return {
            "KAFKA_LISTENERS": ",".join([*inner, f"HOST://:{port}"]),
            "KAFKA_ADVERTISED_LISTENERS": ",".join([*advertised, f"HOST://{LOOPBACK}:{port}"]),
            "KAFKA_ZOOKEEPER_SESSION_TIMEOUT_MS": str(self.options.session_timeout_ms),
            "KAFKA_CAMERLENGO_TRACE_FILE": TRACE,
            "KAFKA_DEFAULT_REPLICATION_FACTOR": "1",
            "KAFKA_NUM_PARTITIONS": "1",
            **{_variable(name): value for name, value in self.options.settings_beside(own).items()},
        }

    def stop(self) -> None:
        if self._folder is None:
            return
        try:
            self._disconnect()
        finally:
            _run(*self._compose, "down", "--volumes", "--timeout", "0")
            self._folder.cleanup()

    # -- state

    def address(self, broker: int) -> str:
        return f"{LOOPBACK}:{self._ports[_service(broker)]}"

    def running(self, broker: int) -> bool:
        if broker in self._dead:
            return False
        if self._calls and broker in self._seen_running:
            return self._seen_running[broker]
        state = json.loads(_run("docker", "inspect", self._container(broker)))[0]["State"]
        self._seen_running[broker] = bool(state["Running"])
        return self._seen_running[broker]

    def _container(self, broker: int) -> str:
        return f"{self._project}-{_service(broker)}-1"

    def _trace_lines(self) -> Iterator[bytes]:
        if self._folder is None:
            return
        for broker in range(1, self.options.brokers + 1):
            # `cp` works for a container that does not run, too; its output is a tar of one file, between whose padding
            # the lines are.
            try:
                archive = _run("docker", "cp", f"{self._container(broker)}:{TRACE}", "-")
            except DockerFailed:
                continue
            yield from archive[512:].rstrip(b"\0").splitlines()

    def logs(self) -> str:
        if self._folder is None:
            return ""
        try:
            return _run(*self._compose, "logs", "--no-color", "--tail", LOG_LINES).decode(errors="replace")
        except DockerFailed as error:
            return str(error)

    def _log_tail(self, broker: int) -> str:
        return "\n" + _run("docker", "logs", "--tail", "20", self._container(broker)).decode(errors="replace")

    # -- brokers

    def kill(self, broker: int, *, expire: bool) -> None:
        self._require(broker)
        self.inject("kill", broker)
        _run("docker", "kill", self._container(broker))
        self._ended(broker)

    def begin_stop(self, broker: int) -> None:
        self._require(broker)
        self.inject("stop", broker)
        _run("docker", "stop", "--time", str(STOP_S), self._container(broker))
        self._ended(broker)

    def begin_start(self, broker: int) -> None:
        if self.running(broker):
            raise RuntimeError(f"broker {broker} runs")
        self.inject("restart", broker)
        _run("docker", "start", self._container(broker))
        self._dead.discard(broker)

    def pause(self, broker: int) -> None:
        self._require(broker)
        self.inject("pause", broker)
        _run("docker", "pause", self._container(broker))
        self._paused.add(broker)

    def resume(self, broker: int) -> None:
        self._require(broker)
        if broker in self._paused:
            self.inject("resume", broker)
            _run("docker", "unpause", self._container(broker))
            self._paused.discard(broker)

    def cut(self, broker: int, other: Target) -> None:
        if other != "zookeeper":
            super().cut(broker, other)
        self._require(broker)
        self.inject("cut", f"{broker}->zookeeper")
        _run("docker", "network", "disconnect", self._network, self._container(broker))
        self._cut_off.add(broker)

    def heal(self, broker: int, other: Target | None) -> None:
        if other in (None, "zookeeper") and broker in self._cut_off:
            self.inject("heal", f"{broker}->zookeeper")
            alias = ("--alias", _service(broker))
            _run("docker", "network", "connect", *alias, self._network, self._container(broker))
            self._cut_off.discard(broker)

    @property
    def _network(self) -> str:
        return f"{self._project}_{ZOOKEEPER_NETWORK}"

    def _require(self, broker: int) -> None:
        if not self.running(broker):
            raise RuntimeError(f"broker {broker} does not run")

    def _ended(self, broker: int) -> None:
        self._paused.discard(broker)
        self._dead.add(broker)


def _service(broker: int) -> str:
    return f"broker-{broker}"


def _variable(setting: str) -> str:
    """The environment variable of a setting, as docker/entrypoint.py reads it."""
    stands_for: Mapping[str, str] = {".": "_", "_": "__", "-": "___"}
    return "KAFKA_" + "".join(stands_for.get(letter, letter.upper()) for letter in setting)


def _run(*words: str) -> bytes:
    try:
        done = subprocess.run(words, capture_output=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise DockerFailed(f"{words[0]}: not found: expected Docker with `docker compose` on the PATH") from error
    except subprocess.TimeoutExpired as error:
        raise DockerFailed(f"{' '.join(words)}: no end after {COMMAND_S:g} s") from error
    if done.returncode != 0:
        written = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise DockerFailed(f"{' '.join(words)} ended with {done.returncode}: {written}")
    return done.stdout
