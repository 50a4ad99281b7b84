"""A container's environment becomes the broker's settings, and nothing of it is lost or made up."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from controller.broker.settings import parse_settings
from controller.cli.broker import overrides
from tests.docker.scripts import script

entrypoint = script("entrypoint")


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_BROKER_ID", "broker.id"),
        ("KAFKA_ZOOKEEPER_SESSION_TIMEOUT_MS", "zookeeper.session.timeout.ms"),
        ("KAFKA_CAMERLENGO_TRACE_FILE", "camerlengo.trace.file"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_A____B", "a-.b"),
    ],
)
def test_a_variable_names_a_setting_as_in_the_images_of_kafka(variable: str, name: str) -> None:
    assert entrypoint.setting_name(variable) == name


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        ({}, [], []),
        ({"PATH": "/bin", "XKAFKA_A": "1"}, [], []),
        ({"KAFKA_B": "2", "KAFKA_A": "x=y z"}, [], ["--override", "a=x=y z", "--override", "b=2"]),
        ({"KAFKA_BROKER_RACK": ""}, [], []),
        ({"KAFKA_A": "1"}, ["--override", "a=2"], ["--override", "a=1", "--override", "a=2"]),
    ],
)
def test_the_command_line_is_the_environment_then_the_arguments(
    environment: Mapping[str, str], arguments: list[str], words: list[str]
) -> None:
    assert entrypoint.command(environment, arguments) == [sys.executable, "-m", "controller.cli", "broker", *words]


def test_the_broker_takes_what_the_environment_says_and_an_argument_goes_before_it() -> None:
    environment = {"KAFKA_ZOOKEEPER_CONNECT": "zk:2181", "KAFKA_BROKER_ID": "7", "KAFKA_BROKER_RACK": ""}
    words = entrypoint.command(environment, ["--override", "broker.id=8"])
    settings = parse_settings(overrides(word for word in words[4:] if word != "--override"))
    assert (settings.zookeeper_connect, settings.broker_id, settings.rack) == ("zk:2181", 8, None)
