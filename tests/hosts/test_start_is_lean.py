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


def test_a_zookeeper_server_process_imports_little() -> None:
    program = "import sys, controller.zookeeper.server.__main__; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in loaded if not name.startswith("_")} - sys.stdlib_module_names
    assert packages == {"controller", "msgspec", "numpy", "typing_extensions"}


def test_a_broker_process_imports_nothing_heavy() -> None:
    program = "import sys, controller.cli.broker, controller.hosts.process; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "controller.core.controller" in loaded
    assert [name for name in loaded if name in HEAVY] == []
