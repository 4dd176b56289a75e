"""The address of a service that clients are to type.

In: where its gateway listens. Out: a URL. Nobody can type `0.0.0.0`, which stands for every address of this machine:
then it is the one by which this machine reaches others.
"""

import socket

# by what is listened on: the kind of address, one elsewhere (of documentation: nothing is sent there), and loopback
_EVERYWHERE = {
    "0.0.0.0": (socket.AF_INET, "198.51.100.1", "127.0.0.1"),
    "::": (socket.AF_INET6, "2001:db8::1", "::1"),
}


def endpoint_of(scheme: str, listens_on: str, port: int) -> str:
    """Return the URL at which clients reach what listens there."""
    host = _own(*_EVERYWHERE[listens_on]) if listens_on in _EVERYWHERE else listens_on
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _own(family: socket.AddressFamily, elsewhere: str, loopback: str) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:  # there is no way out of this machine
            return loopback
        return str(probe.getsockname()[0])
