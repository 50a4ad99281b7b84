"""A real Kafka 2.8 as tests see it: brokers as child processes, and any of its tools run to its end.

`KAFKA_HOME` names a folder with Kafka's jars in `libs` (a release) or `lib` (a build from source).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.broker.settings import Address, listeners
from controller.hosts.local_cluster import BrokerChild

READY = re.compile(rb"\[KafkaServer id=\d+\] started|started \(kafka\.server\.KafkaServer\)")
STOP_LIMIT_S = 60.0
TOOL_LIMIT_S = 90.0

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


class KafkaBroker(BrokerChild):
    """One of Kafka's own brokers as a child process."""

    program = "kafka"
    ready = READY
    stop_limit_s = STOP_LIMIT_S

    def __init__(self, kafka: Kafka, broker_id: int, settings: Mapping[str, str], folder: Path) -> None:
        super().__init__(broker_id, settings, folder)
        self.kafka = kafka

    def command(self) -> list[str]:
        return self.kafka.command("broker", 400, "kafka.Kafka", str(self.config_file))

    def address_of(self, ready: re.Match[bytes]) -> Address:
        """Kafka's ready line has no address; the settings do."""
        listener = listeners(self.settings["listeners"])[0]
        return listener.host, listener.port
