"""Trees are read from both forms of file and kept without loss; a file that holds none is named with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper.cluster_state import Tree, TreeFileError, dump, load, parse, save
from controller.zookeeper.operations import Stat, Znode

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
LISTED = """\
/
    data=None
    dataLength=0 version=0 cversion=12 czxid=0 mzxid=0 ephemeralOwner=0x0 numChildren=1 acl=[(31, 'world', 'anyone')]
/a b
    data=b'\\xff'
    dataLength=1 version=3 cversion=0 czxid=61 mzxid=64 ephemeralOwner=0x100001277150001 numChildren=0 acl=[]
"""

numbers = st.integers(0, 2**62)
stats = st.builds(Stat, *[numbers] * 11)
names = st.text("aZ09 ._-é√", min_size=1, max_size=5)
rows = st.builds(Znode, names.map(lambda name: f"/{name}"), st.none() | st.binary(max_size=8), stats)


def test_a_listing_of_a_real_cluster_is_read_whole() -> None:
    for name in ("znodes.txt", "znodes-after-admin.txt"):
        tree = load(DATA / name)
        lines = (DATA / name).read_text(encoding="utf-8").splitlines()
        assert list(tree.nodes) == sorted(line for line in lines if line.startswith("/"))
        for row in tree.nodes.values():
            assert row.stat.data_length == len(row.data or b"")
    assert tree.children("/brokers") == ["ids", "seqid", "topics"]
    assert len(tree.children("/")) == tree.nodes["/"].stat.num_children - 1  # ZooKeeper's own is not in the listing


def test_a_listing_keeps_stats_and_null_data() -> None:
    tree = parse(LISTED.encode())
    assert tree.nodes["/"].data is None
    row = tree.nodes["/a b"]
    assert row.data == b"\xff"
    assert (row.stat.version, row.stat.czxid, row.stat.ephemeral_owner) == (3, 61, 0x100001277150001)


@given(st.lists(rows, min_size=1, max_size=8, unique_by=lambda row: row.path))
def test_what_is_saved_is_read_again_the_same(kept: list[Znode]) -> None:
    tree = Tree.of(kept)
    assert parse(b"".join(dump(tree))) == tree


def test_a_file_is_replaced_whole_and_no_part_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_text("before")
    tree = load(DATA / "znodes.txt")
    save(tree, path)
    assert load(path) == tree
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "empty"),
        (b"hello\n", "expected a znode's path, found 'hello'"),
        (b"\xff\xfe\x00", "not a tree"),
        (b"/a\n", "/a: expected a line of data="),
        (b"/a\n    data=x\n    version=0\n", "/a: data='x' is no bytes literal"),
        (b"/a\n    data='text'\n    version=0\n", "is no bytes literal"),
        (b"/a\n    data=None\n    nothing\n", "/a: expected its stat"),
        (b'{"some":"json"}\n', "line 1: expected"),
        (b'{"camerlengo_tree":9}\n', "format 9; this reads format 1"),
        (b'{"camerlengo_tree":1}\n', "empty"),
        (b'{"camerlengo_tree":1}\n{"path":"/a"}\n', "line 2: expected a znode"),
        (b'{"camerlengo_tree":1}\n{"path"', "line 2: expected a znode"),
    ],
)
def test_a_file_that_holds_no_tree_is_refused_by_name(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "some-file"
    path.write_bytes(content)
    with pytest.raises(TreeFileError) as caught:
        load(path)
    assert complaint in str(caught.value)
    assert "some-file" in str(caught.value)
