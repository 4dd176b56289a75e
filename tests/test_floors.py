"""Imports point downwards: the table of the layers, checked for every file."""

import ast
import subprocess
import sys

import pytest

from scripts.commands import COMMANDS
from store import packs
from tests.floors import (
    ROOT,
    circle,
    complaints,
    imports,
    imports_of,
    is_by_text,
    lies_in,
    loaded_by,
    module_of,
    sources,
    texts,
    tree,
)

HEAVY = {
    "torch",
    "fabric",
    "httpx",
    "rich",
    "msgspec",
    "tokenizers",
    "pyarrow",
    "dotenv",
    "botocore",
    "huggingface_hub",
}
# The rooms of a layer, from the lowest to the highest: each may import itself, earlier rooms, and the layer's files.
ORDER = {
    "infra": (
        "agent",
        "transport",
        "market",
        "machines",
        "providers",
        "ledger",
        "selection",
        "notices",
        "runs",
        "rehearsal",
    ),
    "infra.agent": ("environments", "execution", "lifecycle"),
    "infra.providers": ("runpod",),
    "infra.runs": ("sync", "keepers"),
    "infra.transport": ("scan",),
    "infra.rehearsal": ("vendors",),
    "data": ("text", "shards", "tokens", "chat", "problems", "report"),
    "data.tokens": ("untrusted",),
    "trainer": (
        "records",
        "profiles",
        "plan",
        "model",
        "objectives",
        "parallel",
        "rewards",
        "rollouts",
        "checkpoints",
        "reporting",
        "tracking",
        "serving",
        "engines",
        "evaluation",
        "phases",
    ),
    "trainer.rewards": ("sandbox",),
    "serve": ("engine", "policy", "gateway", "processes", "replicas"),
    "serve.gateway": ("http",),
    "store": ("extensions", "backends", "artifacts", "untrusted", "run_sync"),
    "sdk": ("slipway",),
    # From typed flags to a run at work, then to the records, and to keeping many runs.
    "flows": (
        "specs",
        "limits",
        "models",
        "planning",
        "runs",
        "supervisor",
        "reading",
        "history",
        "pods",
        "services",
        "installation",
    ),
    # Commands of a noun use commands of other nouns in four places: chat asks a service, a report shows evaluations,
    # the work of a pod is followed like a launch, and doctor checks everything.
    "scripts": (
        "cli",
        "market",
        "services",
        "models",
        "checkpoints",
        "data",
        "pools",
        "store",
        "runs",
        "pods",
        "project",
    ),
}
# Importers of the rehearsal: commands, and the duties of the supervisor, which end with their world.
REHEARSING = ("infra.rehearsal", "flows.supervisor", "scripts")
# Imports by a text from elsewhere: in a table of phases, in the settings, or in a list of the standard library.
BY_TABLE = (
    "bench.gpu.parts",
    "data.text.pydocs",
    "store.extensions.run",
    "store.packs",
    "trainer.__main__",
    "trainer.rewards.sandbox.preload",
)


@pytest.mark.slow
def test_every_file_imports_only_modules_permitted_for_its_layer():
    bad = []
    for path in sources():
        bad += complaints(module_of(path), imports_of(path))
    assert not bad


def test_the_table_of_commands_imports_its_named_modules():
    text = 'COMMANDS = {"apply": CommandEntry(where="scripts.pods.apply:apply", summary="Create pods.")}'
    assert [*imports("scripts.commands", text)] == ["scripts.pods.apply.apply"]
    assert [*imports("flows.pods.apply", text)] == []


def test_imports_have_no_circle():
    assert circle(tree()) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def room_of(floor: str, module: str) -> str:
    """Return the room of a layer that contains a module, "" outside all rooms."""
    rest = module.removeprefix(f"{floor}.").split(".")
    return rest[0] if module.startswith(f"{floor}.") and rest[0] in ORDER[floor] else ""


def test_every_folder_of_a_layer_has_a_place_in_the_order():
    folders = {path.parent.relative_to(ROOT).parts for path in sources()}
    others = ("tests", "bench", "packs")
    inside = {(".".join(one[:-1]), one[-1]) for one in folders if len(one) > 1 and one[0] not in others}
    assert inside == {(floor, room) for floor, rooms in ORDER.items() for room in rooms}


def test_imports_by_text_are_known():
    by_table = set()
    for path in sources():
        text = "" if path.is_relative_to(ROOT / "tests") else path.read_text(encoding="utf-8")
        if "import_module" in text or "__import__" in text:
            calls = [node for node in ast.walk(ast.parse(text)) if is_by_text(node)]
            if [one for one in calls if not texts(one)]:
                by_table.add(module_of(path))
    assert by_table == set(BY_TABLE)


@pytest.mark.parametrize("floor", ORDER)
def test_rooms_import_only_rooms_below_them(floor):
    up = []
    for module, names in tree().items():
        here, rooms = room_of(floor, module), ORDER[floor]
        ups = [name for name in names if here and rooms.index(room_of(floor, name) or here) > rooms.index(here)]
        up += [f"{module} imports {name}" for name in ups]
    assert not up


def test_a_layer_file_imported_by_a_room_imports_no_higher_room():
    """Such a file would carry an import upwards: files of the layer's folder count one by one."""
    for floor in ORDER:
        edges: dict[str, set[str]] = {}
        for module, names in tree().items():
            if lies_in(module, floor) and not module.endswith("__main__"):
                node = f"{floor}.{room_of(floor, module)}" if room_of(floor, module) else module
                into = {f"{floor}.{room_of(floor, one)}" if room_of(floor, one) else one for one in names}
                edges.setdefault(node, set()).update(one for one in into if lies_in(one, floor) and one != node)
        assert circle(edges) == []


def test_only_commands_and_the_supervisor_import_the_rehearsal():
    commands = tuple(f"packs.{name}.commands" for name in packs.known())
    others = [module for module in tree() if not any(lies_in(module, one) for one in (*REHEARSING, *commands))]
    assert not [one for one in others if any(lies_in(name, "infra.rehearsal") for name in tree()[one])]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("infra.agent.lifecycle.guard", "from infra import records"),
        ("infra.agent.lifecycle.guard", "def f():\n    import httpx"),
        ("infra.agent.lifecycle.guard", "from ... import records"),
        ("infra.runs.launch", "import data.config"),
        ("infra.runs.launch", "from scripts.cli import render"),
        ("data.text", "from infra.errors import SlipwayError"),
        ("store.local_files", "from data import config"),
        ("trainer.plan", "from infra.ledger import journal"),
        ("trainer.plan", "from trainer import model"),
        ("trainer.loop", "from trainer.plan import resolve"),
        ("trainer.loop", "from . import plan"),
        ("trainer.loop", "import infra.records"),
        ("scripts.run", "import tasks"),
        ("flows.runs.launch", "from scripts.cli import render"),
        ("flows.runs.launch", "from trainer import loop"),
        ("serve.revision", "from flows import planning"),
        ("infra.runs.keepers.keeper", "from flows.planning.training_plan import plan_for"),
        ("infra.selection.registry", "import importlib\njobs = importlib.import_module('flows.runs.launch')"),
        ("trainer.__main__", "from importlib import import_module\nimport_module('serve.controller')"),
    ],
)
def test_an_upward_import_is_found(module, text):
    assert complaints(module, imports(module, text))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("infra.agent.lifecycle.guard", "import os\nfrom infra.agent.job import Job"),
        ("trainer.plan", "from infra.records import Plan\nfrom data.config import load\nfrom trainer import config"),
        ("scripts.run", "from trainer import plan\nimport httpx"),
        (
            "flows.planning.training_plan",
            "from trainer import plan\nfrom infra.ledger.journal import Op\nfrom serve import revision",
        ),
        ("scripts.run", "from flows import launch"),
        ("tests.test_x", "from scripts.cli import render"),
    ],
)
def test_a_downward_import_is_accepted(module, text):
    assert not complaints(module, imports(module, text))


@pytest.mark.process
def test_the_agent_is_written_for_python_3_9():
    for path in sorted((ROOT / "infra" / "agent").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))
    words = [
        "-c",
        "import vermin; vermin.main()",
        "--target=3.9-",
        "--violations",
        "--no-tips",
        "--eval-annotations",
        "infra/agent",
        *(str(folder) for folder in packs.FOLDER.glob("*/agent")),
    ]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_decisions_about_a_service_need_no_server():
    names = (
        "service, policy.replica_states, policy.autoscaler, policy.update, gateway.routing, gateway.wait_queue, "
        "gateway.request_body, gateway.keys, gateway.sse"
    )
    loaded = loaded_by(*(f"serve.{one}" for one in names.split(", ")))
    assert {"aiohttp", "httptools", "prometheus_client", "uvloop", "httpx", "torch"}.isdisjoint(loaded)


@pytest.mark.process
def test_listing_the_commands_imports_no_heavy_module():
    loaded = loaded_by("tasks")
    assert HEAVY.isdisjoint(loaded)
    files = {entry.where.partition(":")[0] for entry in COMMANDS.values()}
    assert files.isdisjoint(loaded), "the file of a command is loaded when the command is named"


def terminal_uses(text: str) -> list[str]:
    """Return the parts of a file's code that print, ask or check the terminal, by name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in ("print", "input", "breakpoint"):
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            found += [f"sys.{node.attr}"] if node.attr in ("stdin", "stdout", "stderr", "argv", "exit") else []
    barred = ("rich", "invoke", "scripts", "getpass", "argparse")
    return found + [name for name in imports("flows", text) if name.split(".")[0] in barred]


def test_use_cases_neither_print_nor_ask_nor_read_flags():
    wrong = {
        path.name: said for path in sorted((ROOT / "flows").rglob("*.py")) if (said := terminal_uses(path.read_text()))
    }
    assert not wrong
    assert len(list((ROOT / "flows").rglob("*.py"))) > 10


@pytest.mark.parametrize(
    "text",
    ["print(1)", "def f():\n    input()", "import sys\nsys.stdin.isatty()", "from rich.live import Live",
     "import sys\nsys.argv[1:]", "from invoke import Exit"],
)  # fmt: skip
def test_a_use_case_that_prints_is_found(text):
    assert terminal_uses(text)
