"""A Spark session with this project's settings: quiet, Arrow between Java and Python, few shuffle partitions.

The only file that makes a session. On a local master everything stays on the loopback interface. Executors run the
Python that runs this, and import this project as it does: on a cluster it is to be installed on every machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

LOCAL = "local[*]"
SHUFFLE_PARTITIONS = 8
_LOOPBACK = "127.0.0.1"


@contextmanager
def spark_session(name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end. `settings` go over the project's own."""
    # Read by the JVM's launcher, before any setting of the session is.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    local = master.startswith("local") or f"://{_LOOPBACK}:" in master
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    builder = SparkSession.builder.master(master).appName(f"camerlengo {name}")
    for key, value in {**_settings(local), **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


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
