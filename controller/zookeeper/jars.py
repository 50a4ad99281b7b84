"""The requirements of an embedded ZooKeeper server: a Java runtime and jars. Finds and checks; runs no server.

The jars are those that PySpark contains (found without importing it), or a directory of the user's: a ZooKeeper
distribution's `lib`, for example. Five of them run a server. Without snappy-java the port opens and then the server
ends without a message, so all five are required before it is started.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REQUIRED = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
LOGGING = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
MINIMUM_JAVA = 11
RECOMMENDED_JAVA = 17
_VERSION_DEADLINE_SECONDS = 30.0

HOW_TO_GET_JAVA = """\
ZooKeeper runs on Java 11 or later (17 is recommended). To get it:
  Debian, Ubuntu  apt-get install openjdk-17-jre-headless
  Fedora, RHEL    dnf install java-17-openjdk-headless
  macOS           brew install openjdk@17
or set JAVA_HOME to a Java that is installed already."""


class EmbeddedServerUnavailable(Exception):
    """Something that an embedded ZooKeeper server needs is not on this machine; says what, and how to get it."""


class JavaNotFound(EmbeddedServerUnavailable):
    pass


class JarsNotFound(EmbeddedServerUnavailable):
    pass


@dataclass(frozen=True, slots=True)
class ServerJars:
    """`logging` is empty where the directory has no log4j: the server then logs nothing."""

    required: tuple[Path, ...]
    logging: tuple[Path, ...]

    def class_path(self) -> str:
        return os.pathsep.join(map(str, (*self.required, *self.logging)))


def find_jars(directory: Path | str | None = None) -> ServerJars:
    """The server's jars in `directory`, else in the installed PySpark. Raises JarsNotFound."""
    where = Path(directory) if directory is not None else _pyspark_jars()
    if not where.is_dir():
        raise JarsNotFound(f"{where}: no such directory; expected one with the jars of a ZooKeeper server")
    names = sorted(path.name for path in where.iterdir())
    required = {prefix: _newest(names, prefix) for prefix in REQUIRED}
    missing = [prefix for prefix, name in required.items() if name is None]
    if missing:
        raise JarsNotFound(
            f"{where}: no {', '.join(f'{prefix}-VERSION.jar' for prefix in missing)} there. An embedded ZooKeeper"
            f" server needs the jars {', '.join(REQUIRED)}: pip install 'camerlengo[zookeeper]' brings them, or name"
            " a directory that has them with --zookeeper-jars DIR"
        )
    logging = [_newest(names, prefix) for prefix in LOGGING]
    return ServerJars(
        required=tuple(where / name for name in required.values() if name),
        logging=tuple(where / name for name in logging if name) if all(logging) else (),
    )


def _newest(names: list[str], prefix: str) -> str | None:
    """The jar of that artifact with the highest version: a version starts with a digit, so that `zookeeper` is not
    taken for `zookeeper-jute`."""
    pattern = re.compile(re.escape(prefix) + r"-(\d[\w.\-]*)\.jar")
    found = [(match[1], name) for name in names if (match := pattern.fullmatch(name))]
    return max(found, key=lambda item: [int(number) for number in re.findall(r"\d+", item[0])])[1] if found else None


def _pyspark_jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsNotFound(
            "no jars of a ZooKeeper server: they come with PySpark, which is not installed."
            " pip install 'camerlengo[zookeeper]', or name a directory of them with --zookeeper-jars DIR"
        )
    return Path(spec.origin).parent / "jars"


def java_problem(minimum: int = MINIMUM_JAVA) -> str | None:
    """Say in one line why there is no Java of at least this version, and how to install one; None if there is."""
    try:
        find_java(minimum)
    except JavaNotFound as error:
        found = str(error).partition("\n")[0].rstrip(".")
        return (
            f"needs a Java {max(minimum, RECOMMENDED_JAVA)} runtime ({found}): apt-get install openjdk-17-jre-headless,"
            " dnf install java-17-openjdk-headless or brew install openjdk@17, or set JAVA_HOME"
        )
    return None


def find_java(minimum: int = MINIMUM_JAVA) -> Path:
    """$JAVA_HOME/bin/java if JAVA_HOME is set, else `java` on the PATH, checked to be recent enough. Raises
    JavaNotFound."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if home and not os.access(java, os.X_OK):
        raise JavaNotFound(f"JAVA_HOME is {home}, but there is no {java}.\n{HOW_TO_GET_JAVA}")
    if not java.name:
        raise JavaNotFound(f"no java on the PATH, and JAVA_HOME is not set.\n{HOW_TO_GET_JAVA}")
    version = _java_version(java)
    if version < minimum:
        raise JavaNotFound(f"{java} is Java {version}.\n{HOW_TO_GET_JAVA}")
    return java


def _java_version(java: Path) -> int:
    """The major version: from the `release` file beside it where there is one, which saves starting it."""
    try:
        text = (java.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        try:
            ran = subprocess.run(
                [str(java), "-version"], capture_output=True, timeout=_VERSION_DEADLINE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise JavaNotFound(f"{java} does not run: {error}\n{HOW_TO_GET_JAVA}") from error
        output = (ran.stderr + ran.stdout).decode("utf-8", errors="replace")
        match = re.search(r'version "([^"]+)"', output)
        if match is None:
            raise JavaNotFound(f"{java} -version says {output.strip()[:200]!r}.\n{HOW_TO_GET_JAVA}")
    numbers = [int(number) for number in re.findall(r"\d+", match[1])]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
