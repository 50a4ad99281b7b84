"""The broker's request handling: one frame in, one answer out, at once or later.

Plain synchronous code: its host calls it from one thread, and every answer goes through a callback, exactly once. A
frame that can't be decoded closes its own connection. An exception in one handler is logged with its traceback and
fails that request alone. `DataPlane` is the part of a broker that exists only if it holds records: access to its logs,
waiting requests, replication, and a handler for each request about records.
"""

from __future__ import annotations

import re
import traceback
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from controller.broker.controller_requests import (
    NAME_AND_ID,
    AutoTopicCreation,
    CreateTopicsHandler,
    CreationLimits,
    DeleteTopicsHandler,
    ElectLeadersHandler,
    ReassignmentsHandler,
    ask_controller,
    disabled_error,
    names_both,
)
from controller.broker.coordinator_finder import CoordinatorFinder
from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.groups.coordinator import GroupCoordinator
from controller.broker.groups.handlers import GroupHandlers
from controller.broker.groups.store import GroupStore
from controller.broker.isr_manager import IsrManager, live_followers
from controller.broker.log_manager import LogManager
from controller.broker.log_moves import LogMoves
from controller.broker.metadata import BrokerIdentity, MetadataBodies, MetadataCache, MetadataWait, metadata_response
from controller.broker.partition import Partition, PartitionEvents, Role
from controller.broker.ports import OffLoop, Peers, at_once
from controller.broker.records.fetch import FETCHES_AT_ONCE, DelayedFetch, FetchHandler, PartitionReader
from controller.broker.records.fetch_sessions import FetchSessionCache
from controller.broker.records.list_offsets import LeaderEpochHandler, ListOffsetsHandler
from controller.broker.records.writes import DelayedDeleteRecords, DelayedProduce, DeleteRecordsHandler, ProduceHandler
from controller.broker.replica_manager import DescribeLogDirs, Quota, RecordAccess, ReplicaManager, ReplicationThrottle
from controller.broker.request_context import (
    Drive,
    Handler,
    RequestContext,
    RequestDecoder,
    Respond,
    SerialSteps,
    Steps,
    finish,
    first_slice,
)
from controller.broker.security.access import AccessControl, access_handlers
from controller.broker.security.control_plane import CONTROL_APIS, ControlRequest, ControlRequests, listeners_of
from controller.broker.security.principal import Requester
from controller.broker.security.sasl import SASL_APIS
from controller.broker.settings import BrokerSettings
from controller.broker.topic_configs import TopicConfigs
from controller.broker.transactions.coordinator import TakeId
from controller.broker.transactions.service import Transactions
from controller.broker.zookeeper_services import ZooKeeperServices
from controller.clock import Clock
from controller.core.events import (
    AllocateProducerIdsRequested,
    AlterIsrRequested,
    ControlledShutdownRequested,
    UpdateFeaturesRequested,
)
from controller.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from controller.protocol.client import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from controller.protocol.codec import SUPPORTED, ApiKey, Request, control_versions
from controller.protocol.control import (
    NO_BROKER_EPOCH,
    SHUTDOWN_FORCED,
    SHUTDOWN_UNSAID,
    AllocateProducerIdsRequest,
    AlterIsrRequest,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from controller.protocol.errors import ErrorCode, TooManyEntries
from controller.protocol.fetch import FetchRequest
from controller.protocol.produce import ACKS_NONE, ProduceRequest
from controller.protocol.schema import RequestValue
from controller.protocol.security import AlterUserScramCredentialsRequest
from controller.storage import LogDirectory
from controller.timer.purgatory import DelayedOperation, Purgatory
from controller.trace import Noted, RequestRefused, Trace
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.client import EventSink

Handle: TypeAlias = Callable[[Any, int, Callable[[Any], None]], Steps | None]
"""(request, version, answer): answers once, at once or later. What it returns is the rest of its work, if there is any;
see `request_context.py`."""


class DataPlane:
    """`off_loop` does long work. `directory_failed` is called for each
    log directory that fails, once its replicas are offline."""

    def __init__(
        self,
        settings: BrokerSettings,
        logs: LogManager,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        configs: TopicConfigs,
        clock: Clock,
        trace: Trace,
        peers: Peers,
        broker_epoch: Callable[[], int],
        off_loop: OffLoop,
        directory_failed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._replicas = replicas
        self.logs = logs
        self.report_directory = directory_failed
        self.partition_events = PartitionEvents(clock, settings.replica_lag_time_max_ms, live_followers(metadata))
        self.access = RecordAccess(replicas, metadata)
        self.follower_throttle = Quota(settings.broker_id, clock, *configs.throttle("follower"))
        self.fetchers = ReplicaFetcherManager(
            settings,
            metadata,
            peers,
            clock,
            trace,
            self.partition_events.high_watermark_moved,
            self.follower_throttle,
            broker_epoch,
        )
        replicas.of_roles.append(self._roles_taken)
        replicas.of_stops.append(self._stopped)
        logs.of_failures.append(self._directory_failed)
        self.moves = LogMoves(logs, replicas, clock, trace, self.fetchers, self.partition_events)
        self.produces: Purgatory[tuple[str, int], DelayedProduce] = Purgatory(
            clock, purge_interval=settings.producer_purgatory_purge_interval_requests, on_error=self._failed
        )
        self.fetches: Purgatory[tuple[str, int], DelayedFetch] = Purgatory(
            clock,
            purge_interval=settings.fetch_purgatory_purge_interval_requests,
            on_error=self._failed,
            slice_operations=FETCHES_AT_ONCE,
        )
        self.deletions: Purgatory[tuple[str, int], DelayedDeleteRecords] = Purgatory(
            clock, purge_interval=settings.delete_records_purgatory_purge_interval_requests, on_error=self._failed
        )
        self.throttle = ReplicationThrottle(settings.broker_id, clock, *configs.throttle("leader"))
        self.reading = PartitionReader(self.access, self.partition_events, clock, self.throttle)
        self.fetch = FetchHandler(
            self.reading,
            self.partition_events,
            self.fetches,
            FetchSessionCache(settings.max_incremental_fetch_session_cache_slots, clock),
            settings.fetch_max_bytes,
            clock,
        )
        self.produce = ProduceHandler(self.access, self.partition_events, self.produces, configs.min_insync, off_loop)
        self._delete_records = DeleteRecordsHandler(
            self.access, metadata, self.partition_events, self.deletions, configs.deletes
        )
        self.handlers: Mapping[ApiKey, Handle] = {
            ApiKey.LIST_OFFSETS: ListOffsetsHandler(self.access, clock.wall_ms).handle,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: LeaderEpochHandler(self.access).handle,
            ApiKey.DELETE_RECORDS: self._delete_records.handle,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.moves.handle,
            ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(logs, replicas).handle,
        }

    def _failed(self, operation: DelayedOperation, error: Exception) -> None:
        """A request that waited and whose answer could not be made: the others go on."""
        self._trace.emit(Noted("error", "".join(traceback.format_exception(error)).rstrip()))

    def metadata_changed(self) -> None:
        self.fetchers.leaders_changed()
        self._delete_records.metadata_changed()

    def logs_changed(self) -> None:
        """Retention has moved where logs begin."""
        self.fetchers.logs_changed()
        self.partition_events.changed(tuple(self._replicas.partitions()))

    def _roles_taken(self, partitions: Sequence[Partition]) -> None:
        """Apply new roles; replicas that led, or followed another leader, stop doing so first, so that a log never has
        two writers."""
        led = [partition for partition in partitions if partition.role is Role.LEADER]
        self.fetchers.leave(led)
        # All at first: a fetch that one of them completes reports on all of them.
        self.partition_events.changed(partitions)
        self.partition_events.roles_changed(partitions)
        self.fetchers.follow([partition for partition in partitions if partition.role is Role.FOLLOWER])
        self.fetch.leads(led)

    def _stopped(self, partitions: Sequence[Partition]) -> None:
        self.fetchers.leave(partitions)
        self.partition_events.changed(partitions)
        self.partition_events.roles_changed(partitions)

    def _directory_failed(self, directory: LogDirectory, cause: Exception) -> None:
        """Found in the middle of a call on a log, so what follows waits until that is over."""
        what = "log directory" if directory.health.cause is not None else "a log in"
        self._trace.emit(Noted("error", f"{what} {directory.path} is offline: {cause!r}"))
        self._clock.call_later(0.0, lambda: self._take_offline(self.logs.lost_with(directory)))

    def _take_offline(self, keys: Sequence[tuple[str, int]]) -> None:
        self._replicas.go_offline(keys)
        self.report_directory()


_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE_NAME = 3


class Broker:
    """`is_controller` is called on each request that only the active controller may answer. Without `logs` it holds no
    records and answers nothing about any; `data` exists with them. `configs` are those of the logs' topics. `services`
    reads them from ZooKeeper and answers the requests that need ZooKeeper. A host of many brokers may give all of them
    one `metadata_bodies`. `off_loop` runs long work away from the broker's thread, `drive` the steps of a request
    besides its own. `access` says who may do what, and confirms the
    epochs of controllers; without it everyone may do everything."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: BrokerIdentity,
        events: EventSink,
        is_controller: Callable[[], bool],
        clock: Clock,
        trace: Trace,
        peers: Peers,
        logs: LogManager | None = None,
        *,
        configs: TopicConfigs | None = None,
        services: ZooKeeperServices | None = None,
        isr_writes: BrokerDataWrites | None = None,
        metadata: MetadataCache | None = None,
        metadata_bodies: MetadataBodies | None = None,
        off_loop: OffLoop = at_once,
        drive: Drive = finish,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        producer_ids: TakeId | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._settings = settings
        self._new_id = new_id
        self._identity = identity
        self._events = events
        self._is_controller = is_controller
        self._clock = clock
        self._trace = trace
        self._services = services
        self._peers = peers
        self._producer_ids = services.producer_ids.give if services is not None else producer_ids
        self._early: list[Callable[[], object]] = []
        self.metadata = metadata or MetadataCache()
        self.metadata_bodies = metadata_bodies or MetadataBodies()
        self.replicas = ReplicaManager(settings.broker_id, self.metadata, trace, logs, clock.now_ms)
        self._noted = self._note  # one bound method for every request that waits
        self.data: DataPlane | None = None
        self.groups: GroupCoordinator | None = None
        self.transactions: Transactions | None = None
        if logs is not None:
            assert configs is not None, "a broker with logs needs its topics' configs"
            self.data = DataPlane(
                settings,
                logs,
                self.replicas,
                self.metadata,
                configs,
                clock,
                trace,
                peers,
                lambda: identity.broker_epoch,
                off_loop,
                services.directory_failed if services is not None else lambda: None,
            )
            self.data.moves.drive = self.data.produce.drive = self.data.logs.drive = self._drive
            self.data.reading.ahead.drive = self.data.fetchers.drive = self._drive
        if services is not None:
            self.replicas.of_roles.append(services.roles_taken)
            self.replicas.of_stops.append(services.stopped)
        partition_events = None if self.data is None else self.data.partition_events
        self.isr_manager = IsrManager(
            settings, identity, self.replicas, self.metadata, peers, clock, trace, partition_events, isr_writes
        )
        self.topic_waits = MetadataWait(self.metadata, clock, self._answer_failed)
        self._creation = CreateTopicsHandler(
            events, self.topic_waits, clock, CreationLimits.of(settings), self.metadata
        )
        self._auto_creation = AutoTopicCreation(settings, self.metadata, peers, self._creation)
        self.elections = ElectLeadersHandler(events, self.metadata, clock, self._answer_failed)
        self._reassignments = ReassignmentsHandler(events, clock)
        topic_ids = control_versions(settings.inter_broker_protocol).topic_ids
        self._deletion = DeleteTopicsHandler(events, self.metadata, self.topic_waits, clock, topic_ids)
        self.drive = drive
        self._use_access(access)
        self._orders = SerialSteps(self._drive)
        """The controller's requests: one at a time, also where one takes many slices."""
        self._handlers = self._made_handlers()
        self._frames = RequestDecoder(self._handlers, settings.request_entries_max, self._noted)
        self._versions = self._offered()

    def _access_handlers(self) -> dict[ApiKey, Handler]:
        handlers = {key: _in_exchange(handle) for key, handle in access_handlers(self._access).items()}
        if self._access is not None:
            handlers[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] = self._as_controller(self._alter_credentials)
        return handlers | dict.fromkeys(SASL_APIS, _no_sasl_here)

    def _alter_credentials(self, exchange: RequestContext, request: AlterUserScramCredentialsRequest) -> Steps | None:
        assert self._access is not None
        return self._access.credentials.alter(request, exchange.header.api_version, exchange.answer)

    def _use_access(self, access: AccessControl | None) -> None:
        settings = self._settings
        self._access = access
        self._quotas = None if access is None else access.quotas
        self._local = Requester(settings.control_plane_listener or settings.inter_broker_listener)
        read_epoch = None if access is None else access.read_epoch
        self.guard = None if access is None else access.guard(self.metadata)
        """Checks what clients ask; None: everyone may do everything."""
        listeners = listeners_of(settings, authorizes=self.guard is not None)
        self.control = ControlRequests(listeners, read_epoch, self._clock, self._trace)

    def _made_handlers(self) -> dict[ApiKey, Handler]:
        handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.CREATE_TOPICS: self._as_controller(self._create_topics),
            ApiKey.CREATE_PARTITIONS: self._as_controller(self._create_partitions),
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.ELECT_LEADERS: self._elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._as_controller(self._alter_reassignments),
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self._as_controller(self._list_reassignments),
            ApiKey.LEADER_AND_ISR: self._leader_and_isr,
            ApiKey.UPDATE_METADATA: self._update_metadata,
            ApiKey.STOP_REPLICA: self._stop_replica,
            ApiKey.ALTER_ISR: self._as_controller(self._alter_isr),
            ApiKey.CONTROLLED_SHUTDOWN: self._as_controller(self._controlled_shutdown),
            ApiKey.UPDATE_FEATURES: self._as_controller(self._update_features),
            ApiKey.ALLOCATE_PRODUCER_IDS: self._as_controller(self._allocate_producer_ids),
        }
        if self.data is not None:
            handlers |= {key: _in_exchange(handle) for key, handle in self.data.handlers.items()}
            handlers |= {ApiKey.PRODUCE: self._produce, ApiKey.FETCH: self._fetch}
            handlers |= self._coordinators(self.data)
        handlers |= self._access_handlers()
        if self._services is not None:
            handlers |= {key: _in_exchange(handle) for key, handle in self._services.handlers.items()}
        return handlers

    def _coordinators(self, data: DataPlane) -> dict[ApiKey, Handler]:
        store = GroupStore(self._settings, self.metadata, data.produce, self._clock, self._drive, self._note)
        self.replicas.of_roles.append(store.topic.roles_taken)
        self.replicas.of_stops.append(store.topic.stopped)
        self.groups = GroupCoordinator(self._settings, store, self._clock, self._new_id, self._note)
        self.replicas.of_deletions.append(self.groups.partitions_deleted)
        finder = CoordinatorFinder(self._settings, self.metadata, self._create_internal)
        of_groups = GroupHandlers(self.groups, self.metadata, self._clock)
        handlers = {**of_groups.handlers, ApiKey.FIND_COORDINATOR: finder.find}
        if self._producer_ids is not None:
            self.transactions = Transactions(
                self._settings,
                self.metadata,
                data.produce,
                self.groups,
                self._peers,
                self._producer_ids,
                self._clock,
                self._drive,
                self._note,
            )
            self.replicas.of_roles.append(self.transactions.topic.roles_taken)
            self.replicas.of_stops.append(self.transactions.topic.stopped)
            handlers |= self.transactions.handlers
        return handlers

    def _create_internal(self, topic: CreatableTopic) -> None:
        def then(errors: Mapping[str, ErrorCode]) -> None:
            error = errors[topic.name]
            if error not in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self._note("warning", f"topic {topic.name} can't be created: {error.name}")

        self._auto_creation.create_topics([topic], self._is_controller(), then)

    @property
    def apis(self) -> Collection[ApiKey]:
        """Those that are answered, offered to clients or not."""
        return self._handlers.keys()

    def _offered(self) -> tuple[ApiVersion, ...]:
        return tuple(
            ApiVersion(key, spoken.first, spoken.last) for key, spoken in SUPPORTED.items() if key in self._handlers
        )

    def receive(self, frame: bytes, respond: Respond, client: Requester | None = None) -> None:
        """One request's frame, without its size. `client`: who sent it (None: another broker)."""
        finish(self.begin(frame, respond, client))

    def begin(self, frame: bytes, respond: Respond, client: Requester | None = None) -> Steps | None:
        """As `receive`, in slices: handles the request's first, and returns the others, None if there are none. The
        caller runs them before it hands over the next request of the same connection."""
        try:
            request = self._frames.decoded(frame, respond)
        except TooManyEntries:
            handle = partial(self._first_slice, respond=respond, client=client, size_bytes=len(frame), heavy=True)
            return self._frames.large(frame, respond, handle)
        return None if request is None else self._first_slice(request, respond, client, len(frame))

    def handle(self, request: Request, respond: Respond, client: Requester | None = None) -> None:
        finish(self._first_slice(request, respond, client))

    def _first_slice(
        self, request: Request, respond: Respond, client: Requester | None, size_bytes: int = 0, *, heavy: bool = False
    ) -> Steps | None:
        header = request.header
        client = client or self._local
        heavy = heavy or header.api_key in _MAY_ANSWER_MUCH
        exchange = RequestContext(
            header, request.value, respond, client.listener, self._noted, self._drive, client.host, heavy
        )
        if self._quotas is not None and self._quotas.active and client is not self._local:
            exchange.settle = charge = self._quotas.charge(client, header, size_bytes)
            if charge is not None:
                steps = self._admitted(exchange, client, request.value)
                charge.handled()
                return None if steps is None else charge.timed(steps)
        elif self.guard is None and header.api_key in _REFUSED_BY_ACLS_ALONE:
            return first_slice(self._handlers[header.api_key], exchange, request.value, self._failed)
        return self._admitted(exchange, client, request.value)

    def _admitted(self, exchange: RequestContext, client: Requester, value: RequestValue) -> Steps | None:
        if exchange.header.api_key in self.control.listeners and self.control.refuses(client, exchange, value):
            return None
        admitted: RequestValue | None = value
        if self.guard is not None and client is not self._local:
            admitted = self.guard.admitted(client, exchange, value)
        if exchange.settle is not None and admitted is not None and self._is_controller():
            snapshot = self.metadata.snapshot
            admitted = exchange.settle.limited(exchange, admitted, snapshot, self._settings.num_partitions)
        if admitted is None:
            return None
        return first_slice(self._handlers[exchange.header.api_key], exchange, admitted, self._failed)

    def _run(self, handler: Handler, exchange: RequestContext, value: RequestValue) -> Steps | None:
        return first_slice(handler, exchange, value, self._failed)

    def _failed(self, exchange: RequestContext, value: RequestValue) -> None:
        """Log the exception with its traceback and answer this request with an error; others are unaffected."""
        self._note("error", f"{exchange.header.api_key.name} failed in its handler\n{traceback.format_exc()}")
        if not exchange.answered:
            exchange.refuse(value, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _drive(self, steps: Steps) -> None:
        self.drive(steps)

    # -- clients

    def _api_versions(self, exchange: RequestContext, request: ApiVersionsRequest) -> None:
        if exchange.header.api_version >= _FIRST_VERSION_WITH_SOFTWARE_NAME and not all(
            _CLIENT_SOFTWARE.fullmatch(text) for text in (request.client_software_name, request.client_software_version)
        ):
            exchange.refuse(request, ErrorCode.INVALID_REQUEST)
            return
        exchange.answer(ApiVersionsResponse(ErrorCode.NONE, self._versions))

    def _metadata(self, exchange: RequestContext, request: MetadataRequest) -> Steps:
        missing = self._auto_creation.missing(request) if self._settings.auto_create_topics else []
        if missing:
            self._auto_creation.create(
                missing, self._is_controller(), lambda errors: self._metadata_after(exchange, request, errors)
            )
            return
        body = yield from self.metadata_bodies.body(
            self.metadata.for_clients,
            request,
            exchange.header.api_version,
            exchange.listener,
            self._identity.cluster_id,
        )
        exchange.answer_body(body)

    def _metadata_after(
        self, exchange: RequestContext, request: MetadataRequest, errors: Mapping[str, ErrorCode]
    ) -> None:
        """Answer a request that created topics. `errors`: of those that are not known here yet."""

        def handler(exchange: RequestContext, request: MetadataRequest) -> Steps:
            version = exchange.header.api_version
            response = yield from metadata_response(
                self.metadata.for_clients, request, version, exchange.listener, self._identity.cluster_id
            )
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics = tuple(
                replace(topic, error_code=errors.get(topic.name or "", unknown))
                if topic.error_code == unknown
                else topic
                for topic in response.topics
            )
            exchange.answer(replace(response, topics=topics))

        steps = self._run(handler, exchange, request)
        if steps is not None:
            self._drive(steps)

    def _as_controller(self, handler: Handler) -> Handler:
        def handle(exchange: RequestContext, request: Any) -> Steps | None:
            if self._is_controller():
                return handler(exchange, request)
            exchange.refuse(request, ErrorCode.NOT_CONTROLLER, _NOT_CONTROLLER)
            return None

        return handle

    def _create_topics(self, exchange: RequestContext, request: CreateTopicsRequest) -> None:
        if self._creates_too_much(exchange, request):
            return
        self._creation.create_topics(request, exchange.header.api_version, exchange.answer)

    def _create_partitions(self, exchange: RequestContext, request: CreatePartitionsRequest) -> None:
        if self._creates_too_much(exchange, request):
            return
        self._creation.create_partitions(request, exchange.answer)

    def _creates_too_much(
        self, exchange: RequestContext, request: CreateTopicsRequest | CreatePartitionsRequest
    ) -> bool:
        """More topics than partitions may be created: refused without a look at each."""
        limit = self._settings.request_partitions_max
        if len(request.topics) <= limit:
            return False
        message = f"{len(request.topics)} topics: expected at most camerlengo.request.partitions.max={limit}"
        exchange.refuse(request, ErrorCode.POLICY_VIOLATION, message)
        return True

    def _delete_topics(self, exchange: RequestContext, request: DeleteTopicsRequest) -> Steps | None:
        if not self._is_controller():
            exchange.refuse(request, ErrorCode.NOT_CONTROLLER)
        elif not self._settings.delete_topic:
            exchange.refuse(request, disabled_error(exchange.header.api_version))
        elif names_both(request):
            exchange.refuse(request, ErrorCode.INVALID_REQUEST, NAME_AND_ID)
        else:
            return self._deletion.delete_topics(request, exchange.answer)
        return None

    def _elect_leaders(self, exchange: RequestContext, request: ElectLeadersRequest) -> Steps | None:
        if not self._is_controller():
            self.elections.refuse(request, ErrorCode.NOT_CONTROLLER, _NOT_CONTROLLER, exchange.answer_made)
            return None
        return self.elections.elect_leaders(request, exchange.answer_made)

    def _alter_reassignments(self, exchange: RequestContext, request: AlterPartitionReassignmentsRequest) -> None:
        self._reassignments.alter(request, exchange.answer)

    def _list_reassignments(self, exchange: RequestContext, request: ListPartitionReassignmentsRequest) -> None:
        self._reassignments.list(request, exchange.answer)

    def _produce(self, exchange: RequestContext, request: ProduceRequest) -> Steps:
        assert self.data is not None
        version = exchange.header.api_version
        if exchange.settle is not None:
            exchange.settle.acks_none = request.acks == ACKS_NONE
        if request.acks != ACKS_NONE:
            internal = exchange.header.client_id == ADMIN_CLIENT
            yield from self.data.produce.handle(request, version, exchange.answer, internal=internal)
            exchange.release_request()  # the memory of its records is wanted for the next one's while it waits
            return

        def appended(good: bool) -> None:
            if good:
                exchange.answer_nothing()
            else:
                exchange.close()

        yield from self.data.produce.handle_unanswered(request, version, appended)

    def _fetch(self, exchange: RequestContext, request: FetchRequest) -> Steps | None:
        """A follower's may wait for long, and there are many."""
        assert self.data is not None
        charge = exchange.settle
        if charge is not None and request.replica_id >= 0:
            charge.exempt, charge = True, None
        steps = self.data.fetch.handle(request, exchange.header.api_version, exchange, charge)
        if exchange.header.api_version >= _FIRST_VERSION_WITH_ONE_ERROR:
            exchange.release_request(_A_FETCH)
        return steps

    # -- the controller, to this broker

    def _leader_and_isr(self, exchange: RequestContext, request: LeaderAndIsrRequest) -> None:
        self._admit(self._leader_and_isr, exchange, request, lambda: self._with_configs(exchange, request))

    def _admit(
        self,
        handler: Callable[[RequestContext, Any], None],
        exchange: RequestContext,
        request: ControlRequest,
        go_on: Callable[[], None],
    ) -> None:
        if not (
            self._comes_before_registration(handler, exchange, request)
            or self._is_of_earlier_incarnation(exchange, request)
        ):
            self.control.admit(exchange, request, go_on)

    def _with_configs(self, exchange: RequestContext, request: LeaderAndIsrRequest) -> None:
        handle, then = self.replicas.become_leader_or_follower, self.isr_manager.roles_changed
        go_on = partial(self._in_turn, exchange, request, handle, then)
        go_on() if self._services is None else self._services.gate.admit(request, go_on)

    def _in_turn(
        self,
        exchange: RequestContext,
        request: ControlRequest,
        handle: Callable[..., Steps],
        then: Callable[[Any], Steps | None] = lambda _request: None,
    ) -> None:
        """The controller's requests change the same partitions: one of them is done before the next begins."""
        refused = partial(self._is_of_earlier_incarnation, exchange, request)

        def handler(*_: Any) -> Steps:
            if refused():
                return
            response = yield from handle(request, refused)
            if response is not None:
                exchange.answer(response)
            yield from then(request) or ()

        def steps() -> Steps:
            yield from self._run(handler, exchange, request) or ()

        self._orders.add(steps())

    def _update_metadata(self, exchange: RequestContext, request: UpdateMetadataRequest) -> None:
        handle, then = self.replicas.update_metadata, self._metadata_changed
        self._admit(self._update_metadata, exchange, request, partial(self._in_turn, exchange, request, handle, then))

    def _metadata_changed(self, _request: UpdateMetadataRequest) -> None:
        self._after_metadata(self.topic_waits.metadata_changed)
        self._after_metadata(self.elections.metadata_changed)
        self._after_metadata(self.isr_manager.metadata_changed)
        if self.data is not None:
            self._after_metadata(self.data.metadata_changed)
        if self.groups is not None:
            self._after_metadata(self.groups.metadata_changed)
        if self.transactions is not None:
            self._after_metadata(self.transactions.metadata_changed)

    def _after_metadata(self, step: Callable[[], None]) -> None:
        """The metadata is taken by now: a step that fails is logged, and the others follow it all the same."""
        try:
            step()
        except Exception:  # noqa: BLE001 - logged with its place
            self._note("error", f"UpdateMetadata: a step failed\n{traceback.format_exc()}")

    def _stop_replica(self, exchange: RequestContext, request: StopReplicaRequest) -> None:
        go_on = partial(self._in_turn, exchange, request, self.replicas.stop_replicas)
        self._admit(self._stop_replica, exchange, request, go_on)

    def registered(self) -> None:
        """Handle early requests: the first broker epoch is known, and so which of them are for this incarnation."""
        early, self._early = self._early, []
        for go_on in early:
            go_on()

    def _comes_before_registration(
        self, handler: Callable[[RequestContext, Any], None], exchange: RequestContext, request: ControlRequest
    ) -> bool:
        """Keeps until then what may be for the life before, whose registration lasts as long as its session: a broker
        that came back from a loss of power would lead on in an epoch whose records it has forgotten. Kafka's brokers
        begin to answer when they are registered."""
        if request.broker_epoch == NO_BROKER_EPOCH or self._identity.broker_epoch != NO_BROKER_EPOCH:
            return False
        self._early.append(lambda: self._run(handler, exchange, request))
        return True

    def _is_of_earlier_incarnation(self, exchange: RequestContext, request: ControlRequest) -> bool:
        """Refuses what was meant for this broker before it last registered (S29, KAFKA-7235).

        A later epoch than ours is no error: the controller may see a registration before its broker has the answer.
        """
        if request.broker_epoch == NO_BROKER_EPOCH or request.broker_epoch >= self._identity.broker_epoch:
            return False
        api = CONTROL_APIS[exchange.header.api_key]
        reason = f"it is for broker epoch {request.broker_epoch}, this is {self._identity.broker_epoch}"
        self._trace.emit(RequestRefused(api, request.controller_epoch, ErrorCode.STALE_BROKER_EPOCH, reason))
        exchange.refuse(request, ErrorCode.STALE_BROKER_EPOCH)
        return True

    # -- brokers, to the controller. One that is not the active controller refuses when the event's turn comes.

    def _alter_isr(self, exchange: RequestContext, request: AlterIsrRequest) -> None:
        self._events.put(AlterIsrRequested(request, exchange.answer, exchange.header.api_version))

    def _update_features(self, exchange: RequestContext, request: UpdateFeaturesRequest) -> None:
        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: UpdateFeaturesRequested(request, respond),
            exchange.answer,
            lambda: exchange.refuse(request, ErrorCode.REQUEST_TIMED_OUT),
        )

    def _allocate_producer_ids(self, exchange: RequestContext, request: AllocateProducerIdsRequest) -> None:
        self._events.put(AllocateProducerIdsRequested(request, exchange.answer))

    def _controlled_shutdown(self, exchange: RequestContext, request: ControlledShutdownRequest) -> None:
        takes_a_reason = request.manner != SHUTDOWN_UNSAID

        def answer(response: ControlledShutdownResponse) -> None:
            exchange.answer(response if takes_a_reason else replace(response, reason=""))

        forced = request.manner == SHUTDOWN_FORCED
        self._events.put(ControlledShutdownRequested(request.broker_id, request.broker_epoch, answer, forced))

    def _answer_failed(self, _operation: DelayedOperation, error: Exception) -> None:
        """Of a request that waited: the others go on."""
        self._note("error", "".join(traceback.format_exception(error)).rstrip())

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def _no_sasl_here(exchange: RequestContext, request: RequestValue) -> None:
    """What reaches the broker came by a listener without SASL."""
    exchange.refuse(request, ErrorCode.ILLEGAL_SASL_STATE)


def _in_exchange(handle: Handle) -> Handler:
    return lambda exchange, request: handle(request, exchange.header.api_version, exchange.answer)


_MAY_ANSWER_MUCH = frozenset(
    [ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ELECT_LEADERS]
    + [ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS]
)
"""Requests whose answer may be large while they are small."""
_REFUSED_BY_ACLS_ALONE = frozenset([ApiKey.PRODUCE, ApiKey.FETCH])
_A_FETCH = FetchRequest(0, 0, ())
_FIRST_VERSION_WITH_ONE_ERROR = 7  # for all of a fetch
ADMIN_CLIENT = "__admin_client"
"""The client id with which Kafka's administrators may write to internal topics."""
_NOT_CONTROLLER = "This is not the correct controller for this cluster."
