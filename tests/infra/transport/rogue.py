"""SSH servers that accept every client, and a server that breaks the protocol: sends more than the client allowed."""

import contextlib
import socket
import struct
import threading
from pathlib import Path

import paramiko
from paramiko.common import cMSG_CHANNEL_DATA
from paramiko.message import Message

from infra.records import Address
from tests.hosts import make_key

PIECE = b"x" * 30_000
HUGE_BYTES = 1 << 30


class _Anybody(paramiko.ServerInterface):
    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


class Ed25519Server:
    """A server that lists Ed25519 as the only algorithm for keys of users."""

    def __init__(self, folder: Path) -> None:
        self._key = paramiko.Ed25519Key.from_private_key_file(str(make_key(folder / "listing-host")))
        self._listener = socket.create_server(("127.0.0.1", 0))
        key = make_key(folder / "listing-user")
        self.address = Address("anybody", "127.0.0.1", self._listener.getsockname()[1], str(key), "/")

    def __enter__(self) -> "Ed25519Server":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        others = [one for one in paramiko.Transport._preferred_pubkeys if one != "ssh-ed25519"]
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                transport = paramiko.Transport(self._listener.accept()[0], disabled_algorithms={"pubkeys": others})
                transport.add_server_key(self._key)
                transport.start_server(server=_Anybody(), event=threading.Event())


class RogueServer:
    """`what`: "no window", "a packet" or "a greeting" names the endless part."""

    def __init__(self, folder: Path, what: str) -> None:
        self._what = what
        self._key = paramiko.Ed25519Key.from_private_key_file(str(make_key(folder / "rogue-host")))
        self._listener = socket.create_server(("127.0.0.1", 0))
        key = make_key(folder / "rogue-user")
        self.address = Address("anybody", "127.0.0.1", self._listener.getsockname()[1], str(key), "/")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client closed the connection
            plain, _ = self._listener.accept()
            with plain:
                self._speak(plain)

    def _speak(self, plain: socket.socket) -> None:
        if self._what == "a greeting":
            while True:
                plain.sendall(PIECE)
        with contextlib.closing(paramiko.Transport(plain)) as transport:
            transport.add_server_key(self._key)
            transport.start_server(server=_Anybody())
            channel = transport.accept(20)
            if channel is None:
                return
            if self._what == "a packet":
                self._send_packet(transport)
            while transport.is_active():
                message = Message()
                message.add_byte(cMSG_CHANNEL_DATA)
                message.add_int(channel.remote_chanid)
                message.add_string(PIECE)
                transport._send_user_message(message)

    @staticmethod
    def _send_packet(transport: paramiko.Transport) -> None:
        """Send a packet with an honest length of a gigabyte, in endless pieces."""
        packets = transport.packetizer
        build = packets._build_packet

        def huge(payload: bytes) -> bytes:
            packet = build(payload)
            return bytes(struct.pack(">I", HUGE_BYTES - HUGE_BYTES % 16) + packet[4:])

        packets._build_packet = huge
