"""Faults of single requests of clients: an error in place of the answer, a delay, an answer that is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.broker.error_responses import refusal
from controller.broker.request_context import Respond
from controller.protocol.codec import SUPPORTED, ApiKey, decode_request, encode_response_parts
from controller.protocol.errors import ErrorCode


@dataclass(slots=True)
class RequestFault:
    """`broker` None: every broker. `times` None: without an end."""

    api: ApiKey
    broker: int | None
    delay_ms: float = 0.0
    error: ErrorCode | None = None
    disconnect: bool = False
    """The request is carried out, and its connection closed instead of the answer."""
    times: int | None = None
    probability: float = 1.0
    hits: int = 0

    def __str__(self) -> str:
        if self.disconnect:
            what = "answer lost"
        else:
            what = f"{self.delay_ms:g} ms later" if self.error is None else self.error.name
        return f"{self.api.name}: {what}"


@dataclass(slots=True)
class Verdict:
    """What becomes of one request. `answer`: gives the answer instead of the broker. `respond`: for the broker's."""

    respond: Respond
    delay_ms: float = 0.0
    answer: Callable[[], None] | None = None


@dataclass(slots=True)
class RequestFaults:
    """The faults of a cluster, the earliest first. `note(broker, text)` is called for each request that one hits."""

    rng: random.Random
    note: Callable[[int, str], None]
    rules: list[RequestFault] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.rules)

    def verdict(self, broker: int, frame: bytes, respond: Respond) -> Verdict | None:
        """Return what the faults make of a request; None: nothing. A delay adds up with others, and with one error."""
        verdict = Verdict(respond)
        key = int.from_bytes(frame[:2], "big")
        for rule in list(self.rules):
            if rule.api != key or rule.broker not in (None, broker) or verdict.answer is not None:
                continue
            if rule.probability < 1.0 and self.rng.random() >= rule.probability:
                continue
            rule.hits += 1
            if rule.times is not None and rule.hits >= rule.times:
                self.rules.remove(rule)
            self.note(broker, str(rule))
            verdict.delay_ms += rule.delay_ms
            if rule.error is not None:
                verdict.answer = _refuse(frame, rule.error, respond)
            elif rule.disconnect:
                verdict.respond = lambda _parts: respond(None)
        changed = verdict.delay_ms or verdict.answer is not None or verdict.respond is not respond
        return verdict if changed else None


def _refuse(frame: bytes, error: ErrorCode, respond: Respond) -> Callable[[], None]:
    def answer() -> None:
        request = decode_request(frame, SUPPORTED)
        respond(encode_response_parts(request.header, refusal(request.value, error)))

    return answer


def api_key(name: ApiKey | str) -> ApiKey:
    """Return the key of an API by its name in any spelling (Produce, PRODUCE, InitProducerId). ValueError."""
    if isinstance(name, ApiKey):
        return name
    plain = _plain(name)
    for key in ApiKey:
        if _plain(key.name) == plain:
            return key
    raise ValueError(f"api {name!r}: expected one of {', '.join(key.name for key in ApiKey)}")


def error_code(name: ErrorCode | str) -> ErrorCode:
    """Return an error by its name in Kafka's list of errors. ValueError."""
    if isinstance(name, ErrorCode):
        return name
    try:
        return ErrorCode[name.upper()]
    except KeyError:
        raise ValueError(f"error {name!r}: expected a name of Kafka's, such as NOT_LEADER_OR_FOLLOWER") from None


def _plain(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())
