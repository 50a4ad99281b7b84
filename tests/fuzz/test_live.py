"""Some thousands of the campaign's requests, and what it must find if it is there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from controller.broker.broker import Broker
from controller.core.handlers import topic_creation
from controller.protocol import SUPPORTED, decode_request
from controller.simulator.senseless_requests import OF_CLIENTS, OF_CONTROLLERS, ValueGenerator
from tests.fuzz import live
from tests.fuzz.campaign import Failure

INPUTS = 2_000


def test_two_thousand_requests_no_term_ended_and_every_request_answered() -> None:
    figures = live.campaign(INPUTS, 1)
    assert figures.outcomes.total() == INPUTS
    assert len({api for api, _ in figures.outcomes}) == len(OF_CLIENTS)


def test_requests_of_a_controller_leave_a_broker_running() -> None:
    figures = live.control_campaign(600, 1)
    assert figures.outcomes.total() == 600


def test_what_is_drawn_is_well_formed_and_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[bytes]:
        drawing = ValueGenerator(random.Random(seed))
        return [drawing.request(key) for key in (*OF_CLIENTS, *OF_CONTROLLERS) * 10]

    frames = drawn(3)
    assert frames == drawn(3) != drawn(4)
    for frame in frames:
        decode_request(frame, SUPPORTED)


def test_the_campaign_finds_a_term_that_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(topic_creation, "_expand", broken)
    with pytest.raises(Failure, match="planted"):
        live.campaign(INPUTS, 1)


def test_the_campaign_finds_a_request_that_is_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_api_versions", lambda *_: None)
    with pytest.raises(Failure, match="API_VERSIONS is not answered"):
        live.campaign(200, 1)


def test_the_campaign_finds_what_requests_leave_in_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[object]] = []
    begin = Broker.begin

    def leak(self: Broker, *arguments: Any) -> Any:
        kept.extend([] for _ in range(50))
        return begin(self, *arguments)

    monkeypatch.setattr(live, "WORLD_LIFE", 100)
    monkeypatch.setattr(Broker, "begin", leak)
    with pytest.raises(Failure, match="objects more"):
        live.campaign(300, 1)
