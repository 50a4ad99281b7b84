"""Contract: znodes, their stats, versions and transaction ids, and what is refused. In memory and on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from controller.clock import Future
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    LONGEST_READ,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    Stat,
    Write,
    ZooKeeperConnection,
    ZooKeeperError,
)
from tests.zookeeper.contract import Backend, Client


def refused(client: Client, *operations: Write) -> MultiFailed:
    with pytest.raises(MultiFailed) as caught:
        client.multi(*operations)
    return caught.value


def test_a_new_znode_has_the_stat_of_its_creation(backend: Backend, client: Client) -> None:
    path = backend.path("new")
    assert client.create(path, b"abc") == path
    row = client.there(path)
    stat = row.stat
    assert (row.path, row.data) == (path, b"abc")
    assert stat.czxid == stat.mzxid == stat.pzxid > 0
    assert stat.ctime_ms == stat.mtime_ms > 1_600_000_000_000
    assert (stat.version, stat.cversion, stat.aversion) == (0, 0, 0)
    assert (stat.ephemeral_owner, stat.data_length, stat.num_children) == (0, 3, 0)


def test_no_data_and_empty_data_are_different_and_both_are_kept(backend: Backend, client: Client) -> None:
    client.create(backend.path("none"), None)
    client.create(backend.path("empty"), b"")
    assert client.there(backend.path("none")).data is None
    assert client.there(backend.path("empty")).data == b""
    client.multi(SetData(backend.path("empty"), None, 0), SetData(backend.path("none"), b"", 0))
    assert client.there(backend.path("none")).data == b""
    assert client.there(backend.path("empty")).data is None
    assert client.there(backend.path("empty")).stat.data_length == 0


@pytest.mark.usefixtures("quiet")
def test_setting_data_raises_version_and_mzxid_and_answers_with_the_new_stat(backend: Backend, client: Client) -> None:
    path = backend.path("set")
    client.create(path, b"0")
    before = client.there(path).stat
    for version in range(3):
        (answered,) = client.multi(SetData(path, b"x" * version, version))
        after = client.there(path).stat
        assert answered == after
        assert after.version == version + 1
        assert after.data_length == version
        assert after.mzxid == before.mzxid + 1 + version
        assert (after.czxid, after.pzxid, after.ctime_ms) == (before.czxid, before.pzxid, before.ctime_ms)
        assert after.mtime_ms >= after.ctime_ms


def test_any_version_sets_deletes_and_checks_whatever_there_is(backend: Backend, client: Client) -> None:
    path = backend.path("any")
    client.create(path, b"")
    client.multi(SetData(path, b"1", ANY_VERSION), SetData(path, b"2", ANY_VERSION), Check(path, ANY_VERSION))
    assert client.there(path).stat.version == 2
    client.multi(Delete(path, ANY_VERSION))
    assert client.row(path) is None


@pytest.mark.usefixtures("quiet")
def test_a_parents_stat_counts_its_childrens_comings_and_goings_only(backend: Backend, client: Client) -> None:
    parent = backend.path("parent")
    client.create(parent, b"p")
    created = client.there(parent).stat
    client.create(f"{parent}/a")
    client.create(f"{parent}/b", ephemeral=True)
    client.multi(SetData(f"{parent}/a", b"1", 0))
    client.create(f"{parent}/a/grandchild")
    two = client.there(parent).stat
    assert (two.cversion, two.num_children, two.pzxid) == (2, 2, created.czxid + 2)
    client.multi(Delete(f"{parent}/b", 0))
    one = client.there(parent).stat
    assert (one.cversion, one.num_children, one.pzxid) == (3, 1, created.czxid + 5)
    assert (one.version, one.mzxid, one.czxid) == (0, created.czxid, created.czxid)


def test_sequence_numbers_count_every_child_ever_created(backend: Backend, client: Client) -> None:
    parent = backend.path("sequence")
    client.create(parent)
    assert client.create(f"{parent}/n-", sequential=True) == f"{parent}/n-0000000000"
    client.create(f"{parent}/plain")
    assert client.create(f"{parent}/m-", sequential=True, ephemeral=True) == f"{parent}/m-0000000002"
    client.multi(Delete(f"{parent}/n-0000000000", 0))
    assert client.create(f"{parent}/n-", sequential=True) == f"{parent}/n-0000000003"
    assert client.create(f"{parent}/", sequential=True) == f"{parent}/0000000004"
    created = client.multi(*[Create(f"{parent}/k", None, sequential=True) for _ in range(3)])
    assert created == tuple(f"{parent}/k000000000{number}" for number in (5, 6, 7))
    client.multi(SetData(f"{parent}/m-0000000002", b"", 0))
    assert client.there(f"{parent}/m-0000000002").stat.ephemeral_owner == client.connection.session()


def test_a_failed_create_leaves_the_sequence_as_it_was(backend: Backend, client: Client) -> None:
    parent = backend.path("gap")
    client.create(parent)
    failed = refused(client, Create(f"{parent}/a-", None, sequential=True), Check(parent, 9))
    assert (failed.index, type(failed.error)) == (1, BadVersion)
    assert client.create(f"{parent}/a-", sequential=True) == f"{parent}/a-0000000000"


def test_an_ephemeral_names_its_session_and_has_no_children(backend: Backend, client: Client) -> None:
    path = backend.path("ephemeral")
    client.create(path, ephemeral=True)
    assert client.there(path).stat.ephemeral_owner == client.connection.session()
    for ephemeral, sequential in ((False, False), (True, False), (False, True)):
        failed = refused(client, Create(f"{path}/child", b"", ephemeral, sequential))
        assert isinstance(failed.error, NoChildrenForEphemerals)


def test_what_is_refused_and_why(backend: Backend, client: Client) -> None:
    there, parent, missing = backend.path("there"), backend.path("full"), backend.path("missing")
    client.multi(Create(there, b""), Create(parent, b""), Create(f"{parent}/child", b""))
    cases: list[tuple[Write, type[ZooKeeperError]]] = [
        (Create(there, b""), NodeExists),
        (Create(f"{missing}/child", b""), NoNode),
        (Create(f"{missing}/child-", b"", sequential=True), NoNode),
        (Create("/", b""), NodeExists),
        (SetData(missing, b"", ANY_VERSION), NoNode),
        (SetData(missing, b"", 3), NoNode),
        (SetData(there, b"", 1), BadVersion),
        (SetData("/zookeeper/config", b"", ANY_VERSION), NoAuth),
        (Delete(missing, ANY_VERSION), NoNode),
        (Delete(f"{missing}/child", ANY_VERSION), NoNode),
        (Delete(there, 7), BadVersion),
        (Delete(parent, 0), NotEmpty),
        (Delete(parent, 7), BadVersion),
        (Delete("/", ANY_VERSION), BadArguments),
        (Delete("/zookeeper", ANY_VERSION), BadArguments),
        (Delete("/zookeeper/quota", ANY_VERSION), BadArguments),
        (Check(missing, 0), NoNode),
        (Check(there, 2), BadVersion),
    ]
    for operation, expected in cases:
        failed = refused(client, operation)
        assert (failed.index, type(failed.error)) == (0, expected), operation
        assert getattr(failed.error, "path", None) == operation.path


@pytest.mark.parametrize("index", range(5))
def test_a_multi_is_all_or_nothing_and_names_the_first_that_failed(
    backend: Backend, client: Client, index: int
) -> None:
    kept, gone, ephemeral, new = (backend.path(name) for name in ("kept", "gone", "ephemeral", "new"))
    client.multi(Create(kept, b"k"), Create(gone, b"g"), Create(ephemeral, b"e", ephemeral=True))
    before = client.backend.wait(client.connection.read([backend.root, kept, gone, ephemeral])).rows
    operations: list[Write] = [
        SetData(kept, b"changed", 0),
        Delete(gone, 0),
        Delete(ephemeral, 0),
        Create(new, b"", ephemeral=True),
    ]
    operations.insert(index, Check(kept, 17))
    failed = refused(client, *operations, Check(backend.path("never looked at"), 0))
    assert (failed.index, type(failed.error)) == (index, BadVersion)
    assert client.backend.wait(client.connection.read([backend.root, kept, gone, ephemeral])).rows == before
    assert client.row(new) is None


def test_a_multis_operations_see_those_before_them(backend: Backend, client: Client) -> None:
    path = backend.path("chain")
    results = client.multi(
        Create(path, b"0"),
        Create(f"{path}/child", None),
        SetData(path, b"1", 0),
        Check(path, 1),
        SetData(path, b"22", 1),
        Delete(f"{path}/child", 0),
        Check(path, 2),
    )
    stat = client.there(path).stat
    assert results[0] == path
    assert [isinstance(result, Stat) for result in results] == [False, False, True, False, True, False, False]
    assert results[3] is results[5] is results[6] is None
    assert (stat.version, stat.cversion, stat.num_children, stat.data_length) == (2, 2, 0, 2)
    assert stat.czxid == stat.mzxid == stat.pzxid


def test_a_znode_deleted_and_made_again_begins_anew(backend: Backend, client: Client) -> None:
    path = backend.path("again")
    client.multi(Create(path, b"1"), SetData(path, b"2", 0))
    client.multi(Delete(path, 1), Create(path, b"3"))
    row = client.there(path)
    assert (row.data, row.stat.version) == (b"3", 0)
    assert client.multi(Create(f"{path}/n", None, sequential=True)) == (f"{path}/n0000000000",)


@pytest.mark.usefixtures("quiet")
def test_the_zxid_grows_by_one_with_each_transaction_failed_ones_and_sessions_included(
    backend: Backend, client: Client
) -> None:
    def zxid() -> int:
        return backend.wait(client.connection.read([backend.root])).zxid

    start = zxid()
    path = backend.path("zxid")
    client.multi(Create(path, b""), SetData(path, b"", 0), Check(path, 1))
    assert zxid() == start + 1 == client.there(path).stat.czxid
    refused(client, Create(path, b""))
    assert zxid() == start + 2
    client.multi(Check(path, 1))
    assert zxid() == start + 3
    client.backend.wait(client.connection.sync(path))
    client.watch([path], [path])
    assert zxid() == start + 3
    other = backend.client()
    assert zxid() == start + 4
    backend.wait(other.connection.close())
    assert zxid() == start + 5 == client.connection.last_zxid()


def test_a_multi_read_answers_row_by_row_with_none_for_what_is_missing(backend: Backend, client: Client) -> None:
    names = ["a", "b", "c"]
    client.multi(*[Create(backend.path(name), name.encode()) for name in names])
    asked = [backend.path(name) for name in ("c", "x", "a", "a", "y/z", "b")]
    reading = backend.wait(client.connection.read(asked))
    assert [row and row.data for row in reading.rows] == [b"c", None, b"a", b"a", None, b"b"]
    assert [row and row.path for row in reading.rows] == [asked[0], None, asked[2], asked[3], None, asked[5]]
    assert reading.zxid >= client.there(backend.path("a")).stat.czxid
    assert backend.wait(client.connection.read([])).rows == ()


def test_children_are_listed_by_name_in_order(backend: Backend, client: Client) -> None:
    parent, leaf = backend.path("parent"), backend.path("leaf")
    client.multi(Create(parent, None), Create(leaf, None))
    client.multi(*[Create(f"{parent}/{name}", b"") for name in ("10", "9", "a", "Z", "é")])
    listing = backend.wait(client.connection.children([parent, backend.path("missing"), leaf]))
    assert listing.children == (("10", "9", "Z", "a", "é"), None, ())
    assert listing.zxid == client.connection.last_zxid()


def test_columns_hold_what_the_rows_hold(backend: Backend, client: Client) -> None:
    json_, empty, none, missing = (backend.path(name) for name in ("json", "empty", "none", "missing"))
    client.multi(Create(json_, b'{"a": [1, 2]}'), Create(empty, b""), Create(none, None), SetData(empty, b"", 0))
    columns = backend.wait(client.connection.read_columns([json_, missing, empty, none, json_]))
    assert json.loads(columns.json) == [{"a": [1, 2]}, None, None, None, {"a": [1, 2]}]
    assert columns.versions.dtype == np.int32
    assert columns.versions.tolist() == [0, -1, 1, 0, 0]
    ends = columns.ends.tolist()
    elements = [columns.json[start + 1 : end] for start, end in zip([0, *ends], ends, strict=False)]
    assert elements == [b'{"a": [1, 2]}', b"null", b"null", b"null", b'{"a": [1, 2]}']
    assert columns.zxid == client.connection.last_zxid()
    nothing = backend.wait(client.connection.read_columns([]))
    assert (nothing.json, nothing.versions.tolist()) == (b"[]", [])


def test_a_batch_of_the_greatest_size_goes_through_and_one_more_is_refused(backend: Backend, client: Client) -> None:
    paths = [backend.path(f"n{number:03}") for number in range(BATCH)]
    client.multi(*[Create(path, b"%d" % number) for number, path in enumerate(paths)])
    rows = backend.wait(client.connection.read(paths)).rows
    assert [row and row.data for row in rows] == [b"%d" % number for number in range(BATCH)]
    client.multi(*[SetData(path, b"x", 0) for path in paths])
    assert backend.wait(client.connection.read_columns(paths)).versions.tolist() == [1] * BATCH
    reads: list[Callable[[list[str]], object]] = [client.connection.read, client.connection.children]
    for read in reads:
        with pytest.raises(ValueError, match="501"):
            read([*paths, backend.root])
    many = [paths[number % BATCH] for number in range(LONGEST_READ)]
    assert backend.wait(client.connection.read_columns(many)).versions.tolist() == [1] * LONGEST_READ
    with pytest.raises(ValueError, match="2001"):
        client.connection.read_columns([*many, backend.root])


def test_requests_that_ask_for_nothing_are_answered(backend: Backend, client: Client) -> None:
    assert backend.wait(client.connection.children([])).children == ()
    assert backend.wait(client.connection.multi([])) == ()
    backend.wait(client.connection.watch([], []))
    backend.wait(client.connection.set_watches(0, [], [], []))


def test_a_megabyte_and_names_beyond_ascii_come_back_as_they_went(backend: Backend, client: Client) -> None:
    path = backend.path("größe-主題-ž")
    data = bytes(range(256)) * 4096
    assert client.create(path, data) == path
    row = client.there(path)
    assert (row.path, row.data, row.stat.data_length) == (path, data, 1 << 20)
    assert client.children(backend.root) == ("größe-主題-ž",)


def test_requests_are_answered_in_the_order_in_which_they_were_made(backend: Backend, client: Client) -> None:
    path = backend.path("order")
    pendings: list[Future[Any]] = [client.note(client.connection.multi([Create(path, b"")]), "create")]
    for number in range(20):
        pendings.append(client.note(client.connection.multi([SetData(path, b"%d" % number, number)]), f"set {number}"))
        pendings.append(client.note(client.connection.read([path]), f"read {number}"))
    for pending in pendings:
        backend.wait(pending)
    expected = ["create", *[f"{verb} {number}" for number in range(20) for verb in ("set", "read")]]
    assert [entry for entry in client.log if isinstance(entry, str)] == expected
    assert [pending.result().rows[0].data for pending in pendings[2::2]] == [b"%d" % number for number in range(20)]


BAD_PATHS = [
    "",
    "a",
    "a/b",
    "/a/",
    "//",
    "/a//b",
    "/./a",
    "/a/..",
    "/a/.",
    "/a\0b",
    "/a\x1fb",
    "/\x7f",
    "/\ud800",
    "/\ufff0",
]


@pytest.mark.parametrize("path", BAD_PATHS, ids=ascii)
def test_a_path_that_is_none_is_refused_by_name_before_anything_is_sent(
    backend: Backend, client: Client, path: str
) -> None:
    connection = client.connection
    calls: list[Callable[[ZooKeeperConnection], object]] = [
        lambda c: c.read(["/", path]),
        lambda c: c.read_columns([path]),
        lambda c: c.children([path]),
        lambda c: c.multi([SetData(path, b"", 0)]),
        lambda c: c.multi([Check("/", 0), Delete(path, 0)]),
        lambda c: c.multi([Create(path, b"")]),
        lambda c: c.set_watches(0, [path], [], []),
        lambda c: c.set_watches(0, [], [path], []),
        lambda c: c.set_watches(0, [], [], [path]),
        lambda c: c.watch([path], []),
        lambda c: c.watch([], [path]),
        lambda c: c.sync(path),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="path"):
            call(connection)
    assert client.there(backend.root).path == backend.root


def test_the_servers_own_znodes_are_there(client: Client) -> None:
    assert client.there("/").path == "/"
    assert client.children("/zookeeper") == ("config", "quota")
    stats = [client.there(path).stat for path in ("/zookeeper", "/zookeeper/quota")]
    assert [(stat.czxid, stat.version, stat.cversion) for stat in stats] == [(0, 0, -2), (0, 0, 0)]


def test_sync_is_answered(backend: Backend, client: Client) -> None:
    assert backend.wait(client.connection.sync(backend.root)) is None
