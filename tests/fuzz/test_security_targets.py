"""Faults that are planted in what decides who may come in, and that the campaign's targets must find."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from controller.broker.security import acl_store, sasl
from controller.broker.security.scram import ScramServer
from tests.fuzz.crash import Crash
from tests.fuzz.mutations import malformed
from tests.fuzz.security_targets import AclZnodes, CredentialZnode, QuotaZnodes, SaslMessages

INPUTS = 1_000


def feed(target: Any) -> None:
    rng = random.Random(1)
    for _ in range(INPUTS):
        target.feed(malformed(rng, target.sound))


def test_a_password_that_is_not_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmac.compare_digest", lambda _one, _other: True)
    with pytest.raises(Crash, match="User:alice was let in"):
        feed(SaslMessages())


def test_a_proof_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScramServer, "final", lambda _self, _message: b"v=")
    with pytest.raises(Crash, match="User:alice was let in"):
        feed(SaslMessages())


def test_an_answer_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl.SaslSession, "_refuse", lambda *_given: None)
    with pytest.raises(Crash, match="0 answers"):
        feed(SaslMessages())


def test_an_unexpected_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(_text: str) -> None:
        raise KeyError("salt")

    monkeypatch.setattr("controller.broker.security.scram_store.parse_credential", careless)
    with pytest.raises(Crash, match="a sound log-in was refused"):
        feed(CredentialZnode())


def test_damaged_acls_that_are_taken_for_none_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_store, "_DENY_ALL", acl_store.entry_of(AclZnodes()._row()))
    with pytest.raises(Crash, match="can be read though its ACLs are damaged"):
        feed(AclZnodes())


def test_a_warning_for_each_quota_at_each_change_is_found() -> None:
    target = QuotaZnodes()
    take = target._store._take

    def again(path: str, config: Mapping[str, str]) -> None:
        for _ in range(10):
            take(path, config)

    target._store._take = again  # type: ignore[method-assign]
    with pytest.raises(Crash, match="lines of the log"):
        feed(target)
