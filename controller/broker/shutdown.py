"""A controlled shutdown as the broker that goes sees it: ask the controller to move what this broker leads, a bounded
number of times.

The controller is the one that this broker's metadata names: ZooKeeper is not asked, so that a shutdown does not hang
when ZooKeeper is away (S20, KAFKA-9189).
"""

from __future__ import annotations

from controller.broker.broker import Identity
from controller.broker.configs.settings import BrokerSettings
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.ports import Peers
from controller.clock import Clock
from controller.core.ports import PeerError
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import decode_response_body, encode_request_body
from controller.protocol.control_values import (
    SHUTDOWN_CHECKED,
    SHUTDOWN_FORCED,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.versions import control_versions
from controller.trace import Noted, Trace

SHOWN = 5
"""How many partitions that keep it the log names."""
LOOK_MS = 50.0
"""How often a waiting broker looks whether its metadata names another controller."""


async def controlled_shutdown(
    settings: BrokerSettings, identity: Identity, metadata: MetadataCache, peers: Peers, clock: Clock, trace: Trace
) -> str | None:
    """None once the controller has said that this broker may go; else what was wrong with the last attempt. Takes at
    most `controlled_shutdown_attempts` times `controller_socket_timeout_ms` and the backoffs between."""
    failure: str | None = None
    for attempt in range(1, settings.controlled_shutdown_attempts + 1):
        failure = await _ask(settings, identity, metadata, peers)
        if failure is None:
            trace.emit(Noted("info", "controlled shutdown: everything was moved"))
            return None
        trace.emit(
            Noted("warning", f"controlled shutdown, {attempt} of {settings.controlled_shutdown_attempts}: {failure}")
        )
        if attempt < settings.controlled_shutdown_attempts:
            await _pause(settings, metadata, clock)
    return failure


async def _pause(settings: BrokerSettings, metadata: MetadataCache, clock: Clock) -> None:
    """The backoff, or less of it if the metadata names another controller meanwhile: that one has not been asked."""
    asked = metadata.snapshot.controller_id
    until_ms = clock.now_ms() + settings.controlled_shutdown_backoff_ms
    while clock.now_ms() < until_ms and metadata.snapshot.controller_id == asked:
        await clock.sleep(min(LOOK_MS, until_ms - clock.now_ms()))


async def _ask(settings: BrokerSettings, identity: Identity, metadata: MetadataCache, peers: Peers) -> str | None:
    """One request; what was wrong in words, None if nothing was."""
    snapshot = metadata.snapshot
    endpoint = snapshot.endpoint(snapshot.controller_id, settings.inter_broker_listener)
    if endpoint is None:
        return f"controller {snapshot.controller_id} has no address here"
    version = control_versions(settings.inter_broker_protocol).controlled_shutdown
    manner = SHUTDOWN_CHECKED if settings.shutdown_check else SHUTDOWN_FORCED
    request = ControlledShutdownRequest(settings.broker_id, identity.broker_epoch, manner)
    body = encode_request_body(ApiKey.CONTROLLED_SHUTDOWN, version, request)
    timeout_ms = settings.controller_socket_timeout_ms
    try:
        answer = await peers.request(
            endpoint.host, endpoint.port, ApiKey.CONTROLLED_SHUTDOWN, version, body, timeout_ms
        )
        response = decode_response_body(ApiKey.CONTROLLED_SHUTDOWN, version, answer)
    except (PeerError, ProtocolError) as error:
        return f"controller {snapshot.controller_id}: {error}"
    assert isinstance(response, ControlledShutdownResponse)
    if response.error_code != ErrorCode.NONE:
        return f"controller {snapshot.controller_id} answered with error {response.error_code}"
    if response.remaining_partitions:
        return _in_words(response)
    return None


def _in_words(response: ControlledShutdownResponse) -> str:
    """By name, a few of them; a controller of Kafka's gives no reason."""
    names = [f"{one.topic_name}-{one.partition_index}" for one in response.remaining_partitions]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    said = f"{len(names)} partitions are still this broker's: {', '.join(names[:SHOWN])}{more}"
    return f"{said}; {response.reason}" if response.reason else said
