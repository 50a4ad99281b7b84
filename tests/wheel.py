"""The wheel in an environment of its own, without Java: the README's test of an application and a killed controller.

    python -m tests.wheel [--python PYTHON]

builds the wheel, installs it with pytest and confluent-kafka into a new virtual environment of PYTHON, and runs pytest
and the steps of `tests.other_systems` there. Nothing else of this checkout is on its path. Packages come from pip's
index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ("pytest", "pytest-timeout", "confluent-kafka>=2.6")
KILLED_CONTROLLER = """
@pytest.mark.kafka(brokers=3)
def test_a_record_survives_the_controller(kafka):
    kafka.create_topic("payments", replication_factor=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    producer.produce("payments", b"one", partition=0)
    assert producer.flush(30) == 0
    killed = kafka.controller
    kafka.broker(killed).kill()
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition("payments", 0, 0)])
    assert [message.value() for message in consumer.consume(1, 30)] == [b"one"]
    consumer.close()
    kafka.wait_until_healthy()
    assert kafka.controller not in (None, killed)


def test_there_is_no_java():
    assert shutil.which("java") is None
"""
"""Beside the README's own test, which kills a leader."""


def readme_test() -> str:
    """Return the README's test of an application."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if "@pytest.mark.kafka" in block]
    return found


def without_java(environment: Mapping[str, str], place: Path) -> dict[str, str]:
    """Return the environment with the programs of the virtual environment alone on the PATH."""
    kept = {name: value for name, value in environment.items() if name not in ("JAVA_HOME", "PYTHONPATH")}
    return {**kept, "PATH": str(place / "bin"), "PYTHONNOUSERSITE": "1"}


def install_and_test(python: str) -> int:
    """Return pytest's exit status, or how many steps failed. Raises CalledProcessError if there is no wheel to test."""
    with tempfile.TemporaryDirectory(prefix="camerlengo-wheel-") as folder:
        place = Path(folder, "venv")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)], check=True, cwd=folder)
        (wheel,) = Path(folder).glob("camerlengo-*.whl")
        subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
        own = str(place / "bin/python")
        subprocess.run([*pip, "--python", own, "install", str(wheel), *CLIENT], check=True, cwd=folder)
        tests = Path(folder, "test_application.py")
        tests.write_text(f"import shutil\n\n{readme_test()}\n{KILLED_CONTROLLER}", encoding="utf-8")
        began = time.monotonic()
        command = [own, "-m", "pytest", "-q", "--timeout", "60", "-p", "no:cacheprovider", tests.name]
        done = subprocess.run(command, cwd=folder, env=without_java(os.environ, place))
        print(f"{time.monotonic() - began:.1f} s for pytest, Python of {python}", flush=True)
        steps = shutil.copy(ROOT / "tests/other_systems.py", folder)
        stepped = subprocess.run([own, steps, sys.platform], cwd=folder, env=without_java(os.environ, place))
        return done.returncode or stepped.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the wheel into a new environment, and run tests there.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    began = time.monotonic()
    status = install_and_test(parser.parse_args().python)
    print(f"{time.monotonic() - began:.1f} s in all", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
