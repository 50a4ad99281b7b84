"""Which versions are spoken: what a broker offers to clients, and what the control plane uses among brokers.

Among brokers nothing is negotiated: the versions of the controller's requests follow `inter.broker.protocol.version`
(Kafka's ApiVersion and ControllerChannelManager of 2.8). AlterIsr alone goes over a channel that asks ApiVersions
first, and is asked in the newest version that both ends know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.protocol.api_keys import ApiKey
from controller.protocol.messages import MESSAGES


@dataclass(frozen=True, slots=True)
class VersionRange:
    first: int
    last: int


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: VersionRange(exchange.request.first, exchange.request.last) for key, exchange in sorted(MESSAGES.items())}
)
"""The versions of each API that can be decoded and encoded, by API key in ascending order."""


@dataclass(frozen=True, slots=True)
class ControlVersions:
    """The versions for one `inter.broker.protocol.version`.

    `alter_isr` is None where leaders change the ISR in ZooKeeper themselves and leave a notification; otherwise it is
    the version for a controller that offers nothing newer. `topic_ids` and `feature_znode` say what the znodes hold.
    Followers use the last three. From Fetch 12 on, a fetch answer shows a follower where its log diverges from the
    leader's; before, OffsetForLeaderEpoch does."""

    leader_and_isr: int
    update_metadata: int
    stop_replica: int
    controlled_shutdown: int
    alter_isr: int | None
    topic_ids: bool
    feature_znode: bool
    fetch: int
    offset_for_leader_epoch: int
    list_offsets: int

    @property
    def truncation_on_fetch(self) -> bool:
        return self.fetch >= 12


# In Kafka's order of internal versions; each row is what holds from that version on, in the order of the fields.
_CONTROL_VERSIONS: tuple[tuple[str, ControlVersions], ...] = (
    ("2.2-IV0", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 4)),
    ("2.2-IV1", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 5)),
    ("2.3-IV0", ControlVersions(2, 5, 1, 2, None, False, False, 10, 2, 5)),
    ("2.3-IV1", ControlVersions(2, 5, 1, 2, None, False, False, 11, 3, 5)),
    ("2.4-IV0", ControlVersions(3, 5, 1, 2, None, False, False, 11, 3, 5)),
    ("2.4-IV1", ControlVersions(4, 6, 2, 3, None, False, False, 11, 3, 5)),
    ("2.5-IV0", ControlVersions(4, 6, 2, 3, None, False, False, 11, 3, 5)),
    ("2.6-IV0", ControlVersions(4, 6, 3, 3, None, False, False, 11, 3, 5)),
    ("2.7-IV0", ControlVersions(4, 6, 3, 3, None, False, True, 11, 3, 5)),
    ("2.7-IV1", ControlVersions(4, 6, 3, 3, None, False, True, 12, 3, 5)),
    ("2.7-IV2", ControlVersions(4, 6, 3, 3, 0, False, True, 12, 3, 5)),
    ("2.8-IV0", ControlVersions(4, 6, 3, 3, 0, True, True, 12, 4, 6)),
    ("2.8-IV1", ControlVersions(5, 7, 3, 3, 0, True, True, 12, 4, 6)),
)


def control_versions(inter_broker_protocol: str) -> ControlVersions:
    """The versions for a setting as Kafka takes it: "2.8", "2.8.2" (the release's last), or "2.7-IV1" exactly.

    ValueError, naming what is known, for any other.
    """
    exact = dict(_CONTROL_VERSIONS)
    if inter_broker_protocol in exact:
        return exact[inter_broker_protocol]
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)*", inter_broker_protocol)
    if release is not None:
        of_release = [versions for name, versions in _CONTROL_VERSIONS if name.startswith(f"{release[1]}-")]
        if of_release:
            return of_release[-1]
    releases = ", ".join(sorted({name.split("-")[0] for name in exact}))
    raise ValueError(f"inter.broker.protocol.version {inter_broker_protocol!r} is not known; known are {releases}")
