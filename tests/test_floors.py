"""Imports go down: the table of the house, held against every file."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import packs

ROOT = Path(__file__).parent.parent
FLOORS = ("infra", "data", "trainer", "serve", "store", "sdk", "flows", "scripts", "packs", "tests", "bench")
FLOORS += ("tasks",)
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
PLAN = (
    "trainer.config",
    "trainer.memory",
    "trainer.records",
    "trainer.profiles",
    "trainer.recipes",
    "trainer.reuse",
    "trainer.fingerprints",
)
PLAN += (
    "data.config",
    "data.errors",
    "data.manifest",
    "data.references",
    "data.verify",
    "store.manifest",
    "store.extensions",
    "infra.records",
    "infra.errors",
    "infra.agent.job",
)
# What control code may import of training: its plan, its figures, and the light records beside that.
LIGHT = (*PLAN, "trainer.plan", "trainer.model.huggingface", "data.text.remote")
LIGHT += (
    "trainer.reporting.jsonl_log",
    "trainer.reporting.run_report",
    "trainer.reporting.compared",
    "trainer.reporting.comparison",
    "trainer.rewards.jail",
)
# From the most special to the most general: whose files, what they may import of the house.
TABLE = (
    ("infra.agent", ("infra.agent",)),
    ("store", ("store",)),
    ("sdk", ("sdk",)),
    ("infra", ("infra", "store")),
    ("data", ("data", "store")),
    ("trainer.plan", (*PLAN, "trainer.plan")),
    ("trainer", ("trainer", "data", "store")),
    ("serve", ("serve", "infra", "store")),
    ("flows", ("flows", "infra", "serve", "store", *LIGHT)),
    ("scripts", ("scripts", "flows", "infra", "data", "trainer", "serve", "store")),
    ("tasks", ("scripts",)),
)
# The rooms of a pack: what each may import of the core, and which rooms of its own pack and of those that it needs.
ROOMS = {
    "pack": (("store.packs",), ()),
    "records": (("trainer.records", "infra.records", "data.errors", "store.outside"), ("records",)),
    "agent": (("infra.agent",), ("agent",)),
    "data": (("data", "store"), ("data", "records")),
    "trainer": (("trainer", "data", "store"), ("trainer", "data", "records")),
    "serve": (("serve", "infra", "store"), ("serve", "records")),
    "control": (("flows", "infra", "serve", "store", *LIGHT), ("control", "serve", "records", "agent")),
    "commands": (
        ("scripts", "flows", "infra", "data", "trainer", "serve", "store"),
        ("commands", "control", "serve", "records"),
    ),
    "views": (("flows", "infra", "serve", "store", *LIGHT), ("views", "control", "serve", "records")),
}

# The rooms of a floor, from the lowest to the highest: each may import itself, those before it, and the floor's files.
ORDER = {
    "infra": (
        "agent",
        "transport",
        "market",
        "machines",
        "providers",
        "ledger",
        "selection",
        "jobs",
        "notices",
        "runs",
        "control",
        "rehearsal",
    ),
    "infra.agent": ("environments", "execution", "lifecycle"),
    "infra.providers": ("promises", "runpod"),
    "infra.runs": ("sync", "keepers"),
    "infra.transport": ("scan", "streams"),
    "infra.rehearsal": ("vendors",),
    "data": ("text", "shards", "tokens", "chat", "problems", "report", "engines"),
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
    # From what is typed to a run at work, from there to its story, and to what keeps many of them going.
    "flows": (
        "specs",
        "limits",
        "models",
        "planning",
        "runs",
        "jobs",
        "supervisor",
        "reading",
        "history",
        "pods",
        "services",
        "installation",
    ),
    # A noun's commands use those of another one in four places: chat asks a service, a report shows evaluations, the
    # work of a pod is followed as a launch is, and doctor looks at everything.
    "scripts": (
        "cli",
        "market",
        "services",
        "models",
        "data",
        "pools",
        "store",
        "runs",
        "pods",
        "control",
        "project",
    ),
}
# Who knows of the rehearsal: commands, and the duties of the supervisor, which end with the world that they are in.
REHEARSING = ("infra.rehearsal", "flows.supervisor", "scripts")
# Where a module is imported by a text that stands elsewhere: in a table of commands, of phases, in the
# settings, or in a list of the standard library.
BY_TABLE = (
    "data.text.pydocs",
    "scripts.cli.command",
    "store.extensions.run",
    "store.packs",
    "trainer.__main__",
    "trainer.rewards.sandbox.preload",
)
# Whoever imitates a vendor speaks of the same things as its client; a vendor's records are called as it calls them.
IMITATED = ("infra.rehearsal", "infra.providers.lium", "infra.providers.runpod", "infra.providers.shadeform")
ALONE = {  # a program of its own, which brings along all that it uses
    "infra.agent": ("Backoff",),
    "sdk": ("CheckpointError", "Saver"),
}
MOST_FILES = 17  # of one folder, beside its __init__.py
MOST_PARAMETERS = 10
# Floors whose functions' docstrings begin with a verb. pyproject.toml keeps the tests from ruff's D rules as well.
IMPERATIVE = ("infra", "data", "serve", "store", "sdk", "bench", "scripts", "flows", "trainer", "packs")
# First words that ruff's D401, which knows verbs by a list, lets through.
NO_VERBS = set(
    "A After All Also An And Another Around As At Back Because Before Behind Between Beyond Bits Both But By Bytes "
    "Dollars During Each Either Equal Every Everything Figures First For From Half Here How Ids If In Inside Into "
    "It Its Kind Like Many Meanwhile Most Much Names Never No Nobody None Not Nothing Of Often Oldest On Once One "
    "Only Or Others Our Ours Out Outside Per Perhaps Rows Seconds Several Since So Some Something Stable Such "
    "Tensors That The Their Then There These They This Those Through To Together Tokens Two UTC Under Until Up Upon "
    "We What Whatever When Whenever Where Whether Which While Who Whoever Whole Whose Why With Within Without".split()
)

# First words of docstrings that leave out what they are about: "Of each answer.", "How it ended."
RIDDLES = set(
    "As At By For From How If In Its Of On Once So That Those To Until What Whatever When Where Whether Which Who "
    "Whoever Whose Why With".split()
)
CLEAR = (["How", "long"], ["How", "many"], ["How", "often"])


def sources() -> list[Path]:
    found = [ROOT / "tasks.py"]
    for floor in FLOORS:
        found += sorted((ROOT / floor).rglob("*.py"))
    return found


def is_by_text(node: ast.AST) -> bool:
    """Return whether it is a call of `import_module`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")


def texts(node: ast.AST) -> list[str]:
    """Return the texts among the arguments of a call."""
    given = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
    return [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def imports(module: str, text: str, is_package: bool = False) -> Iterator[str]:
    """Dotted names that `text` imports, anywhere in it; `from a import b` gives `a.b`.

    A module that `import_module` gets as a text is among them, and what a table of commands names: "a.b:Flags".
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif is_by_text(node):
            yield from texts(node)[:1]
        elif isinstance(node, ast.Call) and lies_in(module, "scripts"):
            yield from (one.replace(":", ".") for one in texts(node) if re.fullmatch(r"scripts(\.\w+)+(:\w+)?", one))
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level + is_package or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{one.name}" for one in node.names)


def lies_in(name: str, floor: str) -> bool:
    return name == floor or name.startswith(floor + ".")


def of_pack(module: str) -> tuple[str, ...]:
    """Return what a module of a pack may import of the project: by its room, and by the packs that its pack needs."""
    _, name, room = [*module.split("."), "", ""][:3]
    core, own = ROOMS.get(room, ((), ()))
    # A pack whose needs are not there is off, and its folder is held all the same.
    needs = packs.installed()[name].needs if name in packs.installed() else packs.known().get(name, {}).get("needs", ())
    reachable = (name, *needs)
    return (*core, *(f"packs.{one}.{each}" for one in reachable for each in own))


def complaints(module: str, text: str, is_package: bool = False) -> list[str]:
    """Return the modules that a module imports although its floor may not."""
    allowed = of_pack(module) if lies_in(module, "packs") else None
    if allowed is None:
        allowed = next((names for floor, names in TABLE if lies_in(module, floor)), FLOORS)
    bad = []
    for name in imports(module, text, is_package):
        ours = name.split(".")[0] in FLOORS
        wrong = ours and not any(lies_in(name, one) for one in allowed)
        room = module.split(".")[2:3] if lies_in(module, "packs") else []
        is_training = lies_in(module, "trainer") or room == ["trainer"]
        wrong |= is_training and not lies_in(module, "trainer.plan") and lies_in(name, "trainer.plan")
        is_bare = lies_in(module, "infra.agent") or room in (["agent"], ["pack"])
        wrong |= not ours and is_bare and name.split(".")[0] not in sys.stdlib_module_names
        bad += [f"{module} imports {name}"] if wrong else []
    return bad


def test_every_file_imports_only_what_its_floor_may():
    bad = []
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        bad += complaints(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    assert not bad


def test_a_pack_is_one_literal_record():
    for path in sorted(packs.FOLDER.glob("*/pack.py")):
        about, imported, record = ast.parse(path.read_text(encoding="utf-8")).body
        assert isinstance(about, ast.Expr) and isinstance(imported, ast.ImportFrom) and isinstance(record, ast.Assign)
        calls = [node.func for node in ast.walk(record) if isinstance(node, ast.Call)]
        assert {ast.unparse(one) for one in calls} <= {"Pack", "PackCommand", "PackProvider"}, path
        assert not [node for node in ast.walk(record.value) if isinstance(node, (ast.Lambda, ast.BinOp, ast.ListComp))]


def test_the_core_imports_no_pack_by_statement_or_by_text():
    named = re.compile(rf"packs\.({'|'.join(packs.known())})\b")
    core = [path for path in sources() if path.relative_to(ROOT).parts[0] not in ("packs", "tests", "bench")]
    assert not [str(path.relative_to(ROOT)) for path in core if named.search(path.read_text(encoding="utf-8"))]


def test_a_pack_has_no_other_rooms_than_those_of_the_table():
    inside = {path.relative_to(packs.FOLDER).parts[1] for path in packs.FOLDER.glob("*/*/*.py")}
    assert inside <= ROOMS.keys() - {"pack"}


def test_packs_need_each_other_in_no_circle():
    assert circle({name: set(pack.needs) for name, pack in packs.installed().items()}) == []


@functools.cache
def tree() -> dict[str, set[str]]:
    """Return what each module of the product imports of it, by their dotted names; a package counts as a module."""
    found = {}
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not module.startswith(("tests.", "bench.")):
            found[module] = path
    edges: dict[str, set[str]] = {}
    for module, path in found.items():
        names = imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
        known = (next((one for one in (name, name.rpartition(".")[0]) if one in found), module) for name in names)
        edges[module] = {*known} - {module}
    return edges


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Return nodes that lead to each other, [] when there are none."""
    open_, done = list[str](), set[str]()

    def visit(node: str) -> list[str]:
        if node in open_:
            return [*open_[open_.index(node) :], node]
        if node in done:
            return []
        open_.append(node)
        found = next((way for after in sorted(edges.get(node, ())) if (way := visit(after))), [])
        open_.pop()
        done.add(node)
        return found

    return next((way for node in sorted(edges) if (way := visit(node))), [])


def test_a_command_that_is_declared_imports_what_its_texts_name():
    text = '@command("scripts.pods.apply", "scripts.pods.flags:CreateFlags", example="inv apply")\ndef apply(): ...'
    assert [*imports("scripts.market.tasks", text)] == ["scripts.pods.apply", "scripts.pods.flags.CreateFlags"]
    assert [*imports("flows.pods.apply", text)] == []


def test_no_file_imports_one_that_imports_it():
    assert circle(tree()) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def room_of(floor: str, module: str) -> str:
    """Return the room of a floor that a module is in, "" when it is none of them."""
    rest = module.removeprefix(f"{floor}.").split(".")
    return rest[0] if module.startswith(f"{floor}.") and rest[0] in ORDER[floor] else ""


def test_every_folder_of_a_floor_has_its_place_in_the_order():
    folders = {path.parent.relative_to(ROOT).parts for path in sources()}
    others = ("tests", "bench", "packs")
    inside = {(".".join(one[:-1]), one[-1]) for one in folders if len(one) > 1 and one[0] not in others}
    assert inside == {(floor, room) for floor, rooms in ORDER.items() for room in rooms}


def test_what_is_imported_by_a_text_from_elsewhere_is_known():
    by_table = set()
    for path in sources():
        if not path.is_relative_to(ROOT / "tests"):
            calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_by_text(node)]
            if [one for one in calls if not texts(one)]:
                by_table.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert by_table == set(BY_TABLE)


@pytest.mark.parametrize("floor", ORDER)
def test_rooms_import_only_rooms_below_them(floor):
    up = []
    for module, names in tree().items():
        here, rooms = room_of(floor, module), ORDER[floor]
        ups = [name for name in names if here and rooms.index(room_of(floor, name) or here) > rooms.index(here)]
        up += [f"{module} imports {name}" for name in ups]
    assert not up


def test_a_file_of_a_floor_that_a_room_imports_imports_no_room_above_it():
    """Such a file would carry an import up: folder-wide, files of the floor count one by one."""
    for floor in ORDER:
        edges: dict[str, set[str]] = {}
        for module, names in tree().items():
            if lies_in(module, floor) and not module.endswith("__main__"):
                node = f"{floor}.{room_of(floor, module)}" if room_of(floor, module) else module
                into = {f"{floor}.{room_of(floor, one)}" if room_of(floor, one) else one for one in names}
                edges.setdefault(node, set()).update(one for one in into if lies_in(one, floor) and one != node)
        assert circle(edges) == []


def test_the_rehearsal_is_imported_by_commands_and_the_supervisor_alone():
    commands = tuple(f"packs.{name}.commands" for name in packs.installed())
    others = [module for module in tree() if not any(lies_in(module, one) for one in (*REHEARSING, *commands))]
    assert not [one for one in others if any(lies_in(name, "infra.rehearsal") for name in tree()[one])]


@functools.cache
def classes() -> dict[str, list[str]]:
    """Return the modules that define each public class of the product, by the name of the class."""
    found: dict[str, list[str]] = {}
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not module.startswith(("tests.", "bench.")) and not any(lies_in(module, one) for one in IMITATED):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(module)
    return found


def test_no_name_of_a_class_stands_for_two_things():
    twice = {}
    for name, modules in classes().items():
        others = [one for one in modules if not any(lies_in(one, at) and name in names for at, names in ALONE.items())]
        if len(others) > 1:
            twice[name] = others
    assert not twice


def test_every_exception_from_that_is_needed():
    found = classes()
    assert not [name for ones in ALONE.values() for name in ones if len(found[name]) < 2]


def test_no_folder_holds_more_than_one_can_look_over():
    counts = {}
    for path in sources():
        if path.name != "__init__.py" and not path.is_relative_to(ROOT / "tests"):
            counts[path.parent] = counts.get(path.parent, 0) + 1
    assert not {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > MOST_FILES}


def crowded(text: str) -> list[str]:
    """Return the functions of a file that take more values than a reader keeps apart, with how many."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            count = sum(len(ones) for ones in (node.args.posonlyargs, node.args.args, node.args.kwonlyargs))
            found += [f"{getattr(node, 'name', 'lambda')}: {count}"] if count > MOST_PARAMETERS else []
    return found


def test_no_function_has_more_parameters_than_ten():
    assert not {str(path.relative_to(ROOT)): said for path in sources() if (said := crowded(path.read_text("utf-8")))}
    assert crowded(f"def f({', '.join(f'a{one}' for one in range(11))}): ...") == ["f: 11"]


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
        ("flows.runs.launch", "from packs.drill.control import drill"),
        ("packs.drill.pack", "import httpx"),
        ("packs.drill.pack", "from packs.drill.control import drill"),
        ("packs.drill.control.drill", "from packs.drill.commands import drill"),
        ("packs.drill.control.drill", "from packs.pipeline.control import workspace"),
        ("packs.drill.control.drill", "from scripts.cli import render"),
        ("packs.drill.trainer.loss", "from trainer.plan import resolve"),
        ("packs.drill.agent.step", "import msgspec"),
        ("packs.drill.records.row", "from infra import settings"),
        ("packs.drill.elsewhere", "from infra import records"),
    ],
)
def test_an_import_that_goes_up_is_seen(module, text):
    assert complaints(module, text)


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
        ("packs.drill.commands.drill", "from scripts.cli import render\nfrom packs.drill.control import drill"),
        ("packs.drill.control.drill", "from flows import planning\nfrom data.manifest import read_manifest"),
        ("packs.drill.trainer.loss", "from trainer import loop\nimport torch"),
        ("packs.drill.agent.step", "import os\nfrom infra.agent.job import Job"),
        ("tests.test_x", "from scripts.cli import render"),
    ],
)
def test_an_import_that_goes_down_is_let_through(module, text):
    assert not complaints(module, text)


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
def test_what_is_decided_about_a_service_needs_no_server():
    names = (
        "service, policy.replica_states, policy.autoscaler, policy.update, gateway.routing, gateway.queue, "
        "gateway.request_body, gateway.keys, gateway.sse"
    )
    probe = (
        f"import json, sys, {', '.join(f'serve.{one}' for one in names.split(', '))}; print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"aiohttp", "httptools", "prometheus_client", "uvloop", "httpx", "torch"}.isdisjoint(json.loads(done.stdout))


@pytest.mark.process
@pytest.mark.parametrize("name", packs.installed())
def test_the_record_and_the_use_cases_of_a_pack_need_no_training_library(name):
    rooms = ("pack.py", "records/**/*.py", "control/**/*.py")
    files = [path.relative_to(ROOT) for one in rooms for path in (packs.FOLDER / name).glob(one)]
    modules = ", ".join(".".join(path.with_suffix("").parts) for path in files)
    probe = f"import json, sys, {modules}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"torch", "pyarrow", "tokenizers"}.isdisjoint(json.loads(done.stdout))


@pytest.mark.process
def test_listing_the_commands_imports_nothing_heavy():
    probe = "import json, sys, tasks; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert HEAVY.isdisjoint(loaded)
    assert not [name for name in loaded if name.endswith(".flags")], "a command's record is made when it is named"
    of_packs = {name for name in loaded if lies_in(name, "packs")}
    there = [path.parent.name for path in packs.FOLDER.glob("*/pack.py")]
    assert of_packs - {"packs"} == {one for name in there for one in (f"packs.{name}", f"packs.{name}.pack")}


def spoken(text: str) -> list[str]:
    """Return what in a file's code prints, asks or looks at the terminal, by name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in ("print", "input", "breakpoint"):
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            found += [f"sys.{node.attr}"] if node.attr in ("stdin", "stdout", "stderr", "argv", "exit") else []
    barred = ("rich", "invoke", "scripts", "getpass", "argparse")
    return found + [name for name in imports("flows", text) if name.split(".")[0] in barred]


def test_use_cases_neither_print_nor_ask_nor_read_flags():
    wrong = {path.name: said for path in sorted((ROOT / "flows").rglob("*.py")) if (said := spoken(path.read_text()))}
    assert not wrong
    assert len(list((ROOT / "flows").rglob("*.py"))) > 10


@pytest.mark.parametrize(
    "text",
    ["print(1)", "def f():\n    input()", "import sys\nsys.stdin.isatty()", "from rich.live import Live",
     "import sys\nsys.argv[1:]", "from invoke import Exit"],
)  # fmt: skip
def test_a_use_case_that_speaks_is_seen(text):
    assert spoken(text)


def without_verb(text: str) -> list[str]:
    """Return the functions of a file whose docstring does not begin with a verb, by name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (said := ast.get_docstring(node)):
            first = said.split()[0].rstrip(".,:;")
            if not first.isalpha() or not first[0].isupper() or first in NO_VERBS:
                found.append(f"{node.name}: {first}")
    return found


def test_docstrings_of_functions_begin_with_a_verb():
    files = [path for path in sources() if path.relative_to(ROOT).parts[0] in IMPERATIVE]
    wrong = {str(path.relative_to(ROOT)): said for path in files if (said := without_verb(path.read_text()))}
    assert not wrong
    assert len(files) > 500


@pytest.mark.parametrize("said", ["Of a row.", "Whether it lives.", "`text` as bytes.", "(ids, mask) of a row."])
def test_a_docstring_without_a_verb_is_seen(said):
    assert without_verb(f'def f():\n    """{said}"""\n')


def riddles(text: str) -> list[str]:
    """Return the docstrings of a file that do not begin with what they are about, of fields and modules too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said = node.value.value.split()
            is_riddle = said and said[0].rstrip(".,:;") in RIDDLES and said[:2] not in CLEAR
            found += [f"{node.lineno}: {' '.join(said[:5])}"] if is_riddle else []
    return found


def test_docstrings_begin_with_what_they_are_about():
    files = [*sources(), *sorted((ROOT / "tests").rglob("*.py"))]
    assert not {str(path.relative_to(ROOT)): found for path in files if (found := riddles(path.read_text()))}


@pytest.mark.parametrize("said", ["Of each answer.", "Whether it lives.", "Where: in which file."])
def test_a_riddle_is_seen_in_a_module_a_function_and_a_field(said):
    for text in ('"""{}"""', 'def f():\n    """{}"""', 'class A:\n    x: int = 0\n    """{}"""'):
        assert riddles(text.format(said))
    assert not riddles('"""The state of a pod, by its id."""') and not riddles('"""How long one probe may take."""')
