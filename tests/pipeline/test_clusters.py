"""The same campaign on executors of their own: Spark's local cluster, and a standalone master with two workers on the
loopback interface. Its results are those of a process alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from controller.pipeline.campaign_runs import read_results, run_all
from tests.pipeline.test_campaign_runs import campaign

DEADLINE_S = 400.0
WORDS = ("broker-kill", "--seeds", "10..11", "--set", "partitions=1,2", "--partitions", "3", "--traces", "none")
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}


@contextmanager
def service(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """A Spark process, killed at the end; its output is the file that is given."""
    said = folder / f"{name}.log"
    with said.open("wb") as output:
        environment = {**os.environ, **LOOPBACK, "SPARK_WORKER_DIR": str(folder / name), "SPARK_DAEMON_MEMORY": "256m"}
        process = subprocess.Popen(
            [str(SPARK_CLASS), *words], stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            yield said
        finally:
            os.killpg(process.pid, 9)
            process.wait(30)


def told(said: Path, pattern: str, count: int = 1) -> str:
    """What the pattern's group finds, once the file has it that often."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = re.findall(pattern, said.read_text(errors="replace"))
        if len(found) >= count:
            return str(found[0])
        time.sleep(0.1)
    raise TimeoutError(f"{said} never told {pattern}: {said.read_text(errors='replace')[-2000:]}")


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    package = "org.apache.spark.deploy"
    with ExitStack() as running:
        master_words = (f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = running.enter_context(service(folder, "master", *master_words))
        url = told(master, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for name in ("worker-1", "worker-2"):
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", url)
            running.enter_context(service(folder, name, f"{package}.worker.Worker", *words))
        told(master, r"(Registering worker)", 2)
        yield url


@contextmanager
def local_cluster(folder: Path) -> Iterator[str]:
    yield "local-cluster[2,1,1024]"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [local_cluster, standalone], ids=["local-cluster", "standalone"])
def test_executors_of_their_own_give_the_same_results(
    cluster: Callable[[Path], AbstractContextManager[str]], tmp_path: Path
) -> None:
    with cluster(tmp_path) as master:
        command = [sys.executable, "-m", "controller.cli", "campaign", *WORDS]
        done = subprocess.run(
            [*command, "--master", master, "--report", str(tmp_path / "out")],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, **LOOPBACK},
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = campaign(seeds=2)
    expected = [*run_all(wanted, range(len(wanted)), tmp_path / "alone", "alone")]
    assert read_results((tmp_path / "out" / "results").glob("*.jsonl")) == expected
    assert done.stdout.endswith("4 of 4 runs passed\n")
