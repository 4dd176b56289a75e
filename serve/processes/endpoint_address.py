"""Address of a service for clients.

`endpoint_of` turns the gateway's listen address into a URL. Clients cannot use `0.0.0.0`, which stands for every
address of this machine, so the URL contains the address of the outgoing route instead.
"""

import socket

# Listen address -> address family, remote address of the route lookup (reserved for documentation, no packet is sent),
# loopback address.
_EVERYWHERE = {
    "0.0.0.0": (socket.AF_INET, "198.51.100.1", "127.0.0.1"),
    "::": (socket.AF_INET6, "2001:db8::1", "::1"),
}


def endpoint_of(scheme: str, listens_on: str, port: int) -> str:
    """Return the URL at which clients reach a server on `listens_on` and `port`."""
    host = _own(*_EVERYWHERE[listens_on]) if listens_on in _EVERYWHERE else listens_on
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _own(family: socket.AddressFamily, elsewhere: str, loopback: str) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:  # no outgoing route
            return loopback
        return str(probe.getsockname()[0])
