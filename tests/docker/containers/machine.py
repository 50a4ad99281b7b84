"""What a container needs of this machine to run its programs without an image that has any: the folders to mount, each
at its own place, and the variables of docker/compose.skeleton.yaml. Computed where the tests run, kept nowhere."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from controller.zookeeper.embedded import find_jars, find_java

ROOT = Path(__file__).parents[3]
SYSTEM = Path("/usr")
SERVICES = ("zookeeper-1", "zookeeper-2", "zookeeper-3", "broker-1", "broker-2", "broker-3")
IMAGE = "skeleton:local"

_LINKS = ("bin", "sbin", "lib", "lib64")
_FOLDERS = ("usr", "etc", "root", "tmp", "proc", "sys", "dev")


def outermost(folders: Iterable[Path]) -> list[Path]:
    """Each once, and none that lies in another."""
    found: list[Path] = []
    for folder in sorted(set(folders)):
        if not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return found


def mounts() -> list[Path]:
    """/usr, the Python in use and what its links lead to, the virtual environment, what else is imported from, the
    repository, the Java runtime and what its links lead to (Debian keeps its settings in /etc)."""
    java = find_java().resolve().parents[1]
    python = Path(sys.executable)
    folders = [SYSTEM, ROOT, java, Path(sys.prefix), Path(sys.base_prefix), python.parent, python.resolve().parents[1]]
    folders += [Path(place) for place in sys.path if Path(place).is_absolute() and Path(place).is_dir()]
    links = (link.readlink() for link in java.rglob("*") if link.is_symlink())
    folders += [Path(*target.parts[:3]) for target in links if target.is_absolute() and target.exists()]
    return outermost(folders)


def mounts_file() -> str:
    """A compose file (as JSON) that mounts them all, read-only, into every container."""
    volumes = [{"type": "bind", "source": str(folder), "target": str(folder), "read_only": True} for folder in mounts()]
    return json.dumps({"services": {service: {"volumes": volumes} for service in SERVICES}}, indent=2)


def variables_file() -> str:
    variables = {
        "CAMERLENGO_JAVA": find_java().resolve(),
        "CAMERLENGO_ZOOKEEPER_CLASS_PATH": find_jars().class_path(),
        "CAMERLENGO_PYTHON": sys.executable,
        "CAMERLENGO_REPOSITORY": ROOT,
    }
    return "".join(f"{name}='{value}'\n" for name, value in variables.items())


def skeleton() -> bytes:
    """The image's only layer, for an engine that does not have it: a tar of empty folders and links to /usr."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in _LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
        users = b"root:x:0:0:root:/root:/bin/sh\n"
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(users)
        archive.addfile(passwd, io.BytesIO(users))
    return held.getvalue()
