"""The disk in memory lists a directory as one would by looking at every name that there is."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.machine.disk import MemoryDisk

FILES = [f"/logs/{directory}/{name}" for directory in ("a-0", "b-0", "a-0-delete") for name in ("0.log", "0.index")]
FILES += ["/logs/meta.properties", "/logs/a-0/deep/er.log"]
DIRECTORIES = ["/logs", "/logs/a-0", "/logs/b-0", "/logs/a-0-delete", "/logs/a-0/deep"]
STEPS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(FILES)),
    st.tuples(st.just("replace"), st.sampled_from(FILES)),
    st.tuples(st.just("soon"), st.sampled_from(FILES)),
    st.tuples(st.just("make"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("remove"), st.sampled_from(FILES)),
    st.tuples(st.just("rename"), st.sampled_from((*FILES, "/logs/a-0", "/logs/b-0"))),
    st.tuples(st.just("sync"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("crash"), st.just("")),
)


def _do(disk: MemoryDisk, step: str, path: str) -> None:
    if step == "open":
        disk.open(path)
    elif step == "replace":
        disk.replace(path, b"x")
    elif step == "soon":
        disk.replace_soon(path, b"x")
    elif step == "make":
        disk.make_directory(path)
    elif step == "remove":
        disk.remove(path)
    elif step == "rename":
        disk.rename(path, "/logs/c-0" if path.count("/") == 2 else "/logs/b-0/1.log")
    elif step == "sync":
        disk.sync_names(path)
    else:
        disk.crash(random.Random(1))


def _listed(disk: MemoryDisk, directory: str) -> list[str]:
    inside = directory + "/"
    files = [one.full_path(name) for one in disk._directories.values() for name in one.listed_files()]
    found = {path[len(inside) :].partition("/")[0] for path in files if path.startswith(inside)}
    found |= {path[len(inside) :] for path in _made(disk) if path.startswith(inside)}
    return sorted(name for name in found if "/" not in name)


def _made(disk: MemoryDisk) -> list[str]:
    return sorted(path for path, one in disk._directories.items() if one.made)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=25))
def test_a_directory_is_listed_as_by_a_look_at_every_name(steps: list[tuple[str, str]]) -> None:
    disk = MemoryDisk()
    for step, path in steps:
        _do(disk, step, path)
        for directory in _made(disk):
            assert disk.names(directory) == _listed(disk, directory), (step, path)


def test_what_a_crash_brings_back_lies_in_directories_that_are_there() -> None:
    """A directory that was emptied and removed, and whose removal was forgotten: a broker's start looks into it."""
    came_back = 0
    for seed in range(8):
        disk = MemoryDisk()
        disk.make_directory("/logs/a-0-delete")
        disk.open("/logs/a-0-delete/0.log").append(b"x")
        disk.sync_names("/logs/a-0-delete")
        disk.remove("/logs/a-0-delete/0.log")
        disk.remove("/logs/a-0-delete")
        disk.crash(random.Random(seed))
        for name in disk.names("/logs"):
            came_back += list(disk.names(f"/logs/{name}")) == ["0.log"]
    assert 0 < came_back < 8
