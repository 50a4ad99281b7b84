"""SCRAM credentials as a broker keeps them: followed by the notices in ZooKeeper, and there while it is away."""

from __future__ import annotations

import pytest

from controller.broker.entity_configs import EntityConfigReader
from controller.broker.security.scram_store import user_path
from controller.protocol.codec import ApiKey
from controller.protocol.security import (
    SCRAM_SHA_256,
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tests.broker.data_node import DataNode

MECHANISM = "SCRAM-SHA-256"


def iterations(node: DataNode, user: str) -> int | None:
    """Of the credential by which the user would log in now."""
    found = node.node.access.credentials.read(user, MECHANISM)
    node.until(lambda: found.done)
    credential = found.result()
    return None if credential is None else credential.iterations


def alter(node: DataNode, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> list[int]:
    request = AlterUserScramCredentialsRequest(
        tuple(one for one in changes if isinstance(one, ScramCredentialDeletion)),
        tuple(one for one in changes if isinstance(one, ScramCredentialUpsertion)),
    )
    answer = node.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
    node.settle()
    return [one.error_code for one in answer.results]


def upsertion(user: str, count: int = 4_096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(user, SCRAM_SHA_256, count, b"salt", b"salted")


def test_credentials_are_followed_and_no_log_in_asks_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    node = DataNode()
    assert alter(node, upsertion("a/lice"), upsertion("bob")) == [0, 0]
    with monkeypatch.context() as away:
        away.setattr(node.node.client, "read", lambda _paths: pytest.fail("ZooKeeper is asked"))
        assert [iterations(node, user) for user in ("a/lice", "bob", "eve", "<default>", "..")] == [
            *(4_096, 4_096),
            *(None, None, None),
        ]
    assert alter(node, upsertion("a/lice", 8_192), ScramCredentialDeletion("bob", SCRAM_SHA_256)) == [0, 0]
    assert (iterations(node, "a/lice"), iterations(node, "bob")) == (8_192, None)
    node.write(user_path("a/lice"), b"{")
    node.notify(b'{"version":2,"entity_path":"users/a%2Flice"}')
    assert iterations(node, "a/lice") == 8_192, "what can't be read stays as it was known"
    node.write_config(user_path("a/lice"), {MECHANISM: "salt=?"})
    node.notify(b'{"version":2,"entity_path":"users/a%2Flice"}')
    with pytest.raises(ValueError, match="expected salt"):
        iterations(node, "a/lice")


def test_a_new_session_reads_what_changed_without_a_notice() -> None:
    node = DataNode()
    alter(node, upsertion("alice"), upsertion("bob"))
    node.write_config(user_path("alice"), {})
    node.node.access.entity_configs.changed(None)  # as ConfigWatch in a new session
    node.settle()
    assert (iterations(node, "alice"), iterations(node, "bob")) == (None, 4_096)


def test_before_all_were_read_each_log_in_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntityConfigReader, "changed", lambda _self, _entities: None)
    node = DataNode()
    alter(node, upsertion("alice"))
    assert (iterations(node, "alice"), iterations(node, "eve")) == (4_096, None)
