"""Secrets reach their destination, and no other file, command line or packet contains a secret."""

import base64
import json
import random
import shutil
import socket
import string
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from infra.agent.process import end_all
from tests import processes
from tests.faults.trial import RUN, checkout, counted, rounds
from tests.hosts import Host, hosts, make_key, until  # noqa: F401 (a fixture)
from tests.programs import source
from tests.world import ROOT, World

pytestmark = pytest.mark.process

ARRIVES = ("HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN")
KEYS = {"HF_TOKEN": "hf_", "HUGGINGFACEHUB_API_TOKEN": "hf_", "RUNPOD_API_KEY": "rpa_", "LIUM_API_KEY": "lium_",
        "WANDB_API_KEY": "wandb/+", "AWS_SECRET_ACCESS_KEY": "aws/+="}  # fmt: skip
PLANTED = {  # files of the checkout, and the reason why each file is not sent
    ".env": ".env: the name says that the file holds secrets",
    "notes.md": "notes.md: holds a Hugging Face token",
    "key": "key: holds a private key",
}
LAUNCH = source("launch_and_follow")


@rounds(1, 10)
def test_secrets_appear_only_at_their_destination(hosts, tmp_path, rounds):  # noqa: F811
    (host,) = hosts(1)
    for number in range(rounds):
        search_for_secrets(host, tmp_path / str(number))
        shutil.rmtree(host.folder / "home" / ".slipway")


def search_for_secrets(host: Host, folder: Path) -> None:
    """Launch once, and search all output, processes, packets and files, on both sides."""
    tokens = {name: prefix + "".join(random.choices(string.ascii_letters, k=34)) for name, prefix in KEYS.items()}
    root = checkout(folder / "checkout")
    canaries = {**tokens, **plant(root)}
    machine = {"ip": host.address.host, "user": host.address.user, "identity_file": host.address.key}
    (folder / "pools.yaml").write_text(json.dumps({"lab": {"hosts": [machine]}}))
    world = World(
        folder,
        {
            "SLIPWAY_POOLS": str(folder / "pools.yaml"),
            "SLIPWAY_ACCEPT_FREE_GB": "1",
            "SLIPWAY_ACCEPT_DISK_MB_S": "1",
            "PYTHONPATH": str(ROOT),
            **tokens,
        },
    )
    count = counted(host)
    with wire() as packets, command_lines() as lines:
        child = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, root, folder / "store"],
            cwd=ROOT,
            text=True,
            env=world.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            until(lambda: count.lines() or child.poll() is not None, "work on the host", 60)
            assert child.poll() is None, child.communicate()
            assert (count.pod.root / "secrets.json").stat().st_mode & 0o777 == 0o600
            check_arrival(count.pod.root, canaries)
            count.enough()
        finally:
            out, err = child.communicate(timeout=60)
        told = [world.inv(*words.split()) for words in ("status", f"logs {RUN}", "config", "hosts")]
    state, token = out.split()
    assert state == "succeeded" and not end_all(token, 0.0)
    assert b"infra.agent\0start" in lines and b"SSH-2.0" in packets
    places = {str(path.relative_to(folder.parent)): path.read_bytes() for path in files(folder)}
    places |= {str(path): path.read_bytes() for path in files(host.folder / "home")}
    assert f"{folder.name}/state/journal.db" in places
    places |= {"what was said": "".join([out, err, *told]).encode(), "argv": bytes(lines), "the wire": bytes(packets)}
    seen = {
        (place, name)
        for place, content in places.items()
        for name, value in canaries.items()
        if any(form in content for form in encodings(value))
    }
    assert seen == {(f"{folder.name}/checkout/{name}", name) for name in PLANTED}
    for refusal in PLANTED.values():
        assert refusal in err


def plant(root: Path) -> dict[str, str]:
    """Plant secrets in the checkout; return the secrets by file."""
    found = {where: "".join(random.choices(string.ascii_letters, k=34)) for where in (".env", "notes.md")}
    (root / ".env").write_text(f"SHADEFORM_API_KEY={found['.env']}\n")
    (root / "notes.md").write_text(f"the token is hf_{found['notes.md']}\n")
    make_key(root / "key")
    return {**found, "key": (root / "key").read_text().splitlines()[2]}


def check_arrival(pod: Path, canaries: Mapping[str, str]) -> None:
    """Check that the step has the secrets of its job, and no others."""
    token = json.loads((pod / "POD.json").read_text())["token"]
    (step,) = [
        environ for environ in environments() if f"SLIPWAY_TOKEN={token}" in environ and "RECORDS" in str(environ)
    ]
    held = {name for name, value in canaries.items() if value in "".join(step)}
    assert held == set(ARRIVES)


def environments() -> Iterator[list[str]]:
    for pid in processes.pids():
        yield processes.environ(pid).decode(errors="replace").split("\0")


@contextmanager
def command_lines() -> Iterator[bytearray]:
    """Collect every command line of this machine, hosts included, as often as possible."""
    seen: set[bytes] = set()
    held, stop = bytearray(), threading.Event()

    def poll() -> None:
        while not stop.is_set():
            seen.update(processes.command_lines())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield held
    finally:
        stop.set()
        thread.join()
        held += b"\n".join(seen)


@contextmanager
def wire() -> Iterator[bytearray]:
    """Yield the bytes that cross the bridge, in both directions, without headers, so that headers split no secret."""
    held: dict[bytes, bytearray] = {}
    joined, stop = bytearray(), threading.Event()
    every_protocol = 3
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(every_protocol)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: drop no packet
        tap.bind(("br0", every_protocol))
        tap.settimeout(0.1)

        def listen() -> None:
            while not stop.is_set():
                try:
                    packet = tap.recv(1 << 16)
                except TimeoutError:
                    continue
                if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                    segment = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
                    held.setdefault(segment[:4], bytearray()).extend(segment[(segment[12] >> 4) * 4 :])

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield joined
        finally:
            stop.set()
            thread.join()
            joined += b"\n".join(held.values())
            packet_statistics = 6
            dropped = int.from_bytes(tap.getsockopt(263, packet_statistics, 8)[4:], sys.byteorder)
            assert not dropped


def files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def encodings(secret: str) -> set[bytes]:
    """Return the secret in plain text, in base64 at every offset, in hex and as part of a URL."""
    raw = secret.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), quote(secret, safe="").encode()}
    for lead in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(b"\0" * lead + raw)
            found.add(whole[4:-4])  # neighboring bytes do not affect these parts
    return found
