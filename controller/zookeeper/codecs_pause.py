"""The codec of /admin/camerlengo_pause: the controller is to move nothing by choice, and why. No I/O.

Kafka keeps nothing like it; a Kafka controller passes it over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.zookeeper.znode_json import ID, NOTHING_KEPT, STRING, FieldReader, KeptFields, encode_object


@dataclass(frozen=True, slots=True)
class PauseZnode:
    """A pause of the controller; `since_ms`: milliseconds since 1970 by the requester's clock."""

    reason: str
    since_ms: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


def decode_pause(path: str, data: bytes | None) -> PauseZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "why the controller is paused", data)
    return PauseZnode(
        reason=fields.take("reason", STRING),
        since_ms=fields.take_number_in_digits("timestamp", 0),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_pause(pause: PauseZnode) -> bytes:
    return encode_object(
        [("version", pause.version), ("reason", pause.reason), ("timestamp", str(pause.since_ms))], pause.kept
    )
