"""What `test_clusters.py` starts: one campaign on Spark's local cluster, where an executor is killed in the middle, and
on a standalone cluster with two workers. A process of its own, since one has one Spark context; one for both, since a
JVM that knows Spark's classes already is most of a start saved.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from controller.pipeline.campaign import Result, run_campaign
from controller.pipeline.session import spark_session
from tests.pipeline.standalone import marked, standalone
from tests.pipeline.test_campaign_runs import campaign
from tests.processes import running_with

LOCAL_CLUSTER, STANDALONE = "local-cluster", "standalone"
WANTED = campaign(seeds=4, partitions=("1", "100"))
"""Short runs come first, long ones last: what befalls a campaign at its first result befalls it in the middle."""
SLICES = 4


def main(folder: Path, mark: Path) -> None:
    struck: list[int] = []

    def kill_an_executor(known: Sequence[Result]) -> None:
        if known and not struck:
            struck.append(len(known))
            executors = [told for told in running_with(str(mark)) if "CoarseGrainedExecutorBackend" in told]
            assert len(executors) == 2
            os.kill(int(executors[0].partition(":")[0]), signal.SIGKILL)

    with spark_session("test", "local-cluster[2,1,1024]", marked(mark)) as spark:
        run_campaign(spark, WANTED, folder / LOCAL_CLUSTER, SLICES, kill_an_executor)
    print(f"killed an executor after {struck[0]} of {len(WANTED)} runs")
    with standalone(mark, workers=2) as master, spark_session("test", master, marked(mark)) as spark:
        print(f"{int(spark.sparkContext.defaultParallelism)} cores on {spark.sparkContext.master}")
        run_campaign(spark, WANTED, folder / STANDALONE, SLICES)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
