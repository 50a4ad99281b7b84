"""A ZooKeeper tree held as a value: znodes by path, read from a file or written to one. No ZooKeeper is needed.

Two file formats are read, distinguished by their beginning:

- what `save` writes: a line of JSON that names the format, then a line of JSON a znode;
- a listing of paths, each followed by two indented lines, `data=` with a Python bytes literal or None, and the stat
  as `name=value` words (the form in which the real clusters' trees of the tests are kept).
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controller.zookeeper.operations import Stat, Znode

FORMAT = 1

_STAT_WORD = re.compile(r"(\w+)=(0x[0-9a-f]+|-?\d+)")
_STAT_NAMES = {
    "czxid": "czxid",
    "mzxid": "mzxid",
    "ctime": "ctime_ms",
    "mtime": "mtime_ms",
    "version": "version",
    "cversion": "cversion",
    "aversion": "aversion",
    "ephemeralOwner": "ephemeral_owner",
    "dataLength": "data_length",
    "numChildren": "num_children",
    "pzxid": "pzxid",
}


class TreeFileError(Exception):
    """A file that holds no tree in either form; names the file, the line and what was expected there."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Znodes by path, in path order."""

    nodes: Mapping[str, Znode]

    @classmethod
    def of(cls, rows: Iterable[Znode]) -> Tree:
        return cls({row.path: row for row in sorted(rows, key=lambda row: row.path)})

    def get(self, path: str) -> Znode | None:
        return self.nodes.get(path)

    def children(self, path: str) -> list[str]:
        """The names of the children of `path`, sorted. Linear in the tree."""
        prefix = path if path.endswith("/") else path + "/"
        start = len(prefix)
        return [
            node[start:] for node in self.nodes if node.startswith(prefix) and "/" not in node[start:] and node != path
        ]


class _Header(msgspec.Struct, frozen=True):
    camerlengo_tree: int


class _Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """`data` is text where the bytes are UTF-8, else `data_base64` is given; neither: the znode's data is null."""

    path: str
    stat: Stat
    data: str | None = None
    data_base64: str | None = None


_HEADER = msgspec.json.Decoder(_Header)
_NODE = msgspec.json.Decoder(_Node)


def _as_node(row: Znode) -> _Node:
    if row.data is None:
        return _Node(row.path, row.stat)
    try:
        return _Node(row.path, row.stat, data=row.data.decode("utf-8"))
    except UnicodeDecodeError:
        return _Node(row.path, row.stat, data_base64=base64.b64encode(row.data).decode("ascii"))


def _as_row(node: _Node) -> Znode:
    if node.data is not None:
        return Znode(node.path, node.data.encode("utf-8"), node.stat)
    data = None if node.data_base64 is None else base64.b64decode(node.data_base64, validate=True)
    return Znode(node.path, data, node.stat)


def dump(tree: Tree) -> Iterator[bytes]:
    """The lines of the file that `save` writes."""
    yield msgspec.json.encode(_Header(FORMAT)) + b"\n"
    for row in tree.nodes.values():
        yield msgspec.json.encode(_as_node(row)) + b"\n"


def save(tree: Tree, path: Path) -> None:
    """Writes the whole file or none of it. Raises OSError."""
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            file.writelines(dump(tree))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path) -> Tree:
    """Reads a tree from a file of either form. Raises OSError or TreeFileError."""
    try:
        return parse(path.read_bytes())
    except TreeFileError as error:
        raise TreeFileError(f"{path}: {error}") from error


def parse(content: bytes) -> Tree:
    """As `load`, from the file's bytes. Raises TreeFileError."""
    tree = Tree.of(_saved_rows(content) if content.lstrip().startswith(b"{") else _listed_rows(content))
    if not tree.nodes:
        raise TreeFileError("it is empty: expected the znodes of a tree")
    return tree


def _saved_rows(content: bytes) -> Iterator[Znode]:
    lines = content.splitlines()
    try:
        header = _HEADER.decode(lines[0])
    except msgspec.DecodeError as error:
        raise TreeFileError(f'line 1: expected {{"camerlengo_tree":{FORMAT}}}: {error}') from error
    if header.camerlengo_tree != FORMAT:
        raise TreeFileError(f"line 1: a tree of format {header.camerlengo_tree}; this reads format {FORMAT}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield _as_row(_NODE.decode(line))
        except (msgspec.DecodeError, UnicodeError, binascii.Error) as error:
            raise TreeFileError(f"line {number}: expected a znode as JSON: {error}") from error


def _listed_rows(content: bytes) -> Iterator[Znode]:
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TreeFileError(f"not a tree: {error}") from error
    lines = [line for line in lines if line.strip()]
    for number in range(0, len(lines), 3):
        path, *rest = lines[number : number + 3]
        if not path.startswith("/"):
            raise TreeFileError(f"not a tree: expected a znode's path, found {path[:60]!r}")
        if len(rest) != 2 or not rest[0].startswith("    data="):
            raise TreeFileError(f"{path}: expected a line of data= and a line of its stat after it")
        yield Znode(path, _literal(path, rest[0].removeprefix("    data=")), _stat(path, rest[1]))


def _literal(path: str, text: str) -> bytes | None:
    try:
        data = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise TreeFileError(f"{path}: data={text[:60]!r} is no bytes literal") from error
    if data is not None and not isinstance(data, bytes):
        raise TreeFileError(f"{path}: data={text[:60]!r} is no bytes literal")
    return data


def _stat(path: str, line: str) -> Stat:
    """Words that the listing leaves out are 0."""
    words = {name: int(value, 0) for name, value in _STAT_WORD.findall(line)}
    if "version" not in words:
        raise TreeFileError(f"{path}: expected its stat, found {line.strip()[:60]!r}")
    return Stat(**{field: words.get(name, 0) for name, field in _STAT_NAMES.items()})
