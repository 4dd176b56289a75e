"""The layers of the project: the modules, the permitted imports of each module, and the actual imports."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from store import packs

ROOT = Path(__file__).parent.parent
FLOORS = ("infra", "data", "trainer", "serve", "store", "sdk", "flows", "scripts", "packs", "tests", "bench")
FLOORS += ("tasks",)
PLAN = (
    "trainer.config",
    "trainer.memory",
    "trainer.records",
    "trainer.profiles",
    "trainer.recipes",
    "trainer.fingerprints",
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
    "store.packs",
    "infra.records",
    "infra.errors",
    "infra.agent.job",
)
# Permitted imports of training in control code: the plan, the figures, and the light records.
LIGHT = (*PLAN, "trainer.plan", "trainer.model.huggingface", "data.text.remote", "data.chat.conversation_counts")
LIGHT += (
    "trainer.reporting.jsonl_log",
    "trainer.reporting.config_differences",
    "trainer.rewards.jail",
)
# From the most special to the most general: the files, and their permitted imports of the project.
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
# The rooms of a pack: the permitted imports of the core, of rooms of the same pack and of required packs.
ROOMS = {
    "pack": (("store.packs",), ()),
    "records": (
        (
            "trainer.records",
            "trainer.config",
            "trainer.profiles",
            "infra.records",
            "data.errors",
            "store.untrusted_input",
            "store.artifacts.model_files",
        ),
        ("records",),
    ),
    "agent": (("infra.agent",), ("agent",)),
    "data": (("data", "store"), ("data", "records")),
    "trainer": (("trainer", "data", "store"), ("trainer", "data", "records")),
    "serve": (("serve", "infra", "store"), ("serve", "records")),
    "control": (("flows", "infra", "serve", "store", *LIGHT), ("control", "serve", "records", "agent")),
    "commands": (
        ("scripts", "flows", "infra", "data", "trainer", "serve", "store"),
        ("commands", "views", "control", "serve", "records"),
    ),
    # Measurements by hand, loaded by no command.
    "bench": (FLOORS, ("records", "data", "trainer")),
    "views": (("flows", "infra", "serve", "store", *LIGHT), ("views", "control", "serve", "records")),
}


def sources() -> list[Path]:
    found = [ROOT / "tasks.py"]
    for floor in FLOORS:
        found += sorted((ROOT / floor).rglob("*.py"))
    return found


def is_by_text(node: ast.AST) -> bool:
    """Return true for a call of `import_module`."""
    called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    return called in ("import_module", "__import__")


def texts(node: ast.AST) -> list[str]:
    """Return the texts among the arguments of a call."""
    given = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
    return [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return all statements below a node, without the expressions."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, name, ()):
            yield one
            yield from statements(one)


def imports(module: str, text: str, is_package: bool = False) -> Iterator[str]:
    """Return dotted names that `text` imports, anywhere in the file; `from a import b` gives `a.b`.

    Includes a module passed to `import_module` as a text, and the names in the table of commands: "a.b:function".
    """
    parsed = ast.parse(text)
    # Calls matter in few files, and most nodes are expressions.
    has_calls = "import_module" in text or "__import__" in text or lies_in(module, "scripts")
    for node in ast.walk(parsed) if has_calls else statements(parsed):
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


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the imports of a file of the project; several tests read all files, which takes seconds."""
    return tuple(imports(module_of(path), path.read_text(encoding="utf-8"), path.name == "__init__.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def lies_in(name: str, floor: str) -> bool:
    return name == floor or name.startswith(floor + ".")


def of_pack(module: str) -> tuple[str, ...]:
    """Return the permitted imports of a module of a pack, by room and by the required packs."""
    _, name, room = [*module.split("."), "", ""][:3]
    core, own = ROOMS.get(room, ((), ()))
    # A pack without the required packs is off, but the folder is checked too.
    needs = packs.installed()[name].needs if name in packs.installed() else packs.known().get(name, {}).get("needs", ())
    reachable = (name, *needs)
    return (*core, *(f"packs.{one}.{each}" for one in reachable for each in own))


def complaints(module: str, imported: Iterable[str]) -> list[str]:
    """Return the imports of a module forbidden by the layer."""
    allowed = of_pack(module) if lies_in(module, "packs") else None
    if allowed is None:
        allowed = next((names for floor, names in TABLE if lies_in(module, floor)), FLOORS)
    bad = []
    for name in imported:
        ours = name.split(".")[0] in FLOORS
        wrong = ours and not any(lies_in(name, one) for one in allowed)
        room = module.split(".")[2:3] if lies_in(module, "packs") else []
        is_training = lies_in(module, "trainer") or room == ["trainer"]
        wrong |= is_training and not lies_in(module, "trainer.plan") and lies_in(name, "trainer.plan")
        is_bare = lies_in(module, "infra.agent") or room in (["agent"], ["pack"])
        wrong |= not ours and is_bare and name.split(".")[0] not in sys.stdlib_module_names
        bad += [f"{module} imports {name}"] if wrong else []
    return bad


@functools.cache
def tree() -> dict[str, set[str]]:
    """Return the imports of each product module within the product, by dotted names; a package counts as a module."""
    found = {}
    for path in sources():
        module = module_of(path)
        if not module.startswith(("tests.", "bench.")) and ".bench." not in module:
            found[module] = path
    edges: dict[str, set[str]] = {}
    for module, path in found.items():
        pairs = ((name, name.rpartition(".")[0]) for name in imports_of(path))
        known = (next((one for one in pair if one in found), module) for pair in pairs)
        edges[module] = {*known} - {module}
    return edges


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Return nodes in a circle of imports, [] without a circle."""
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


def loaded_by(*modules: str) -> list[str]:
    """Return the modules loaded by a process with these imports."""
    probe = f"import json, sys, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found
