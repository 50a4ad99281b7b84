"""`camerlengo bench security`, small: brokers with two protocols, and ratios that say what they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.broker.security.acls import AclRules
from controller.cli.main import main
from tests.benchmarks import broker_worker
from tests.benchmarks import security as bench_security
from tests.benchmarks.security import acl_znodes, check_us, summary, table

pytest.importorskip("cryptography", reason="the extra `secure`")


def test_a_run_has_a_row_for_each_mode(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def in_process(_module: str, kind: str, words: str) -> dict[str, Any]:
        return broker_worker.WORK[kind](**json.loads(words))

    monkeypatch.setattr(bench_security, "run_worker", in_process)
    monkeypatch.setattr(broker_worker, "STATISTICS_MS", 10)
    words = ["--modes", "SASL_SSL", "--megabytes", "0.02", "--runs", "1", "--seconds", "0", "--acls", "100"]
    assert main(["bench", "security", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    plain, secured = found["modes"]
    assert (plain["mode"], secured["mode"]) == ("PLAINTEXT", "SASL_SSL")
    assert plain["produce_records_per_s_ratio"]["median"] == 1.0
    assert secured["consume_records_per_s"] > 0
    assert len(table(found).splitlines()) == 3 + 1 + 6 + 2


def test_a_ratio_is_that_of_one_round() -> None:
    rounds = {"PLAINTEXT": [{"p99_ms": 1.0}, {"p99_ms": 10.0}], "SSL": [{"p99_ms": 2.0}, {"p99_ms": 20.0}]}
    row = summary(rounds)[1]
    assert row == {"mode": "SSL", "p99_ms": 11.0, "p99_ms_ratio": {"median": 2.0, "min": 2.0, "max": 2.0}}


def test_the_acls_are_as_many_as_said() -> None:
    assert len({path for path, _ in acl_znodes(50)}) == 50


def test_a_check_that_is_too_slow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    allows = AclRules.allows

    def slow(rules: AclRules, *asked: Any) -> bool:
        sum(range(2_000))  # as if it looked at 2,000 ACLs
        return allows(rules, *asked)

    found = {"modes": [], "acl_count": 500, "circumstances": ""}
    monkeypatch.setattr(AclRules, "allows", slow)
    text = table(found | {"checks": check_us(500, checks=500, repeats=1)})
    assert "not with literal, prefixed," in text
