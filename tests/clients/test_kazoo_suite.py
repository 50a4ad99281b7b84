"""The harness that runs kazoo's own tests: one of its files on `fake_kazoo`, its comparison, its usage errors."""

from __future__ import annotations

import pytest

from tests.clients.kazoo_suite import FAILED, PASSED, compare, main


def test_a_file_of_kazoos_tests_passes_on_the_fake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "fake", "test_counter.py"]) == 0
    assert capsys.readouterr().out.startswith("fake: ")


def test_one_in_twenty_may_pass_on_the_real_server_alone(capsys: pytest.CaptureFixture[str]) -> None:
    real = {f"t{number}": (PASSED, "") for number in range(20)} | {"broken": (FAILED, "no quorum")}
    assert compare("fake", real | {"t0": (FAILED, "why")}, real)
    assert "failed on fake alone: t0" in capsys.readouterr().out
    assert not compare("fake", {name: real[name] for name in list(real)[2:]}, real)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--against", "fake,jaba"], "jaba: expected fake, python, java"), (["test_none.py"], "test_none.py")],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
