"""One Spark session for all tests of the room: starting one costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controller.pipeline.campaign import retrying
from controller.pipeline.session import spark_session

SMALL_JOBS = {
    "spark.sql.shuffle.partitions": "2",
    # Generated code and the optimizing compiler don't pay for jobs this small.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_session("tests", retrying("local[2]"), SMALL_JOBS) as session:
        yield session
