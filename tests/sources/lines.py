"""Run every command line of the five documents that Slipway replaces: rehearsed, on this machine, with a fake hub.

    python -m tests.sources.lines [DOCUMENT ...]

Input: the files in this folder, each the lines of one document in order. Output: a table of lines, the command typed
here, and the outcome; exit code 1 when a line deviates from the entry.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra.rehearsal import attach
from scripts.project.other_tools import GUIDES, GuideLine, read
from store import packs
from tests.sources import settings_of
from tests.world import ROOT, World

DOCUMENTS = tuple(GUIDES)
LIMIT_S = 580.0
INV = f"{shlex.quote(sys.executable)} -m invoke"


@dataclass(frozen=True)
class Outcome:
    """The result of a line; `problem` is "" when the line agrees with the entry."""

    line: GuideLine
    problem: str
    took_s: float


def run(document: str) -> Iterator[Outcome]:
    """Yield the outcome of each line of a document, in a separate installation."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-lines-")))
        world = stack.enter_context(installation(document, home))
        for line in read(document):
            begun = time.monotonic()
            is_off = line.pack not in ("", *packs.installed()) or packs.missing_pack_message(
                "commands", line.typed.partition(" ")[0]
            )
            problem = "" if line.reason or is_off else problem_of(line, world)
            yield Outcome(line, problem, time.monotonic() - begun)


@contextmanager
def installation(document: str, home: Path) -> Iterator[World]:
    """Yield a world with the requirements of a document's lines, and end all started processes."""
    with ExitStack() as stack:
        world = World(home, getattr(settings_of, document)(home, stack))
        if any("--rehearse" in one.practice + one.shell for one in read(document)):
            attach.start(attach.worlds_folder(home / "state" / "journal.db"), speed=60)
            stack.callback(stop, world)
        yield world


def stop(world: World) -> None:
    with suppress(attach.NoWorld):
        world.inv("rehearse", "--stop")


def problem_of(line: GuideLine, world: World) -> str:
    """Run a line. Return the difference from the entry, in words; "" without a difference."""
    if line.file:
        (world.folder / "job.yaml").write_text(yaml.safe_dump(line.file))
    values = {"home": str(world.folder), "inv": INV, "endpoint": ""}
    if "{endpoint}" in line.shell:
        values["endpoint"] = world.json("serve.status", "wrinklefree")["endpoint"]
    if line.shell:
        command = line.shell
        for name, value in values.items():
            command = command.replace(f"{{{name}}}", value)
        words = ["bash", "-c", command]
    else:
        typed = [*shlex.split(line.typed), *shlex.split(line.practice)]
        if "--" in typed and line.practice and not line.practice.startswith("--rehearse --"):
            at = typed.index("--")  # Slipway's flags precede the command for the pod.
            typed = [*shlex.split(line.practice), *typed[:at], *typed[at:]]
        words = [*shlex.split(INV), *(one.replace("{home}", values["home"]) for one in typed)]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=world.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"not over after {LIMIT_S:g} s"
    said = " ".join((done.stdout + done.stderr).split())
    if done.returncode != line.code:
        return f"exit code {done.returncode}: {said[-500:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-500:]}"
    return "" if re.search(re.escape(line.says), said) else f"does not say {line.says!r}: {said[-700:]}"


def table(found: list[tuple[str, Outcome]]) -> str:
    """Return the outcomes as a table in Markdown."""
    rows = ["| document | line | here | outcome |", "|---|---|---|---|"]
    for document, one in found:
        here = one.line.reason or (f"`./inv {one.line.typed}`" if one.line.typed else f"`{one.line.shell}`")
        outcome = one.problem or ("not run" if one.line.reason else f"as told, exit code {one.line.code}")
        rows.append(f"| {document} | `{one.line.line}` | {here} | {outcome} |".replace("\n", " "))
    return "\n".join(rows)


if __name__ == "__main__":
    outcomes = []
    for name in sys.argv[1:] or DOCUMENTS:
        for outcome in run(name):
            outcomes.append((name, outcome))
            said = outcome.problem or "ok"
            print(f"{name} {outcome.took_s:.1f} s: {outcome.line.line[:80]}: {said}", file=sys.stderr)
    print(table(outcomes))
    sys.exit(any(one.problem for _, one in outcomes))
