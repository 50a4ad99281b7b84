"""A real Kafka 2.8 as tests see it: brokers as child processes, and any of its tools run to its end.

`KAFKA_HOME` names a folder with Kafka's jars in `libs` (a release) or `lib` (a build from source).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.broker.settings import Address, listeners
from controller.hosts.local_cluster import BrokerChild, LocalCluster

READY = re.compile(rb"\[KafkaServer id=\d+\] started|started \(kafka\.server\.KafkaServer\)")
STOP_LIMIT_S = 60.0
TOOL_LIMIT_S = 90.0
START_LIMIT_S = 120.0

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that starts and ends soon, on a machine that many share."""
BROKER_OPTIONS = ("-Xmx400m", *QUICK_START)
FULL_SPEED = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
)
"""The options with which Kafka 2.8's own start script runs a broker."""

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
    """`folder` is for the logging settings of the processes that it starts; `broker_options`: of a broker's JVM."""

    def __init__(self, jars: Path, folder: Path, broker_options: Sequence[str] = BROKER_OPTIONS) -> None:
        self.jars = jars
        self.folder = folder
        self.broker_options = tuple(broker_options)
        for name, level in (("broker", "INFO"), ("tool", "WARN")):
            (folder / f"{name}-log4j.properties").write_text(LOG4J.format(level=level))

    def command(self, kind: str, options: Sequence[str], main: str, *arguments: str) -> list[str]:
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
        log4j = f"-Dlog4j.configuration=file:{self.folder / f'{kind}-log4j.properties'}"
        return [java, *options, "-Djava.net.preferIPv4Stack=true", log4j, "-cp", f"{self.jars}/*", main, *arguments]

    def run(self, main: str, *arguments: str, given: str = "", limit_s: float = TOOL_LIMIT_S) -> Output:
        """A tool by its main class, to its end. `given`: its standard input."""
        done = subprocess.run(
            self.command("tool", ("-Xmx200m", *QUICK_START), main, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        return Output(done.returncode, done.stdout, done.stderr)


class KafkaBroker(BrokerChild):
    """One of Kafka's own brokers as a child process."""

    program = "kafka"
    ready = READY
    stop_limit_s = STOP_LIMIT_S

    def __init__(self, kafka: Kafka, broker_id: int, settings: Mapping[str, str], folder: Path) -> None:
        super().__init__(broker_id, settings, folder)
        self.kafka = kafka

    def command(self) -> list[str]:
        return self.kafka.command("broker", self.kafka.broker_options, "kafka.Kafka", str(self.config_file))

    def address_of(self, ready: re.Match[bytes]) -> Address:
        """Kafka's ready line has no address; the settings do."""
        listener = listeners(self.settings["listeners"])[0]
        return listener.host, listener.port


class KafkaCluster(LocalCluster):
    """A LocalCluster of Kafka's own brokers."""

    def __init__(self, kafka: Kafka, brokers: int, *, zookeeper_jars: Path | None, settings: Mapping[str, str]) -> None:
        super().__init__(
            brokers, session_timeout_ms=18_000, zookeeper="java", zookeeper_jars=zookeeper_jars, settings=settings
        )
        self._kafka = kafka

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        super().start(limit_s)

    def broker_child(self, number: int, settings: Mapping[str, str]) -> KafkaBroker:
        return KafkaBroker(self._kafka, number, settings, self.folder)
