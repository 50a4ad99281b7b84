"""Faults planted where brokers refuse what clients ask for; for `tests.simulator.planted`. The operations of a plan are
all well-formed and make sense, so that hostile clients alone can find these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from controller.broker.request_steps import Frames
from controller.core.handlers import reassignment, topic_creation

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


def unreadable_requests_kept(patch: Patch) -> None:
    """The connection of a frame that cannot be read stays open, and nothing is answered."""
    patch.setattr(Frames, "_unreadable", lambda self, error, respond: None)


HOSTILE_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "topic-names-not-checked": topic_names_not_checked,
    "replicas-named-twice-accepted": replicas_named_twice_accepted,
    "targets-not-checked": targets_not_checked,
    "unreadable-requests-kept": unreadable_requests_kept,
}
