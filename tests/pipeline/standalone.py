"""A standalone Spark cluster on loopback, a process each: a master and workers, from the jars that PySpark brings.

Its JVMs, and those of sessions with the settings `marked`, bear a mark (a path of the test's own) by which they can be
found.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from controller.zookeeper.embedded import find_java
from tests.pipeline.conftest import JVM
from tests.processes import eventually

HOME = Path(pyspark.__file__).parent
_OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:[0-9]+)")
STOP_S = 20.0


def marked(mark: Path) -> dict[str, str]:
    """A session's settings by which its driver and executors are small and bear the mark."""
    options = f"{JVM} -Dcamerlengo.mark={mark}"
    return {"spark.driver.extraJavaOptions": options, "spark.executor.extraJavaOptions": options}


@contextmanager
def standalone(mark: Path, workers: int) -> Iterator[str]:
    """A master with that many workers of one core each; its URL, once all of them are known to it."""
    told = mark / "master.log"
    with ExitStack() as stack:
        mark.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_daemon(mark, told, "master.Master", "--webui-port", "0"))
        eventually(lambda: _MASTER.search(told.read_text()) is not None, "the master listens")
        found = _MASTER.search(told.read_text())
        assert found is not None
        for number in range(workers):
            words = ("worker.Worker", "--webui-port", "0", "--cores", "1", "--memory", "1g")
            work = ("--work-dir", str(mark / "work"))
            stack.enter_context(_daemon(mark, mark / f"worker-{number}.log", *words, *work, found[1]))
        eventually(lambda: told.read_text().count("Registering worker") == workers, "the master knows its workers")
        yield found[1]


@contextmanager
def _daemon(mark: Path, log: Path, kind: str, *words: str) -> Iterator[None]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = [str(find_java()), *JVM.split(), f"-Dcamerlengo.mark={mark}", *opened, "-cp", f"{HOME}/jars/*"]
    address = ("--host", "127.0.0.1", "--port", "0")
    # Spark's own scripts name the version to the JVMs that they start; without it, workers start no executor.
    own = {"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as out:
        started = subprocess.Popen(
            [*command, f"org.apache.spark.deploy.{kind}", *address, *words],
            env={**os.environ, **own},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            started.terminate()
            try:
                started.wait(STOP_S)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
