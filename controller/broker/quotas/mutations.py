"""controller_mutation_rate: how many partitions a client may create and delete (KIP-599).

Each topic of a request costs as many tokens as it has partitions that are created or deleted. A strict quota, of
clients that know THROTTLING_QUOTA_EXCEEDED, refuses topics once the bucket is exhausted; a permissive one throttles the
client for as long as the bucket takes. Kafka counts a topic once its controller has validated it; here a topic that is
known to fail, as it exists or does not, costs nothing, and one that fails later does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from controller.broker.error_responses import refusal
from controller.broker.metadata import MetadataSnapshot
from controller.broker.request_context import RequestContext
from controller.protocol.client import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from controller.protocol.errors import ErrorCode
from controller.protocol.schema import RequestValue

EXCEEDED = "The throttling quota has been exceeded."
TOPICS_MAX = 20_000
"""A request with more topics is refused for that, and counts for nothing."""

Take: TypeAlias = Callable[[int, int], int]
"""(partitions, now in ms): takes tokens, and returns for how long the client is throttled, in ms."""


class MutationQuota:
    """One request's (Kafka's ControllerMutationQuota)."""

    def __init__(self, take: Take, now_ms: int, *, strict: bool) -> None:
        self._take = take
        self._strict = strict
        self._now_ms = now_ms
        self._throttle_ms = 0

    def admits(self, partitions: int) -> bool:
        """Count that many partitions; False: they are refused with THROTTLING_QUOTA_EXCEEDED."""
        time_ms = self._take(partitions, self._now_ms)
        self._throttle_ms = time_ms or self._throttle_ms
        return not (time_ms and self._strict)

    def throttle_ms(self, now_ms: int) -> int:
        """What is left of the time by now: the answer may come long after."""
        return max(self._throttle_ms - (now_ms - self._now_ms), 0)


def limit_mutations(
    quota: MutationQuota, exchange: RequestContext, value: RequestValue, snapshot: MetadataSnapshot, default: int
) -> RequestValue | None:
    """Return what of the request is admitted. The rest is answered with it; None: all of it has been answered."""
    request: Any = value
    if len(request.topics) > TOPICS_MAX:
        return value
    names = _names_by_id(request, snapshot)
    kept: list[Any] = []
    refused: list[Any] = []
    for topic in request.topics:
        partitions = _partitions(request, topic, names, snapshot, default)
        (kept if not partitions or quota.admits(partitions) else refused).append(topic)
    if not refused:
        return value
    answer: Any = refusal(replace(request, topics=tuple(refused)), ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
    if not kept:
        exchange.answer(answer)
        return None
    rows = next(name for name in ("topics", "results", "responses") if hasattr(answer, name))
    added, before = getattr(answer, rows), exchange.transform

    def with_refused(response: Any) -> Any:
        response = response if before is None else before(response)
        return replace(response, **{rows: (*getattr(response, rows), *added)})

    exchange.transform = with_refused
    return replace(request, topics=tuple(kept))  # type: ignore[no-any-return]


def _names_by_id(request: Any, snapshot: MetadataSnapshot) -> dict[bytes, str]:
    if not isinstance(request, DeleteTopicsRequest) or all(topic.name is not None for topic in request.topics):
        return {}
    return {topic_id: name for name, topic_id in snapshot.topic_ids.items()}


def _partitions(request: Any, topic: Any, names: dict[bytes, str], snapshot: MetadataSnapshot, default: int) -> int:
    """How many the request creates or deletes of that topic."""
    name = topic.name if topic.name is not None else names.get(topic.topic_id)
    known = len(snapshot.topics.get(name or "", ()))
    if isinstance(request, CreateTopicsRequest):
        count = len(topic.assignments) or (default if topic.num_partitions == -1 else topic.num_partitions)
        return 0 if known or request.validate_only else max(count, 0)
    if isinstance(request, CreatePartitionsRequest):
        return 0 if not known or request.validate_only else max(topic.count - known, 0)
    return known
