"""Requirements of commands beyond the default installation: packages of the project's extras, and Java.

A command's `needs(arguments)` returns them. `missing` is called before the command does anything, so that the user gets
one line that names what to install.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from controller.zookeeper.embedded import java_problem


@dataclass(frozen=True, slots=True)
class Packages:
    """Importable modules, and the extra of this project that installs them."""

    extra: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime of at least this major version."""

    version: int


Need = Packages | Java

SPARK = (Packages("spark", ("pyspark", "pyarrow", "pandas")), Java(17))
TRACES = (Packages("chaos", ("pyarrow",)),)
"""To write trace.parquet."""
CLIENTS = (Packages("chaos", ("confluent_kafka",)),)
SECURE = (Packages("secure", ("cryptography",)),)
"""To make keys and certificates."""
PLOTS = (Packages("docs", ("matplotlib",)),)


def zookeeper_server(jars: Path | None) -> tuple[Need, ...]:
    """Return the requirements of an embedded Apache ZooKeeper; `jars` is a directory that the user named, or None."""
    return (Java(11),) if jars is not None else (Packages("zookeeper", ("pyspark",)), Java(11))


def missing(needs: Iterable[Need]) -> str | None:
    """Return one line that names what is missing and how to install it; None if nothing is."""
    lacking: list[str] = []
    extras: list[str] = []
    java: int | None = None
    for need in needs:
        if isinstance(need, Java):
            java = max(java or 0, need.version)
            continue
        absent = [module for module in need.modules if not _installed(module)]
        lacking += [module for module in absent if module not in lacking]
        extras += [need.extra] if absent and need.extra not in extras else []
    problems = [f"needs {', '.join(lacking)}: pip install 'camerlengo[{','.join(extras)}]'"] if lacking else []
    if java is not None and (problem := java_problem(java)) is not None:
        problems.append(problem)
    return "; ".join(problems) or None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
