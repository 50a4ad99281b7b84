"""Links that can be cut: nothing passes and nothing is refused while cut, everything arrives when healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from controller.chaos.proxy import ProxyNetwork

DEADLINE_S = 20.0
SILENCE_S = 0.3


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(DEADLINE_S)


@pytest.fixture
def network() -> Iterator[ProxyNetwork]:
    network = ProxyNetwork()
    yield network
    network.close()
    network.close()


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        return connection.recv(1000) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(DEADLINE_S)


def test_what_is_sent_through_a_link_arrives(network: ProxyNetwork, echo_port: int) -> None:
    with dial(network.link(1, 2, echo_port)) as connection:
        connection.sendall(b"hello")
        assert connection.recv(1000) == b"hello"


def test_a_cut_link_holds_what_is_sent_until_it_heals(network: ProxyNetwork, echo_port: int) -> None:
    with dial(network.link(1, 2, echo_port)) as connection:
        connection.sendall(b"before")
        assert connection.recv(1000) == b"before"
        network.cut(1, 2)
        connection.sendall(b"during")
        assert silent(connection)
        network.heal(1, 2)
        assert connection.recv(1000) == b"during"


def test_a_cut_link_takes_connections_and_lets_them_wait(network: ProxyNetwork, echo_port: int) -> None:
    port = network.link(1, 2, echo_port)
    network.cut(1, 2)
    with dial(port) as connection:
        connection.sendall(b"anyone?")
        assert silent(connection)
        network.heal(1, 2)
        assert connection.recv(1000) == b"anyone?"


def test_links_are_directed_and_cut_one_by_one(network: ProxyNetwork, echo_port: int) -> None:
    with dial(network.link(1, 2, echo_port)) as there, dial(network.link(2, 1, echo_port)) as back:
        network.cut(1, 2)
        back.sendall(b"still here")
        assert back.recv(1000) == b"still here"
        there.sendall(b"lost for now")
        assert silent(there)


def test_a_target_that_refuses_closes_the_connection(network: ProxyNetwork) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with dial(network.link(1, 2, port)) as connection:
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
