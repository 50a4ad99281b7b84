"""The in-process part on a machine that lacks something: a step of `tests.other_systems` with it taken away.

    python -m tests.other_machines LACK[+LACK...] [STEP...]

`no-ipv6`: no socket of that family can be made. `no-hostname`: no name is resolved, the machine's own neither. `proxy`:
the environment names proxies at which nothing listens. `read-only`: no file can be made in the working directory.
`full-tmp`: no file can be written below the temporary directory. `no-home`: there is no HOME, and no entry of the user.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import io
import os
import pwd
import socket
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from tests.other_systems import STEPS, run_steps


def no_ipv6() -> None:
    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **keywords: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *args, **keywords)

    socket.has_ipv6 = False
    socket.socket = WithoutIPv6  # type: ignore[misc]


def no_hostname() -> None:
    resolve = socket.getaddrinfo

    def numbers_alone(host: Any, *args: Any, **keywords: Any) -> Any:
        if host is not None and not str(host).replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **keywords)

    def unresolved(name: str) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known: {name}")

    socket.getaddrinfo = numbers_alone
    socket.gethostname = lambda: "no-such-machine.invalid"
    socket.gethostbyname = socket.gethostbyaddr = unresolved


def proxy() -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        os.environ[name] = "http://127.0.0.1:9"
    os.environ.pop("no_proxy", None)


def read_only() -> None:
    _refuse_writes(os.getcwd(), OSError(errno.EROFS, "Read-only file system"))


def full_tmp() -> None:
    _refuse_writes(tempfile.gettempdir(), OSError(errno.ENOSPC, "No space left on device"))


def _refuse_writes(place: str, error: OSError) -> None:
    """A file is made by `open` or `os.open`; the tests of a user who may write everywhere need this too."""
    place = os.path.realpath(place)
    open_fd, open_file, make = os.open, io.open, os.mkdir

    def inside(path: Any) -> bool:
        return not isinstance(path, int) and os.path.realpath(os.fsdecode(path)).startswith(place + os.sep)

    def checked_fd(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and inside(path):
            raise error
        return open_fd(path, flags, *args, **keywords)

    def checked_file(path: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
        if set(mode) & set("wax+") and inside(path):
            raise error
        return open_file(path, mode, *args, **keywords)

    def checked_make(path: Any, *args: Any, **keywords: Any) -> None:
        if inside(path):
            raise error
        make(path, *args, **keywords)

    os.open, os.mkdir = checked_fd, checked_make
    io.open = builtins.open = checked_file  # type: ignore[assignment]


def no_home() -> None:
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        os.environ.pop(name, None)

    def unknown(number: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    pwd.getpwuid = unknown


LACKS: Mapping[str, Callable[[], None]] = {
    "no-ipv6": no_ipv6,
    "no-hostname": no_hostname,
    "proxy": proxy,
    "read-only": read_only,
    "full-tmp": full_tmp,
    "no-home": no_home,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the in-process part on a machine that lacks something.")
    parser.add_argument("lacks", metavar="LACK", help=f"one of {', '.join(LACKS)}; several with + between them")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"some of {', '.join(STEPS)}; all by default")
    arguments = parser.parse_args()
    lacks = arguments.lacks.split("+")
    if unknown := [name for name in lacks if name not in LACKS]:
        parser.error(f"{unknown[0]}: expected some of {', '.join(LACKS)}")
    for name in lacks:
        LACKS[name]()
    return run_steps(arguments.steps)


if __name__ == "__main__":
    raise SystemExit(main())
