"""Faults planted where brokers refuse what clients ask for; for `tests.simulator.planted`. The operations of a plan are
all well-formed and make sense, so that hostile clients alone can find these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from controller.broker.request_context import RequestDecoder, Respond
from controller.core.handlers import reassignment, topic_creation
from controller.protocol.errors import MalformedFrame, ProtocolError

Patch = pytest.MonkeyPatch


def topic_names_not_checked(patch: Patch) -> None:
    """CreatePartitions takes a name from which no znode's path can be made."""
    patch.setattr(topic_creation, "name_fault", lambda name: None)


def replicas_named_twice_accepted(patch: Patch) -> None:
    """CreateTopics and CreatePartitions put an assignment into ZooKeeper that names a broker twice, or none."""
    patch.setattr(topic_creation, "_check_replicas", lambda assignments, expected=None: None)


def targets_not_checked(patch: Patch) -> None:
    """A partition may be sent to no broker, to one that there is not, or twice to the same."""
    patch.setattr(reassignment, "target_fault", lambda target, present, live: None)
    patch.setattr(reassignment, "replicas_fault", lambda replicas: None)


def malformed_frames_not_answered(patch: Patch) -> None:
    """The connection of a malformed frame stays open, and nothing is answered."""
    right = RequestDecoder._unreadable

    def unreadable(self: RequestDecoder, error: ProtocolError, respond: Respond) -> None:
        if not isinstance(error, MalformedFrame):
            right(self, error, respond)

    patch.setattr(RequestDecoder, "_unreadable", unreadable)


HOSTILE_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "topic-names-not-checked": topic_names_not_checked,
    "replicas-named-twice-accepted": replicas_named_twice_accepted,
    "targets-not-checked": targets_not_checked,
    "malformed-frames-not-answered": malformed_frames_not_answered,
}
