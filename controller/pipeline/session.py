"""A Spark session with this project's settings: quiet, Arrow between Java and Python, few shuffle partitions.

The only file that makes a session. On a local master everything stays on the loopback interface. Executors run the
Python that runs this, and import this project as it does: on a cluster it is to be installed on every machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

LOCAL = "local[*]"
SHUFFLE_PARTITIONS = 8
_LOOPBACK = "127.0.0.1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextmanager
def spark_session(name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end. `settings` go over the project's own."""
    # Read by the JVM's launcher, before any setting of the session is.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local = master.startswith("local") or f"://{_LOOPBACK}:" in master
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # What the JVM writes for itself is removed here: one that was killed leaves it.
    with tempfile.TemporaryDirectory(prefix="camerlengo-spark-", ignore_cleanup_errors=True) as scratch:
        named = {"spark.master": master, "spark.app.name": f"camerlengo {name}"}
        asked = {**named, **_settings(local), **(settings or {})}
        asked[_JAVA_OPTIONS] = f'"-Djava.io.tmpdir={scratch}" {asked.get(_JAVA_OPTIONS, "")}'.strip()
        with _own_signals():
            SparkContext.getOrCreate(SparkConf().setAll([*asked.items()]))
        session = SparkSession.builder.config(map=asked).getOrCreate()
        try:
            session.sparkContext.setLogLevel("ERROR")
            yield session
        finally:
            if _jvm_runs(session):
                session.stop()


@contextmanager
def _own_signals() -> Iterator[None]:
    """A Spark context, once it is made, takes SIGINT over, to cancel its jobs: give it back to its handler.

    Within this, Spark must not be asked anything after the context: its handler sends a command to Java, which fails in
    the middle of another one.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _jvm_runs(session: SparkSession) -> bool:
    """Return True if the JVM that this process started is running: a session whose JVM was killed can't be stopped."""
    process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def _settings(local: bool) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.pyspark.python": sys.executable,
    }
    if local:
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return settings


def cores(session: Any) -> int:
    return int(session.sparkContext.defaultParallelism)
