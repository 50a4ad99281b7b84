"""Requests about one znode, as ordinary clients make them: the in-memory ZooKeeper's answers.

The port of this project reads and writes in batches (`Database`). Other clients read one znode and set its watch in
the same request, write without a multi, and change access lists. Rules and errors are those of ZooKeeper 3.9's
PrepRequestProcessor and FinalRequestProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from controller.zookeeper.memory.database import ClientLink, Database
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    PERM_ADMIN,
    PERM_READ,
    BadArguments,
    BadVersion,
    Create,
    MultiFailed,
    NoNode,
    PathError,
    Stat,
    Write,
    WriteResult,
)
from controller.zookeeper.paths import validate_new_path

WRITE, EXISTS, GET_DATA, GET_CHILDREN, GET_ACL, SET_ACL, AUTHENTICATE, MULTI_READ = range(10, 18)
"""What a request asks for, after those of `database.py`."""


def write(database: Database, link: ClientLink, operations: tuple[Write]) -> tuple[WriteResult, Stat | None]:
    """Carry out one write; return its result, and the stat of what it created or set. Raises its own error."""
    operation = operations[0]
    if isinstance(operation, Create):
        try:
            validate_new_path(operation.path, operation.sequential)
        except ValueError:
            raise BadArguments(operation.path) from None
    try:
        result = database.multi(link, operations)[0]
    except MultiFailed as failed:
        raise failed.error from None
    return result, database.tree.nodes[result].read_stat() if isinstance(result, str) else result


def exists(database: Database, link: ClientLink, arguments: tuple[str, bool]) -> Stat:
    path, watch = arguments
    if watch:
        database.data_watches.add(path, link)
    node = database.tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    return node.read_stat()


def get_data(database: Database, link: ClientLink, arguments: tuple[str, bool]) -> tuple[bytes | None, Stat]:
    path, watch = arguments
    node = database.tree.existing(path)
    link.identity.demand(node.acl, PERM_READ, path)
    if watch:
        database.data_watches.add(path, link)
    return node.data, node.read_stat()


def get_children(database: Database, link: ClientLink, arguments: tuple[str, bool]) -> tuple[tuple[str, ...], Stat]:
    path, watch = arguments
    node = database.tree.existing(path)
    link.identity.demand(node.acl, PERM_READ, path)
    if watch:
        database.child_watches.add(path, link)
    return tuple(sorted(node.children)), node.read_stat()


def get_acl(database: Database, link: ClientLink, path: str) -> tuple[tuple[ACL, ...], Stat]:
    """The access list; the digests in it are shown only to those who may change it (ZOOKEEPER-1392)."""
    node = database.tree.existing(path)
    link.identity.demand(node.acl, PERM_READ | PERM_ADMIN, path)
    acl = node.acl
    if not link.identity.may(acl, PERM_ADMIN):
        acl = tuple(
            ACL(entry.permissions, entry.scheme, f"{entry.id.partition(':')[0]}:x")
            if entry.scheme == "digest"
            else entry
            for entry in acl
        )
    return acl, node.read_stat()


def set_acl(database: Database, link: ClientLink, arguments: tuple[str, tuple[ACL, ...], int]) -> Stat:
    """Set the access list at its version (`aversion`); no watch fires."""
    path, acl, version = arguments
    database.zxid += 1
    resolved = link.identity.resolve(acl, path)
    node = database.tree.existing(path)
    link.identity.demand(node.acl, PERM_ADMIN, path)
    if version not in (ANY_VERSION, node.acl_version):
        raise BadVersion(path)
    node.acl = resolved
    node.acl_version += 1
    node.stat = node.row = None
    return node.read_stat()


def authenticate(_database: Database, link: ClientLink, arguments: tuple[str, str]) -> bool:
    """Return whether the credential was accepted; after a refusal the server closes the connection."""
    scheme, credential = arguments
    if scheme != "digest" or ":" not in credential:
        return False
    link.identity.add_digest(credential)
    return True


def multi_read(
    database: Database, link: ClientLink, reads: Sequence[tuple[int, str]]
) -> list[tuple[Any, Stat] | PathError]:
    """Each read (GET_DATA or GET_CHILDREN, path) has its own result, or its own error."""
    results: list[tuple[Any, Stat] | PathError] = []
    for operation, path in reads:
        try:
            answer: Callable[..., tuple[Any, Stat]] = get_data if operation == GET_DATA else get_children
            results.append(answer(database, link, (path, False)))
        except PathError as error:
            results.append(error)
    return results


_ANSWERS: Mapping[int, Callable[[Database, ClientLink, Any], Any]] = {
    WRITE: write,
    EXISTS: exists,
    GET_DATA: get_data,
    GET_CHILDREN: get_children,
    GET_ACL: get_acl,
    SET_ACL: set_acl,
    AUTHENTICATE: authenticate,
    MULTI_READ: multi_read,
}


def single_requests(database: Database) -> dict[int, Callable[[ClientLink, Any], Any]]:
    """The answers to these requests out of a database, by what is asked for."""
    return {operation: partial(answer, database) for operation, answer in _ANSWERS.items()}
