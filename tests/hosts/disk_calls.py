"""A broker that notes which calls of the disk its network thread makes, and where they come from.

    python -m tests.hosts.disk_calls FILE broker --config ...

is `camerlengo broker ...`, and writes to FILE a line for each kind of call when it first happens: the function of `os`,
and the function of controller/ that asked for it, without those of the file layer.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

CALLS = (
    "open",
    "fsync",
    "fdatasync",
    "unlink",
    "rmdir",
    "rename",
    "replace",
    "ftruncate",
    "mkdir",
    "listdir",
    "statvfs",
)
PACKAGE = str(Path(__file__).parents[2] / "controller") + os.sep
FILE_LAYER = ("storage/disk_files.py", "storage/disk.py", "system.py")


def asked_by(frame: FrameType | None) -> str | None:
    """The innermost function of the package above the file layer, FILE:FUNCTION, and the innermost outside storage."""
    inner = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            name = path[len(PACKAGE) :].replace(os.sep, "/")
            found = f"{name}:{frame.f_code.co_name}"
            if name not in FILE_LAYER:
                inner = inner or found
                if not name.startswith("storage/"):
                    return inner if inner == found else f"{inner} for {found}"
        frame = frame.f_back
    return inner


def watch(output: TextIO) -> None:
    """Note the calls from here on."""
    seen: set[str] = set()

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread().name == "network":
                by = asked_by(sys._getframe(1))
                line = f"{name} {by}"
                if by is not None and line not in seen:
                    seen.add(line)
                    output.write(line + "\n")
                    output.flush()
            return call(*arguments, **named)

        return noted

    for name in CALLS:
        setattr(os, name, noting(name, getattr(os, name)))
    builtins.open = noting("open", builtins.open)


if __name__ == "__main__":
    from controller.cli.main import main

    watch(open(sys.argv[1], "a", encoding="utf-8"))  # noqa: SIM115 - until the end of the process
    sys.exit(main(sys.argv[2:]))
