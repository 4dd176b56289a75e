"""Network discovery between the nodes of a run: addresses of a machine, and which nodes the machine reaches.

This file is sent over a connection and run as `python3 - VERB WORDS`. The file imports no other module of this project
and prints one JSON document.

    look here|there   IPv4 addresses by interface (loopback only for `here`), and two free ports
    call PLAN         listen, and call every other node until the node answers or the time is over; PLAN is JSON:
                      rank, key, within_s, nodes: [{addresses, port}]
"""

import fcntl
import json
import secrets
import socket
import struct
import sys
import threading
import time
from typing import Any, Dict, List, Set

SIOCGIFADDR = 0x8915 if sys.platform.startswith("linux") else 0xC0206921
PORTS = range(20000, 32000)  # below the ephemeral ports of common systems
CALL_S = 1.0


def find_addresses(where: str) -> Dict[str, Any]:
    """Return the IPv4 addresses with their interfaces, and two free ports."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if address.startswith("127.") == (where == "here"):
                found[address] = name
    return {"addresses": found, "ports": free_ports(2)}


def free_ports(count: int) -> List[int]:
    found: List[int] = []
    while len(found) < count:
        port = secrets.choice(PORTS)
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("", port))
            except OSError:  # the port is in use
                continue
        if port not in found:
            found.append(port)
    return found


class ReachabilityTest:
    """A mutual reachability test: each node sends `KEY RANK` to all nodes, and "goodbye" after a successful call."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan = plan
        self.rank, self.key = plan["rank"], plan["key"]
        self.others = [rank for rank in range(len(plan["nodes"])) if rank != self.rank]
        self.deadline = time.monotonic() + plan["within_s"]
        self.reached: Dict[str, List[str]] = {str(rank): [] for rank in self.others}
        self.gone: Set[str] = set()  # ranks that have reached this node and said goodbye

    def hold(self) -> Dict[str, Any]:
        with socket.create_server(("", self.plan["nodes"][self.rank]["port"]), backlog=64) as server:
            threading.Thread(target=self._listen, args=(server,), daemon=True).start()
            callers = [threading.Thread(target=self._call, args=(rank,), daemon=True) for rank in self.others]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            while len(self.gone) < len(self.others) and time.monotonic() < self.deadline:
                time.sleep(0.02)
        return {"reached": self.reached}

    def _listen(self, server: socket.socket) -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:  # the meeting is over
                return
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link:
            try:
                link.settimeout(CALL_S)
                key, rank, word = link.makefile().readline(200).split()
                if key == self.key:
                    link.sendall("{} {}\n".format(self.key, self.rank).encode())
                    if word == "goodbye":
                        self.gone.add(rank)
            except (OSError, ValueError):  # the caller is a different program, or the node is gone
                return

    def _call(self, rank: int) -> None:
        """Call all addresses of a node repeatedly until at least one address answers or the deadline passes."""
        node = self.plan["nodes"][rank]
        found: List[str] = []
        while not found and time.monotonic() < self.deadline:
            found = [address for address in node["addresses"] if self._says(address, node["port"], rank, "hello")]
            time.sleep(0.05)
        self.reached[str(rank)] = found
        if found:
            self._says(found[0], node["port"], rank, "goodbye")

    def _says(self, address: str, port: int, rank: int, word: str) -> bool:
        try:
            with socket.create_connection((address, port), timeout=CALL_S) as link:
                link.sendall("{} {} {}\n".format(self.key, self.rank, word).encode())
                return link.makefile().readline(200).split() == [self.key, str(rank)]
        except (OSError, ValueError):
            return False


if __name__ == "__main__":
    print(
        json.dumps(
            find_addresses(sys.argv[2]) if sys.argv[1] == "look" else ReachabilityTest(json.loads(sys.argv[2])).hold()
        )
    )
