"""A broker's start is mostly imports: what only tests, clients and reports need is not among them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "confluent_kafka",
    "hypothesis",
    "kafka",
    "matplotlib",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
)


def test_a_broker_process_imports_nothing_heavy() -> None:
    program = "import sys, controller.cli.broker, controller.hosts.process; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "controller.core.controller" in loaded
    assert [name for name in loaded if name in HEAVY] == []
