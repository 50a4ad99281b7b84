"""Metrics over HTTP: what is asked for is given, anything else is refused or cut off, and a whole broker does it."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from controller.hosts.listening import CannotListen
from controller.hosts.local_cluster import LocalCluster
from controller.hosts.metrics_server import REQUEST_BYTES, MetricsServer
from controller.hosts.network import NetworkThread
from tests.processes import eventually

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    network = NetworkThread()
    network.start()
    server = MetricsServer(network)
    _, bound = server.bind(("127.0.0.1", 0))
    server.serve(lambda: "a_metric 1\n")
    yield bound
    server.close()
    network.stop()


def answered(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(request)
        parts = []
        try:
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionResetError:
            pass  # an end of the connection as good as the other
        return b"".join(parts)


def test_metrics_are_given_and_the_connection_ends(port: int) -> None:
    head, _, body = answered(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert b"Content-Length: 11\r\n" in head
    assert body == b"a_metric 1\n"
    assert answered(port, b"HEAD /metrics HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x00\x01 nothing\r\n\r\n", b"405"),
        (b"GET /metrics?name=a HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_anything_else_is_refused(port: int, request_head: bytes, status: bytes) -> None:
    assert answered(port, request_head).split(b" ")[1] == status


def test_what_is_too_long_is_cut_off_and_others_are_answered(port: int) -> None:
    assert answered(port, b"GET /" + b"x" * (2 * REQUEST_BYTES)) == b""
    assert answered(port, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"a_metric 1\n")


def test_an_address_that_is_taken_is_named(port: int) -> None:
    network = NetworkThread()
    with pytest.raises(CannotListen, match=f"metrics at 127.0.0.1:{port}"):
        MetricsServer(network).bind(("127.0.0.1", port))


def test_brokers_serve_what_they_are() -> None:
    """Two processes: one controller between them, and each its own numbers."""
    with LocalCluster(
        brokers=2, session_timeout_ms=6_000, settings={"camerlengo.metrics.address": "127.0.0.1:0"}
    ) as it:
        pages = {}
        for number in it.brokers:
            log = (it.folder / f"broker-{number}.log").read_text()
            found = re.search(r"metrics at (http://\S+)", log)
            assert found is not None, log
            pages[number] = found[1]

        def page(number: int) -> str:
            with urllib.request.urlopen(pages[number], timeout=LIMIT_S) as response:
                text: str = response.read().decode()
                return text

        def controllers() -> list[str]:
            name = "kafka_controller_kafkacontroller_activecontrollercount"
            return sorted(line for number in pages for line in page(number).splitlines() if line.startswith(f"{name} "))

        eventually(lambda: [float(line.split()[1]) for line in controllers()] == [0, 1], "one controller of two")
        assert 'sessionstate{state="CONNECTED"} 1' in page(1)
        eventually(lambda: bool(re.search(r"(?m)^camerlengo_timer_wakeups_total [1-9]", page(1))), "a timer fired")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(pages[1] + "/nothing", timeout=LIMIT_S)
