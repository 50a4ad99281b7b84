"""Contract: who may do what, by ACLs of the schemes world, digest and auth. In memory and on a real server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.security import make_digest_acl_credential

from controller.zookeeper.memory.database import digest_id
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    PERM_ADMIN,
    PERM_ALL,
    PERM_CREATE,
    PERM_DELETE,
    PERM_READ,
    PERM_WRITE,
    Check,
    Create,
    Delete,
    InvalidACL,
    MultiFailed,
    NoAuth,
    SetData,
    WatchEvent,
    WatchKind,
    Write,
    ZooKeeperConnection,
)
from tests.zookeeper.contract import Backend, Client

CREDENTIAL = "kafka:sécret:with colons"
AUTH = (("digest", CREDENTIAL),)
OWN_ACL = (ACL(PERM_ALL, "auth", ""),)


@pytest.fixture
def owner(backend: Backend) -> Client:
    """A client that has proved who it is, and whose znodes are its own."""
    return backend.client(auth=AUTH, default_acl=OWN_ACL)


def error_of(client: Client, *operations: Write) -> type[Exception] | None:
    try:
        client.multi(*operations)
    except MultiFailed as failed:
        return type(failed.error)
    return None


def test_the_digest_of_a_credential_is_zookeepers() -> None:
    assert digest_id("user:password") == make_digest_acl_credential("user", "password")
    with pytest.raises(ValueError, match="user:password"):
        digest_id("nobody")


def test_a_stranger_may_neither_read_nor_change_what_belongs_to_another(
    backend: Backend, client: Client, owner: Client
) -> None:
    path = backend.path("owned")
    owner.multi(Create(path, b"1"), Create(f"{path}/child", b""))
    for operation in (
        SetData(path, b"2", 0),
        Delete(f"{path}/child", 0),
        Create(f"{path}/mine", b"", acl=OPEN_ACL),
        Check(path, 1),
    ):
        assert error_of(client, operation) is NoAuth, operation
        assert error_of(owner, operation) is None, operation
    reads: list[Callable[[ZooKeeperConnection], object]] = [
        lambda connection: backend.wait(connection.read([backend.root, path])),
        lambda connection: backend.wait(connection.read_columns([path, backend.root])),
        lambda connection: backend.wait(connection.children([path])),
        lambda connection: backend.wait(connection.watch([], [path])),
    ]
    for read in reads:
        with pytest.raises(NoAuth) as caught:
            read(client.connection)
        assert caught.value.path == path
        read(owner.connection)


def test_another_credential_of_the_same_name_is_a_stranger(backend: Backend, owner: Client) -> None:
    path = backend.path("owned")
    owner.create(path)
    stranger = backend.client(auth=(("digest", "kafka:guess"),))
    same = backend.client(auth=(("digest", "other:one"), *AUTH))
    assert error_of(stranger, SetData(path, b"", 0)) is NoAuth
    assert error_of(same, SetData(path, b"", 0)) is None


@pytest.mark.parametrize(
    ("permission", "allowed"),
    [
        (PERM_READ, {"read", "check"}),
        (PERM_WRITE, {"set"}),
        (PERM_CREATE, {"create"}),
        (PERM_DELETE, {"delete"}),
        (PERM_ADMIN, set[str]()),
    ],
)
def test_each_permission_allows_its_own_operations_only(
    backend: Backend, client: Client, permission: int, allowed: set[str]
) -> None:
    path = backend.path("some")
    client.create(path, b"", acl=(ACL(PERM_CREATE, "world", "anyone"), ACL(permission, "world", "anyone")))
    client.create(f"{path}/child", b"")
    operations: dict[str, Write] = {
        "check": Check(path, 0),
        "set": SetData(path, b"", 0),
        "delete": Delete(f"{path}/child", 0),
        "create": Create(f"{path}/another", b""),
    }
    done = {name for name, operation in operations.items() if error_of(client, operation) is None}
    try:
        client.row(path)
        done.add("read")
    except NoAuth:
        assert "read" not in allowed
    assert done == allowed | {"create"}


def test_the_right_to_delete_is_the_parents_and_not_the_nodes(backend: Backend, client: Client) -> None:
    path = backend.path("unreadable")
    client.create(path, b"", acl=(ACL(PERM_READ, "world", "anyone"),))
    assert error_of(client, SetData(path, b"", 0)) is NoAuth
    assert error_of(client, Delete(path, 0)) is None


def test_acls_that_make_no_sense_are_refused(backend: Backend, client: Client, owner: Client) -> None:
    path = backend.path("never")
    refused: list[tuple[ACL, ...]] = [
        (),
        OWN_ACL,  # auth, of a client that has proved nothing
        (ACL(PERM_ALL, "world", "somebody"),),
        (ACL(PERM_ALL, "digest", "no-colon"),),
        (ACL(PERM_ALL, "unknown", "x"),),
        (*OPEN_ACL, ACL(PERM_ALL, "digest", "a:b:c")),
    ]
    for acl in refused:
        assert error_of(client, Create(path, b"", acl=acl)) is InvalidACL, acl
    assert client.row(path) is None
    assert error_of(owner, Create(path, b"", acl=OWN_ACL)) is None


def test_no_right_to_the_parent_comes_before_what_else_is_wrong(
    backend: Backend, client: Client, owner: Client
) -> None:
    path = backend.path("owned")
    owner.multi(Create(path, b""), Create(f"{path}/child", b""))
    assert error_of(client, Create(f"{path}/child", b"")) is NoAuth
    assert error_of(client, Delete(f"{path}/missing", 0)) is NoAuth
    assert error_of(client, SetData(path, b"", 9)) is NoAuth


def test_a_watch_says_nothing_to_who_may_not_read(backend: Backend, client: Client, owner: Client) -> None:
    path = backend.path("secret")
    client.watch([path])
    owner.watch([path])
    owner.create(path)
    assert client.heard() == []
    assert owner.heard() == [WatchEvent(WatchKind.CREATED, path)]


def test_proof_is_given_again_on_every_connection(backend: Backend, owner: Client) -> None:
    path = backend.path("owned")
    owner.create(path)
    owner.reset()
    backend.until(lambda: len(owner.states) == 3, "reconnected")
    owner.multi(SetData(path, b"", 0))
