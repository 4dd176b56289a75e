"""The address that clients of a service should type."""

import socket
import urllib.parse

import pytest

from serve.processes.endpoint_address import endpoint_of


@pytest.mark.process
def test_service_on_all_interfaces_has_a_reachable_address():
    with socket.create_server(("0.0.0.0", 0)) as listener:
        told = urllib.parse.urlsplit(endpoint_of("http", "0.0.0.0", listener.getsockname()[1]))
        assert told.hostname and not told.hostname.startswith("0.")
        socket.create_connection((told.hostname, told.port), timeout=20).close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_address_without_a_network_is_loopback(monkeypatch, family):
    class Cut(socket.socket):
        def connect(self, _):
            raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", Cut)
    everywhere, told = {socket.AF_INET: ("0.0.0.0", "127.0.0.1"), socket.AF_INET6: ("::", "[::1]")}[family]
    assert endpoint_of("https", everywhere, 8000) == f"https://{told}:8000"


def test_service_on_one_address_is_reached_there():
    assert endpoint_of("http", "127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert endpoint_of("http", "fd00::7", 8000) == "http://[fd00::7]:8000"
