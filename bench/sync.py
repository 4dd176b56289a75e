"""Benchmark a push and a command over SSH, against rsync with a cold ssh and OpenSSH with a ControlMaster.

Run as root: .venv/bin/python -m bench.sync. The host is a network namespace with a separate sshd and home. Prints
medians of interleaved runs and their ratios. Slipway's connection is already open, as in work with a pod.
"""

import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.transport.push import push
from infra.transport.ssh import Ssh
from tests.hosts import Hosts

FILES = 5000
ROUNDS = int(os.environ.get("ROUNDS", "7"))
TOKEN = "sw1-bench"


def make_tree(root: Path) -> None:
    """Write a git checkout of source-like text: files of 200 bytes to 20 kB, 20 MB in total."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz_", k=source.randint(2, 12))) for _ in range(5000)]
    for number in range(FILES):
        folder = root / f"package{number % 50}" / f"part{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        text = " ".join(source.choices(words, k=int(source.lognormvariate(5.8, 0.9))))
        (folder / f"file{number}.py").write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)


def race(runners: Mapping[str, Callable[[], object]], before: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Return the median milliseconds of each runner, run in turn; `before` runs first and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(ROUNDS):
        for name in list(runners)[:: 1 if number % 2 else -1]:
            before()
            start = time.perf_counter()
            runners[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


def tell(what: str, taken: Mapping[str, float], target: str) -> None:
    (ours, ours_ms), (peer, peer_ms) = taken.items()
    print(f"{what}: {ours} {ours_ms:.1f} ms, {peer} {peer_ms:.1f} ms, ratio {ours_ms / peer_ms:.2f} (target {target})")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tree, hosts = Path(scratch, "tree"), Hosts(Path(scratch, "hosts"))
        make_tree(tree)
        try:
            hosts.open()
            with hosts.enter():
                address = hosts.add().address
                with Ssh(address, Path(scratch, "known_hosts")) as pod:
                    compare(pod, tree, Path(address.folder), Path(scratch, "master"))
        finally:
            hosts.close()


def compare(pod: Ssh, tree: Path, folder: Path, master: Path) -> None:
    pod.put(json.dumps({"token": TOKEN}).encode(), folder / "POD.json")
    line = pod.openssh_command(is_terminal=False)
    ssh, host = line[: line.index("-l")], f"{pod.address.user}@{pod.address.host}"
    rsync = ["rsync", "-az", "-e", " ".join(ssh), f"{tree}/", f"{host}:{folder}/rsync/"]

    def ours() -> object:
        return push(pod, tree, folder / "code", TOKEN)

    def theirs() -> object:
        return subprocess.run(rsync, check=True)

    def clear() -> None:
        gone = ["rm", "-rf", f"{folder}/code", f"{folder}/rsync", f"{folder}/state"]
        assert pod.run(gone, timeout_s=60).exited == 0
        os.sync()

    tell("first copy", race({"push": ours, "cold rsync -az": theirs}, before=clear), "at most 1.2")
    ours(), theirs()
    tell("nothing changed", race({"push": ours, "cold rsync -az": theirs}), "at most 0.4")
    shared = [*ssh, "-S", str(master), "-o", "ControlMaster=auto", "-o", "ControlPersist=60", host]
    subprocess.run([*shared, "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    try:
        runners = {
            "run": lambda: pod.run(["true"], timeout_s=20),
            "ControlMaster": lambda: subprocess.run([*shared, "true"], stdin=subprocess.DEVNULL, check=True),
        }
        tell("a command on an open link", race(runners), "at most 1.5")
    finally:
        subprocess.run([*shared[:-1], "-O", "exit", host], stderr=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
