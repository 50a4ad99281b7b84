"""The bytes of requests and replies, held against kazoo's own serialization where it has one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import ACL as KazooACL
from kazoo.security import Id

from controller.zookeeper import jute
from controller.zookeeper.kazoo_session import path_error
from controller.zookeeper.operations import ACL, OPEN_ACL, Check, Create, Delete, NoAuth, SetData, Stat, ZooKeeperError
from controller.zookeeper.paths import validate_paths
from controller.zookeeper.row_writes import SetResults

OPEN = [KazooACL(31, Id("world", "anyone"))]
STAT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
STAT_BYTES = struct.pack("!qqqqiiiqiiq", *STAT)
END = struct.pack("!iBi", -1, 1, -1)


def head(kind: int, error: int = 0) -> bytes:
    return struct.pack("!iBi", kind, 0, error)


def buffer(data: bytes | None) -> bytes:
    return struct.pack("!i", -1) if data is None else struct.pack("!i", len(data)) + data


@pytest.mark.parametrize(
    ("write", "theirs"),
    [
        (Create("/a", b"x"), kazoo.Create("/a", b"x", OPEN, 0)),
        (Create("/a", None, ephemeral=True), kazoo.Create("/a", None, OPEN, 1)),
        (Create("/a-", b"", sequential=True), kazoo.Create("/a-", b"", OPEN, 2)),
        (Create("/a-", b"", ephemeral=True, sequential=True), kazoo.Create("/a-", b"", OPEN, 3)),
        (
            Create("/a", b"", acl=(ACL(5, "digest", "u:p"), ACL(1, "world", "anyone"))),
            kazoo.Create("/a", b"", [KazooACL(5, Id("digest", "u:p")), KazooACL(1, Id("world", "anyone"))], 0),
        ),
        (SetData("/ä", b"x", 0), kazoo.SetData("/ä", b"x", 0)),
        (SetData("/a", None, -1), kazoo.SetData("/a", None, -1)),
        (Delete("/a", 3), kazoo.Delete("/a", 3)),
        (Check("/a", 0), kazoo.CheckVersion("/a", 0)),
    ],
)
def test_a_multis_operations_are_kazoos(write: Any, theirs: Any) -> None:
    assert jute.multi([write, write], OPEN_ACL, "") == bytes(kazoo.Transaction([theirs, theirs]).serialize())


def test_a_multis_paths_get_the_chroot() -> None:
    ours = jute.multi([Delete("/a", 1), Delete("/", 1)], OPEN_ACL, "/root")
    assert ours == bytes(kazoo.Transaction([kazoo.Delete("/root/a", 1), kazoo.Delete("/root", 1)]).serialize())


def test_single_reads_are_kazoos() -> None:
    for watch in (True, False):
        assert jute.path_and_watch("/a", watch) == bytes(kazoo.GetData("/a", watch).serialize())


def test_a_multi_read_holds_a_head_and_a_path_for_each() -> None:
    theirs = b"".join(head(4, -1) + bytes(kazoo.GetData(path, None).serialize()) for path in ("/a", "/bc"))
    assert jute.multi_read(jute.GET_DATA, ["/a", "/bc"]) == theirs + END


DATAS = [b'{"a":1}', None, b"", b"[2]", b"3"]


def reply(datas: list[bytes | None], missing: frozenset[int]) -> bytes:
    rows = [
        head(-1, -101) + struct.pack("!i", -101) if index in missing else head(4) + buffer(data) + STAT_BYTES
        for index, data in enumerate(datas)
    ]
    return b"before" + b"".join(rows) + END


@pytest.mark.parametrize("missing", [(), (0,), (4,), (0, 1), (3, 4), (1, 3), (0, 1, 2, 3, 4)])
def test_columns_and_rows_of_a_reply_agree(missing: tuple[int, ...]) -> None:
    message = reply(DATAS, frozenset(missing))
    paths = [f"/{number}" for number in range(len(DATAS))]
    rows = jute.read_rows(message, 6, paths, path_error)
    assert [row and (row.path, row.data, row.stat) for row in rows] == [
        None if index in missing else (path, DATAS[index], Stat(*STAT)) for index, path in enumerate(paths)
    ]
    columns = jute.read_columns(message, 6, paths, 77, path_error)
    of_rows = jute.columns_of(rows, 77)
    assert (columns.json, columns.versions.tolist(), columns.ends.tolist(), columns.zxid) == (
        of_rows.json,
        of_rows.versions.tolist(),
        of_rows.ends.tolist(),
        77,
    )
    assert columns.versions.tolist() == [-1 if index in missing else 5 for index in range(5)]


@pytest.mark.parametrize("odd", [None, b"longer than the others", b"", "missing"])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_rows_of_one_length_are_taken_as_a_table_and_others_walked(odd: bytes | str | None, place: int) -> None:
    datas: list[bytes | None] = [b'{"a":%d}' % number for number in range(6)]
    datas.insert(place, None if odd == "missing" else odd)  # type: ignore[arg-type]
    message = reply(datas, frozenset([place] if odd == "missing" else []))
    paths = [f"/{number}" for number in range(7)]
    columns, of_rows = (
        jute.read_columns(message, 6, paths, 77, path_error),
        jute.columns_of(jute.read_rows(message, 6, paths, path_error), 77),
    )
    assert (columns.json, columns.versions.tolist(), columns.ends.tolist()) == (
        of_rows.json,
        of_rows.versions.tolist(),
        of_rows.ends.tolist(),
    )


def test_a_table_is_what_walking_finds() -> None:
    stats = [struct.pack("!qqqqiiiqiiq", 1, 2, 3, 4, version, 6, 7, 8, 9, 10, 11) for version in (0, 7, 300, 2**31 - 1)]
    rows = [head(4) + buffer(b'{"n":%d}' % number) + stat for number, stat in enumerate(stats)]
    message = b"before" + b"".join(rows) + END
    table = jute._table(message, 6, 4, 77)
    walked = jute._walked(message, 6, ["/"] * 4, 77, path_error)
    assert table is not None
    assert (table.json, table.versions.tolist(), table.ends.tolist(), table.zxid) == (
        walked.json,
        walked.versions.tolist(),
        walked.ends.tolist(),
        77,
    )
    assert table.versions.tolist() == [0, 7, 300, 2**31 - 1]


@pytest.mark.parametrize("cut", [1, 30, 80])
def test_a_reply_cut_short_is_no_table(cut: int) -> None:
    message = reply([b"12"] * 3, frozenset())[: -len(END)]
    assert jute._table(message, 6, 3, 77) is not None
    assert jute._table(message[:-cut], 6, 3, 77) is None


def test_nothing_asked_for_is_nothing_read() -> None:
    assert jute.read_columns(END, 0, [], 1, path_error).json == b"[]"
    assert jute.read_rows(END, 0, [], path_error) == ()


def test_an_error_other_than_a_missing_node_is_raised_with_its_path() -> None:
    message = head(4) + buffer(b"1") + STAT_BYTES + head(-1, -102) + struct.pack("!i", -102) + END
    for read in (
        lambda: jute.read_rows(message, 0, ["/a", "/b"], path_error),
        lambda: jute.read_columns(message, 0, ["/a", "/b"], 1, path_error),
        lambda: jute.read_listings(head(-1) + message[-13:], 0, ["/b"], path_error),
    ):
        with pytest.raises(NoAuth, match="/b"):
            read()


def test_names_are_sorted() -> None:
    message = head(8) + struct.pack("!i", 2) + buffer(b"b") + buffer("ä".encode()) + END
    assert jute.read_listings(message, 0, ["/"], path_error) == (("b", "ä"),)


def test_a_multis_results_are_read_in_order() -> None:
    message = head(1) + buffer(b"/a") + head(5) + STAT_BYTES + head(2) + head(13) + END
    assert jute.read_multi(message, 0, 4) == (["/a", Stat(*STAT), None, None], -1, 0)


def test_a_failed_batch_of_sets_is_no_batch_of_results() -> None:
    codes = [0, 0, -103, -2]
    message = b"".join(head(-1, code) + struct.pack("!i", code) for code in codes) + END
    assert jute.read_multi(message, 0, 4) == ([], 2, -103)


@pytest.mark.parametrize("odd", [None, 1, 2, 3])
def test_a_batch_of_sets_is_read_at_once_and_one_with_something_else_in_it_row_by_row(odd: int | None) -> None:
    stats = [Stat(*(1_000 * row + field for field in range(11))) for row in range(4)]
    results: list[Any] = [None, *stats]  # behind the fence
    parts = [head(13), *(head(5) + struct.pack("!qqqqiiiqiiq", *stat) for stat in stats)]
    if odd is not None:
        results[odd], parts[odd] = "/a", head(1) + buffer(b"/a")
    message = b"reply." + b"".join(parts) + END
    found, index, code = jute.read_multi(message, 6, 5)
    assert (list(found), index, code) == (results, -1, 0)
    assert isinstance(found, SetResults) == (odd is None)


def test_a_reply_to_sets_that_is_cut_short_is_not_read_at_once() -> None:
    message = (head(5) + STAT_BYTES) * 3 + END
    assert list(jute._sets(message, 0, 3) or ()) == [Stat(*STAT)] * 3
    assert jute._sets(message[:-1], 0, 3) is None
    assert jute._sets(message, 0, 2) is None
    assert jute._sets(END, 0, 0) is None
    with pytest.raises(struct.error):
        jute.read_multi(message[: -len(END) - 1], 0, 3)


def test_the_first_operation_with_a_code_is_the_one_that_failed() -> None:
    codes = [0, -103, -2]
    message = b"".join(head(-1, code) + struct.pack("!i", code) for code in codes) + END
    assert jute.read_multi(message, 0, 3) == ([], 1, -103)


@pytest.mark.parametrize("chroot", ["", "/a", "/a/b"])
@pytest.mark.parametrize("path", ["/", "/x", "/x/y"])
def test_a_chroot_is_put_on_and_taken_off(chroot: str, path: str) -> None:
    assert jute.stripped(chroot, jute.prefixed(chroot, path)) == path
    assert jute.prefixed(chroot, path).startswith(chroot)


@pytest.mark.parametrize(
    "bad", ["", "a", "a/b", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\nb", "/a\n/b", "/\0", "/\ud800", "/\x7f"]
)
def test_one_bad_path_among_many_is_found(bad: str) -> None:
    good = ["/", "/a", "/a/b-c_d.e", "/.hidden", "/ä", "/a b"]
    validate_paths(good)
    validate_paths([])
    for place in range(len(good) + 1):
        with pytest.raises(ValueError, match="znode path"):
            validate_paths(good[:place] + [bad] + good[place:])
    with pytest.raises(ValueError, match="znode path"):
        validate_paths(["/a", bad, "/b"])


def test_an_error_code_without_a_name_is_an_error_all_the_same() -> None:
    error = path_error(-127, "/a")
    assert type(error) is ZooKeeperError
    assert "-127" in str(error)
