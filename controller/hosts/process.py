"""A broker as a process: its threads put together, its signals, its way up and its way down.

The network's thread is the broker's, the event thread is the controller's, ZooKeeper's connection has its own, and the
main thread waits for notices: a signal, a registration, a fault. SIGTERM and SIGINT are a controlled shutdown; a second
one ends the process at once.
"""

from __future__ import annotations

import enum
import faulthandler
import gc
import os
import queue
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from controller.broker.config_requests import BrokerLoggers
from controller.broker.log_maintenance import NoLogDirectory, opening_notes
from controller.broker.log_manager import LogManager, SettingsOf
from controller.broker.node import ACKNOWLEDGED_LIMIT_MS, CLOSE_LIMIT_MS, RESIGN_LIMIT_MS, Node
from controller.broker.settings import GENERATED, Address, BrokerSettings, address_text
from controller.core.channels import ControllerChannels
from controller.core.controller import Controller
from controller.hosts.authorizers import load_authorizer
from controller.hosts.broker_id import MetaProperties, generate_broker_id, keep, kept_broker_id, unreadable
from controller.hosts.event_thread import ControllerEventThread
from controller.hosts.listener_security import ListenerSecurity, report_open_znodes
from controller.hosts.listening import CannotListen
from controller.hosts.metrics_server import MetricsServer
from controller.hosts.network import NetworkThread, OffLoop
from controller.hosts.peers import socket_channels
from controller.hosts.process_output import LogOutput, ProcessTrace
from controller.hosts.request_stages import RequestStages
from controller.hosts.server import SocketServer, limits_of
from controller.hosts.tls import BadCertificates
from controller.hosts.zookeeper_access import connection_to
from controller.log import logger
from controller.storage import AlreadyLocked, DuplicateLogs, OutOfResources
from controller.storage.device_pools import DevicePools
from controller.storage.devices import DeviceLimits
from controller.storage.disk_files import FileDisk
from controller.system import descriptor_limit, raise_descriptor_limit
from controller.trace import Noted
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import ZooKeeperError

STOPPED = 0
FAULT = 1
COULD_NOT_RUN = 3

THREAD_LIMIT_S = 2.0
STANDARD_ERROR = 2
RELEASE_LIMIT_S = 20.0
"""For the threads and servers, after the shutdown's own limits."""
SHUTDOWN_MARGIN_S = 10.0
"""On top of what the limits within a shutdown add up to."""
COLLECTOR = (50_000, 20, 100)
"""Thresholds of the garbage collector: with Python's own a large request makes it look at everything several times."""


class CouldNotStart(Exception):
    """The broker can't come up; says why."""


class _Notice(enum.Enum):
    CONNECTED = "connected"
    REGISTERED = "registered"
    STOP = "stop"
    FAULT = "fault"


class BrokerProcess:
    """One broker in this process, used by its main thread. `log`: what clients may change the level of."""

    def __init__(self, settings: BrokerSettings, log: LogOutput | None = None) -> None:
        self._log = log
        self.settings = settings = kept_broker_id(settings)
        self._notices: queue.SimpleQueue[_Notice] = queue.SimpleQueue()
        self._rng = random.Random()
        self._network = NetworkThread()
        self._clock = self._network.clock
        self._trace = ProcessTrace(Path(settings.trace_file) if settings.trace_file else None, settings.broker_id)
        self._network.loop.set_exception_handler(self._on_unhandled_exception)
        self._devices = DevicePools(device_limits(settings), note=logger.warning)
        self._server = SocketServer(self._network, limits_of(settings), self._trace, self._devices)
        self._metrics = MetricsServer(self._network)
        self._events = ControllerEventThread(self._clock, self._trace, lambda _error: self._notify(_Notice.FAULT))
        self._node: Node | None = None
        self.on_deadline: Callable[[float], None] = _ignore_deadline
        """Called when a shutdown begins, with the seconds that its limits add up to."""

    def stop_soon(self) -> None:
        """Asks the main thread to shut down; safe in a signal handler."""
        self._notices.put(_Notice.STOP)

    def _notify(self, notice: _Notice) -> None:
        self._notices.put(notice)

    def _on_unhandled_exception(self, _loop: object, context: dict[str, Any]) -> None:
        """Report an exception that no code on the loop caught in the trace, like every other defect."""
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)).rstrip() if error is not None else repr(context)
        self._trace.emit(Noted("error", f"{context['message']}\n{where}"))

    def run(self, ready: Callable[[BrokerSettings], None], stopped: Callable[[str | None], None]) -> int:
        """The exit status. `ready` is called once the broker is registered and serves, with its settings as they
        became; `stopped` after a shutdown, with why its controlled part was not granted. CouldNotStart, CannotListen,
        BadCertificates.
        """
        clean = False
        try:
            node = self._start()
            notice = self._await_registration(node)
            if notice is _Notice.REGISTERED:
                self._keep_identity(node)
                ready(self.settings)
                notice = self._next(None)
            if notice is _Notice.FAULT:
                return FAULT
            failure = self._shut_down(node)
            clean = True
            stopped(failure)
            return STOPPED
        finally:
            self._release(clean)

    def _next(self, timeout_s: float | None) -> _Notice:
        return self._notices.get(timeout=timeout_s)

    def _start(self) -> Node:
        ports = self._server.bind(self.settings.listeners)
        self._secured().serve_tls(self._server)
        self._network.start()
        if self.settings.broker_id == GENERATED:
            self.settings = self.settings.with_broker_id(self._generate_broker_id())
            self._trace.node = self.settings.broker_id
        self.settings = self.settings.with_bound_ports(ports, socket.getfqdn())
        self._node = node = self._make_node()
        self._serve_metrics(node)
        self._measure_requests(node)
        self._secured().serve_sasl(self._server, node.access.credentials.read, self._clock)
        node.access.quota_store.limit(self._server.gate.quotas)
        self._server.serve(node.broker.begin)
        self._events.start(node)
        node.start().on_done(lambda: self._notify(_Notice.CONNECTED))
        node.registered.on_done(lambda: self._notify(_Notice.REGISTERED))
        return node

    def _measure_requests(self, node: Node) -> None:
        """Where copies between tiers follow the produce latency."""
        if node.tiers is None or not self.settings.tiers.produce_p99_ms:
            return
        self._server.stages = stages = self._server.stages or RequestStages()
        node.tiers.produce_p99_ms = lambda: stages.p99_ms("Produce", self._network.loop.time())

    def _serve_metrics(self, node: Node) -> None:
        if self.settings.metrics_address is None:
            return
        # prometheus_client takes 0.1 s of CPU to import: only a broker that serves metrics pays for it.
        from controller.broker.device_metrics import device_metrics
        from controller.broker.metrics import metrics_of, stage_metrics, text_of, timer_metrics

        address = self._metrics.bind(self.settings.metrics_address)
        self._server.stages = stages = RequestStages()

        def text() -> str:
            clock = self._clock
            timer = timer_metrics(clock.wakes, clock.wheel_counts)
            requests = stage_metrics(stages.summaries(self._network.loop.time()))
            devices = device_metrics(self._devices.stats())
            return text_of((*metrics_of(node, clock.now_ms()), *timer, *requests, *devices))

        self._metrics.serve(text)
        self._trace.emit(Noted("info", f"metrics at http://{address_text(address)}/metrics"))

    def _open_logs(self, settings_of: SettingsOf) -> LogManager:
        """Recover the logs, before the broker registers."""
        settings = self.settings
        open_files_max = settings.log_open_files_max
        disk = FileDisk(open_files_max if open_files_max >= 0 else None)
        try:
            unusable = unreadable(settings.log_dirs)
            logs = LogManager(
                disk,
                settings.log_dirs,
                settings_of,
                self._clock.wall_ms,
                unusable,
                producer_ids_max=settings.producer_ids_max,
                tiers=settings.tiers.tiers,
            )
            self._devices.watch({one.device for one in logs.directories if one.health.cause is None}, disk.ask)
            for note in opening_notes(logs):
                self._trace.emit(note)
        except (AlreadyLocked, DuplicateLogs, NoLogDirectory) as error:
            raise CouldNotStart(str(error)) from error
        except OutOfResources as shortage:
            limit = descriptor_limit()
            raise CouldNotStart(f"{shortage}; the limit is {limit} file descriptors (ulimit -n)") from shortage
        return logs

    def _keep_identity(self, node: Node) -> None:
        """Once registered, as in Kafka: from now on the directories are this broker's and this cluster's."""
        for directory in node.services.logs.directories if node.services is not None else ():
            if directory.health.cause is None:
                try:
                    keep(directory.path, MetaProperties(self.settings.broker_id, node.identity.cluster_id))
                except OSError as error:
                    note = f"log directory {directory.path}: meta.properties is not written: {error}"
                    self._trace.emit(Noted("warning", note))

    def _await_registration(self, node: Node) -> _Notice:
        """REGISTERED, STOP or FAULT. A connection has its limit, as in Kafka; after it a registration takes what it
        takes."""
        limit_s = self.settings.zookeeper_connection_timeout_ms / 1_000.0
        try:
            notice = self._next(limit_s)
        except queue.Empty:
            where = self.settings.zookeeper_connect
            raise CouldNotStart(f"no connection to ZooKeeper at {where} in {limit_s:g} s") from None
        if notice is _Notice.CONNECTED:
            _check(node.connected.result)
            notice = self._next(None)
        if notice is _Notice.REGISTERED:
            _check(node.registered.result)
        return notice

    def _make_node(self) -> Node:
        settings = self.settings
        secured, control, connection = self._secured(), settings.control_plane_listener, self._connection()
        peers = secured.peers(self._network, settings.inter_broker_listener)
        controller_peers = peers if control is None else secured.peers(self._network, control)

        def channels() -> ControllerChannels:
            return socket_channels(
                controller_peers,
                self._clock,
                node.events,
                self._trace,
                request_timeout_ms=settings.controller_socket_timeout_ms,
                may_send=lambda: term_holds(node.controller),
            )

        node = Node(
            settings,
            connection,
            channels,
            peers,
            self._clock,
            self._trace,
            self._rng,
            lock=threading.Lock(),
            wake=self._events.wake,
            open_logs=self._open_logs if settings.log_dirs else None,
            on_all_offline=lambda: self._notify(_Notice.FAULT),
            loggers=BrokerLoggers() if self._log is None else BrokerLoggers(self._log.level, self._log.set_level),
            off_loop=OffLoop(self._network).run,
            drive=self._server.turns.drive,
            authorizer=load_authorizer(settings),
        )
        if settings.zookeeper_set_acl:
            node.registered.on_done(lambda: report_open_znodes(connection, secured.note))
        return node

    def _secured(self) -> ListenerSecurity:
        return ListenerSecurity(self.settings, lambda level, message: self._trace.emit(Noted(level, message)))

    def _connection(self) -> KazooConnection:
        settings = self.settings
        hosts, timeout_ms = settings.zookeeper_connect, settings.zookeeper_session_timeout_ms
        note = self._secured().note
        return connection_to(hosts, self._clock, timeout_ms, settings.given, note, create_chroot=True)

    def _generate_broker_id(self) -> int:
        client = ZooKeeperClient(self._connection(), self._clock, _NoEvents())
        try:
            return generate_broker_id(self.settings, client)
        except (ZooKeeperError, OSError) as error:
            raise CouldNotStart(f"no broker id was generated: {error}") from error
        finally:
            wait(client.close(), THREAD_LIMIT_S + CLOSE_LIMIT_MS / 1_000.0)

    def _shut_down(self, node: Node) -> str | None:
        settings = self.settings
        attempt_ms = settings.controller_socket_timeout_ms + settings.controlled_shutdown_backoff_ms
        limits_ms = ACKNOWLEDGED_LIMIT_MS + RESIGN_LIMIT_MS + CLOSE_LIMIT_MS
        limits_ms += settings.controlled_shutdown_attempts * attempt_ms
        limit_s = limits_ms / 1_000.0 + SHUTDOWN_MARGIN_S
        self.on_deadline(limit_s + RELEASE_LIMIT_S + settings.device_close_timeout_ms / 1_000.0)
        return run(node.shut_down(), limit_s)

    def _release(self, clean: bool) -> None:
        """Stop the threads and servers. `clean`: then close the logs, so that the next start has nothing to recover."""
        if not self._events.stop(THREAD_LIMIT_S):
            logger.warning("the event thread is still in a handler; it ends with the process")
        for close in (self._server.close, self._metrics.close):
            try:
                close()
            except TimeoutError:
                logger.warning("the network's thread does not answer; its connections end with the process")
        ended = self._network.stop()
        if clean and ended and self._node is not None:
            self._node.close_logs(self._devices)
        for job in self._devices.close(self.settings.device_close_timeout_ms / 1_000.0):
            logger.warning("the shutdown does not wait for {}", job)
        self._trace.close()


def exit_at_deadline(limit_s: float) -> None:
    """End the process with exit status 1 if it still runs after `limit_s`, with the stacks of all threads on standard
    error. Without this a thread that is stuck in a call of the system could keep the process from ending."""
    faulthandler.dump_traceback_later(limit_s, exit=True, file=STANDARD_ERROR)


def _ignore_deadline(_limit_s: float) -> None:
    pass


def device_limits(settings: BrokerSettings) -> DeviceLimits:
    return DeviceLimits(
        settings.device_threads,
        settings.device_queued_jobs,
        settings.device_queued_bytes,
        float(settings.device_timeout_ms),
    )


def term_holds(controller: Controller) -> bool:
    """Return True if the controller may still send. Any thread may call this: the term may end meanwhile."""
    term = controller.term
    return term is not None and term.void_reason() is None


class _NoEvents:
    def put(self, event: object) -> None:
        """Ignore events: this client has no watches."""


def _check(result: Callable[[], object]) -> None:
    try:
        result()
    except ZooKeeperError as error:
        raise CouldNotStart(str(error)) from error


def run_broker(
    settings: BrokerSettings,
    log_level: str,
    ready: Callable[[BrokerSettings], None],
    stopped: Callable[[str | None], None],
) -> int:
    """Runs a broker until it is asked to stop; the exit status of the process. BadSettings. See `BrokerProcess.run`."""

    def say_ready(found: BrokerSettings) -> None:
        ready(found)
        _say_ready(found)

    log = LogOutput(log_level)
    _use_all_descriptors()
    process = BrokerProcess(settings, log)
    process.on_deadline = exit_at_deadline
    for name in settings.without_effect:
        logger.warning("{} has no effect here", name)
    _on_signals(process.stop_soon)
    # What was imported stays: a collector that looks at it again and again is felt in a failover of many partitions.
    gc.freeze()
    gc.set_threshold(*COLLECTOR)
    try:
        return process.run(say_ready, stopped)
    except (CouldNotStart, CannotListen, BadCertificates) as error:
        logger.error("broker {} can't start: {}", process.settings.broker_id, error)
        return COULD_NOT_RUN


def _use_all_descriptors() -> None:
    """Raises the soft limit of file descriptors to the hard one, as Java's runtime does for Kafka's broker."""
    try:
        raise_descriptor_limit()
    except (ValueError, OSError) as error:
        logger.warning("the limit of file descriptors stays as it is: {}", error)


def _say_ready(settings: BrokerSettings) -> None:
    inter_broker = next(at for at in settings.advertised if at.name == settings.inter_broker_listener)
    address: Address = (inter_broker.host, inter_broker.port)
    # In one piece: print writes the line's end by itself where Python does not buffer, and the log may come between.
    sys.stdout.write(f"broker {settings.broker_id} ready at {address_text(address)}\n")
    sys.stdout.flush()


def _on_signals(stop: Callable[[], None]) -> None:
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
