"""The containers as tests handle them: faults by Docker's own commands, and what ZooKeeper, each broker and each trace
say. Every command has a deadline; one that fails raises with what it said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from controller.trace_records import TraceRecord, decode_record
from tests.docker.checks import BrokerView, State, controller_of, incomplete, unsettled
from tests.docker.containers.client import NotAnswered, ask, create_topic
from tests.docker.containers.machine import ROOT

BROKERS = (1, 2, 3)
ZOOKEEPERS = (1, 2, 3)
SESSION_MS = 6_000.0
"""As docker/compose.yaml sets it."""
DEADLINE_S = 90.0
COMMAND_S = 150.0
PARTITIONS = 6
"""Of each topic, with a replica on each broker."""
TRACE = "/var/lib/camerlengo/trace.jsonl"


class CommandFailed(AssertionError):
    """A command did not do what it was asked to; says which, and what it said."""


def run(*words: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(words, input=stdin, capture_output=True, timeout=COMMAND_S, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise CommandFailed(f"{' '.join(words)} ended with {done.returncode}: {said}")
    return done.stdout


def until_right(look: Callable[[], Sequence[str]], deadline_s: float = DEADLINE_S) -> None:
    """Waits until `look` finds nothing wrong. AssertionError with what it found last."""
    until = time.monotonic() + deadline_s
    while wrong := look():
        assert time.monotonic() < until, f"still wrong after {deadline_s:g} s:\n" + "\n".join(wrong)
        time.sleep(0.1)


@dataclass(frozen=True)
class Cluster:
    """`compose`: the words of `docker compose` with its files and its project."""

    compose: tuple[str, ...]
    project: str

    def container(self, service: str) -> str:
        return f"{self.project}-{service}-1"

    def network(self, name: str) -> str:
        return f"{self.project}_{name}"

    # Faults, and their ends.

    def kill(self, service: str) -> None:
        run("docker", "kill", self.container(service))

    def stop(self, service: str) -> int:
        """Asks the container to end, as compose does, and its exit status. SIGKILL (137) after two minutes."""
        run("docker", "stop", "--time", "120", self.container(service))
        return int(self.inspect(service)["State"]["ExitCode"])

    def start(self, service: str) -> None:
        run("docker", "start", self.container(service))

    def pause(self, service: str) -> None:
        run("docker", "pause", self.container(service))

    def unpause(self, service: str) -> None:
        run("docker", "unpause", self.container(service))

    def cut(self, service: str, network: str) -> None:
        run("docker", "network", "disconnect", self.network(network), self.container(service))

    def join(self, service: str, network: str) -> None:
        """With the names that compose gave the container there."""
        aliases = [service] + [f"{service}.cluster"] * (network == "cluster")
        words = [word for alias in aliases for word in ("--alias", alias)]
        run("docker", "network", "connect", *words, self.network(network), self.container(service))

    def inspect(self, service: str) -> Any:
        return json.loads(run("docker", "inspect", self.container(service)))[0]

    def mend(self) -> None:
        """Ends every fault that a test left behind."""
        for service in [f"zookeeper-{one}" for one in ZOOKEEPERS] + [f"broker-{one}" for one in BROKERS]:
            found = self.inspect(service)
            if found["State"]["Paused"]:
                self.unpause(service)
            for network in ("cluster", "zookeeper"):
                expected = network == "zookeeper" or service.startswith("broker")
                if expected and self.network(network) not in found["NetworkSettings"]["Networks"]:
                    self.join(service, network)
            if not found["State"]["Running"]:
                self.start(service)

    # What it is like.

    def port(self, service: str, port: int) -> int:
        """Where this machine reaches a container's port. CommandFailed while the container does not run."""
        return int(run("docker", "port", self.container(service), str(port)).split(b"\n")[0].rpartition(b":")[2])

    @cached_property
    def zookeeper(self) -> str:
        """The connect string from this machine. Ports are fixed by the compose file: they outlive a container's end."""
        return ",".join(f"127.0.0.1:{self.port(f'zookeeper-{one}', 2181)}" for one in ZOOKEEPERS)

    @cached_property
    def broker_ports(self) -> dict[int, int]:
        return {broker: self.port(f"broker-{broker}", 19090 + broker) for broker in BROKERS}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.broker_ports.values())

    def state(self) -> State:
        """What `camerlengo state` says, from this machine."""
        words = ("state", "--zookeeper", self.zookeeper, "--json", "--timeout", "30")
        found: dict[str, Any] = json.loads(run(sys.executable, "-m", "controller.cli", *words))
        return found

    def view(self, broker: int) -> BrokerView:
        """What that broker and no other tells a client. NotAnswered."""
        return ask(self.broker_ports[broker])

    def trace(self, broker: int) -> list[TraceRecord]:
        """What that broker wrote so far, of all its lives. Whole lines only: it may be writing one."""
        text = run("docker", "exec", self.container(f"broker-{broker}"), "cat", TRACE)
        return [decode_record(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]

    def logs(self) -> str:
        """What all containers said, and how each is."""
        shown = (["ps", "--all"], ["logs", "--timestamps", "--no-color", "--tail", "400"])
        found = []
        for words in shown:
            done = subprocess.run(
                [*self.compose, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_S,
                check=False,
            )
            found.append(done.stdout.decode(errors="replace"))
        return "\n".join(found)

    # What tests wait for.

    def await_settled(self, topic: str | None, live: Sequence[int] = BROKERS) -> State:
        """Waits until ZooKeeper shows the cluster whole but for the brokers that are not in `live`, and each of `live`
        tells a client the same, of the topic too if one is named; what ZooKeeper shows then."""
        states: list[State] = []

        def look() -> list[str]:
            try:
                states[:] = [self.state()]
                wrong = unsettled(states[0], topic, PARTITIONS, live)
                return wrong or [
                    problem for broker in live for problem in incomplete(states[0], topic, broker, self.view(broker))
                ]
            except (CommandFailed, NotAnswered) as error:
                return [str(error)]

        until_right(look)
        return states[0]

    def await_state(self, what: str, holds: Callable[[State], bool]) -> State:
        """Waits until ZooKeeper shows that; what it shows then."""
        states: list[State] = []

        def look() -> list[str]:
            try:
                states[:] = [self.state()]
            except CommandFailed as error:
                return [str(error)]
            return [] if holds(states[0]) else [f"{what}: not in {summary(states[0])}"]

        until_right(look)
        return states[0]

    def create(self, topic: str) -> State:
        """Creates a topic of PARTITIONS partitions, and waits until all brokers tell of it."""

        def look() -> list[str]:
            refused = create_topic(self.bootstrap, topic, PARTITIONS, len(BROKERS))
            return [refused] if refused else []

        until_right(look)
        return self.await_settled(topic)


def summary(state: State) -> str:
    live = [broker["id"] for broker in state["brokers"] if broker["live"]]
    return f"controller {controller_of(state)}, epoch {state['controller_epoch']}, registered {live}"


def compose_words(files: Sequence[Path], project: str, variables: Path | None) -> tuple[str, ...]:
    named = [word for file in files for word in ("--file", str(file))]
    environment = ["--env-file", str(variables)] if variables else []
    return ("docker", "compose", *environment, *named, "--project-name", project)


COMPOSE_FILE = ROOT / "docker" / "compose.yaml"
SKELETON_FILE = ROOT / "docker" / "compose.skeleton.yaml"
