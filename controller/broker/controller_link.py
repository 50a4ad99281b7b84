"""A broker's connection to the controller that its metadata names, for negotiated requests.

ApiVersions is sent when the connection is opened (Kafka's BrokerToControllerChannelManager), so the negotiated
versions hold for as long as the connection lasts. One request is in flight at a time. A caller that gets an error
closes the connection; the next request opens another.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controller.broker.configs.settings import BrokerSettings
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.ports import Peers
from controller.core.ports import PeerConnection, PeerUnreachable
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_values import ApiVersionsRequest, ApiVersionsResponse
from controller.protocol.codec import decode_response_body, encode_request_body
from controller.protocol.control_values import UpdateMetadataEndpoint
from controller.protocol.errors import ErrorCode
from controller.protocol.messages import RequestValue, ResponseValue
from controller.protocol.versions import SUPPORTED, VersionRange

_WHO = ApiVersionsRequest("camerlengo", "1")


class ControllerLink:
    def __init__(self, settings: BrokerSettings, metadata: MetadataCache, peers: Peers) -> None:
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._connection: PeerConnection | None = None
        self._to: tuple[int, UpdateMetadataEndpoint] | None = None
        self._offered: Mapping[int, VersionRange] | None = None

    async def offered(self) -> Mapping[int, VersionRange]:
        """What the broker answers to that is the controller now, by API key: nothing if it does not know this
        ApiVersions. PeerError, MalformedFrame."""
        connection = self._connected()
        if self._offered is None:
            version = SUPPORTED[ApiKey.API_VERSIONS].last
            body = encode_request_body(ApiKey.API_VERSIONS, version, _WHO)
            answer = await connection.request(ApiKey.API_VERSIONS, version, body, self._timeout_ms)
            response = decode_response_body(ApiKey.API_VERSIONS, version, answer)
            assert isinstance(response, ApiVersionsResponse)
            api_keys = response.api_keys if response.error_code == ErrorCode.NONE else ()
            self._offered = MappingProxyType(
                {one.api_key: VersionRange(one.min_version, one.max_version) for one in api_keys}
            )
        return self._offered

    async def ask(self, api_key: ApiKey, version: int, request: RequestValue) -> ResponseValue:
        """Send a request over the connection that `offered` opened, even if the controller has moved since.

        Raises: PeerError, MalformedFrame."""
        if self._connection is None:
            raise PeerUnreachable("nothing is open to a controller")
        body = encode_request_body(api_key, version, request)
        answer = await self._connection.request(api_key, version, body, self._timeout_ms)
        return decode_response_body(api_key, version, answer)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._offered = None
        if connection is not None:
            connection.close()

    @property
    def _timeout_ms(self) -> float:
        return self._settings.controller_socket_timeout_ms

    def _connected(self) -> PeerConnection:
        snapshot = self._metadata.snapshot
        controller = snapshot.controller_id
        endpoint = snapshot.endpoint(controller, self._settings.inter_broker_listener)
        if endpoint is None:
            raise PeerUnreachable(f"controller {controller} has no address here")
        if self._connection is None or self._to != (controller, endpoint):
            self.close()
            self._to = (controller, endpoint)
            self._connection = self._peers.connect(endpoint.host, endpoint.port)
        return self._connection
