"""A real Kafka 2.8 as tests see it: brokers as child processes, and any of its tools run to its end.

`KAFKA_HOME` names a folder with Kafka's jars in `libs` (a release) or `lib` (a build from source).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.hosts.broker_process import BrokerDied, BrokerNotReady
from controller.zookeeper import launch

READY = re.compile(rb"\[KafkaServer id=\d+\] started|started \(kafka\.server\.KafkaServer\)")
LOOK_S = 0.05
STOP_LIMIT_S = 60.0
TOOL_LIMIT_S = 90.0
TAIL_LINES = 15

LOG4J = """\
log4j.rootLogger={level}, E
log4j.logger.org.apache.zookeeper=WARN
log4j.appender.E=org.apache.log4j.ConsoleAppender
log4j.appender.E.Target=System.err
log4j.appender.E.layout=org.apache.log4j.PatternLayout
log4j.appender.E.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def jars_of(home: str | None) -> Path:
    """The folder with Kafka's jars. ValueError, naming what was expected, if there is none."""
    for name in ("libs", "lib"):
        if home and any((Path(home) / name).glob("kafka-clients*.jar")):
            return Path(home, name).absolute()
    raise ValueError(f"KAFKA_HOME must name the folder of a Kafka 2.8 (with libs/kafka-clients*.jar), got {home!r}")


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool printed, and its exit status."""

    status: int
    out: str
    err: str


class Kafka:
    """`folder` is for the logging settings of the processes that it starts."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self.jars = jars
        self.folder = folder
        for name, level in (("broker", "INFO"), ("tool", "WARN")):
            (folder / f"{name}-log4j.properties").write_text(LOG4J.format(level=level))

    def command(self, kind: str, heap_mb: int, main: str, *arguments: str) -> list[str]:
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        log4j = f"-Dlog4j.configuration=file:{self.folder / f'{kind}-log4j.properties'}"
        return [java, f"-Xmx{heap_mb}m", *quick, log4j, "-cp", f"{self.jars}/*", main, *arguments]

    def run(self, main: str, *arguments: str, given: str = "", limit_s: float = TOOL_LIMIT_S) -> Output:
        """A tool by its main class, to its end. `given`: its standard input."""
        done = subprocess.run(
            self.command("tool", 200, main, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return Output(done.returncode, done.stdout, done.stderr)


class KafkaBroker:
    """One broker's process, and the next one after it has ended. As `BrokerProcess`, for Kafka's own."""

    def __init__(self, kafka: Kafka, broker_id: int, settings: Mapping[str, str], folder: Path) -> None:
        self.kafka = kafka
        self.broker_id = broker_id
        self.settings = dict(settings) | {"broker.id": str(broker_id)}
        self.config_file = folder / f"kafka-{broker_id}.properties"
        self.log_file = folder / f"kafka-{broker_id}.log"
        self._process: launch.Process | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running
        lines = [f"{name}={value}\n" for name, value in self.settings.items()]
        self.config_file.write_text("".join(lines))
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            command = self.kafka.command("broker", 400, "kafka.Kafka", str(self.config_file))
            self._process = launch.launch(command, stdout=log, stderr=log)

    def await_ready(self, deadline: float) -> None:
        """`deadline` as time.monotonic() counts. BrokerDied, BrokerNotReady."""
        while not READY.search(self.log_file.read_bytes()[self._log_start :]):
            if not self.running:
                raise BrokerDied(f"Kafka's broker {self.broker_id} ended by itself{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerNotReady(f"Kafka's broker {self.broker_id} was not ready in time{self.log_tail()}")
            time.sleep(LOOK_S)

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
        try:
            lines: Sequence[str] = self.log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "".join(f"\n    {line}" for line in lines[-TAIL_LINES:])

    def _alive(self) -> launch.Process:
        assert self._process is not None
        assert self.running, f"Kafka's broker {self.broker_id} is not running"
        return self._process
