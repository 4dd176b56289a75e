"""Linter for job and service files: finds valid keys and commands that fail at run time, mainly under SkyPilot.

Each finding has a line number and suggests a replacement. The refusals of a launch are findings too. Source:
SkyPilot's guides on distributed training and on Ray.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.runs.work_kinds import FileFinding
from flows.specs.launch import LaunchSpec
from infra import strict_yaml
from infra.errors import UsageError
from infra.selection import missing_programs
from infra.settings import MARKET, VENDORS, is_rented, is_secret
from infra.strict_yaml import YamlDocument
from packs.jobs.control import job_file, machines, placeholders, resolve, training
from packs.jobs.control.refusals import Refusals
from serve import file_checks, file_refusals
from store import packs

TEXTS = ("setup", "run")
LISTS = "SKYPILOT_NODE_IPS|SKYPILOT_SETUP_NODE_IPS|SKYPILOT_TASK_IDS"
RULES = (
    (
        r"\bray\s+stop\b",
        "`ray stop` also ends SkyPilot's own Ray; write ray.shutdown() in Python, or: pkill -f 'ray "
        "start --head --port=PORT'",
    ),
    (
        r"ray\.init\(\s*(address\s*=\s*)?[\"']auto[\"']|RAY_ADDRESS=[\"']?auto\b",
        "`auto` finds SkyPilot's own Ray; give the address of your Ray, such as HEAD:6379",
    ),
    (r"\bray\s+start\b.*--port[= ]6380\b", "6380 is the port of SkyPilot's own Ray; leave --port out (6379)"),
    (rf"(?<![\"'\w])\$\{{?(?:{LISTS})\b\}}?(?![\"'\w])", 'without quotes the lines are joined; write "$NAME"'),
    (
        r"--master[-_]port[= ]\d+|\bMASTER_PORT=\d+",
        "with a fixed port, two jobs on one machine would use the same port; write $MASTER_PORT",
    ),
)
LISTENS = re.compile(r"--port[= ](\d{2,5})\b")


def lint(path: Path, provider: str = "") -> list[FileFinding]:
    """Return the lines that a launch refuses, and the lines that fail later, ordered by line.

    provider: the provider of the launch; "" = the provider of the file, or any vendor. Raise UsageError for a file
    without job or service keys, and OSError for an unreadable file.
    """
    path.open("rb").close()
    refused = Refusals(str(path))
    documents: list[YamlDocument] = []
    with refused.collecting():
        documents = strict_yaml.documents(path)
    said = [one.value for one in documents if isinstance(one.value, dict)]
    if not refused.found and not any({*job_file.schema.JOB_KEYS, "service"} & set(one) for one in said):
        raise UsageError(f"{path}: not a job file: `run`, `setup`, `resources` and `service` are missing")
    written = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [each for one in documents if isinstance(one.value, dict) for each in _findings(one, written, provider)]
    if provider not in packs.engines() and any("service" in one for one in said):
        _collect_of_service(path, provider, documents[0], refused)
    elif not refused.found:
        _collect(path, provider, refused)
    return sorted(dict.fromkeys([*refused.found, *found]), key=lambda one: one.line)


def _collect_of_service(path: Path, provider: str, document: YamlDocument, refused: Refusals) -> None:
    """Collect the lines that `serve.up` refuses."""
    with refused.collecting():
        for text in file_checks.refusals_of(path, candidates=(provider,) if provider not in ("", MARKET) else ()):
            refused.add(file_refusals.line_of(document, text), text)


def _collect(path: Path, provider: str, refused: Refusals) -> None:
    """Collect the lines that a launch refuses."""
    file = job_file.read(path, refused)
    name = provider or resolve.provider_of(file, LaunchSpec(dry_run=True))
    is_own = bool(name) and not is_rented(name) and name not in packs.engines()
    resolve.check(file, refused, name, not is_own, is_own, is_rehearsed=False)
    if training.is_training(file) and not refused.found:
        values = {key: value for key, value in file.tasks[0].envs.items() if value is not None}
        if len(values) == len(file.tasks[0].envs):  # Otherwise a flag may depend on a typed value.
            with refused.collecting():
                training.given_flags(file, LaunchSpec(), values)


def _missing_programs(document: YamlDocument, written: Sequence[str], provider: str) -> Iterator[FileFinding]:
    """Yield the calls of programs that the machines of the provider lack; "" for the provider of the file."""
    said, resources = document.value, document.value.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    named = "" if "service" in said else str(resources.get("infra") or resources.get("cloud")).partition("/")[0].lower()
    providers = [one for one in (provider, named) if one in machines.accepted_providers() or one in packs.engines()]
    scripts = {key: said[key] for key in TEXTS if isinstance(said.get(key), str)}
    num_nodes = said.get("num_nodes")
    for one in missing_programs.find(
        scripts,
        providers[:1] or tuple(VENDORS),
        num_nodes if isinstance(num_nodes, int) else 1,
        bool(resources.get("image_id")),
    ):
        yield FileFinding(
            _begin(document, one.section, written) + one.line, f"{one.section}: {one.text}", is_refused=False
        )


def _begin(document: YamlDocument, key: str, written: Sequence[str]) -> int:
    """Return the line at which the text of a key begins."""
    begins, words = document.line(key), str(document.value.get(key) or "").splitlines()
    # A block scalar begins on the line below the key.
    return begins + (1 if words and words[0].strip() not in written[begins - 1] else 0)


def _findings(document: YamlDocument, written: Sequence[str], provider: str) -> Iterator[FileFinding]:
    said = document.value
    yield from _missing_programs(document, written, provider)
    listens: list[tuple[int, str]] = []
    resources = said.get("resources")
    for key in TEXTS:
        text = said.get(key)
        words_of = text.splitlines() if isinstance(text, str) else []
        for line, words in enumerate(words_of, _begin(document, key, written)):
            if words.lstrip().startswith("#"):
                continue
            yield from (FileFinding(line, f"{key}: {told}", False) for rule, told in RULES if re.search(rule, words))
            if key == "setup" and re.search(r"\bray\s+start\b", words):
                yield FileFinding(
                    line,
                    "setup: this section runs once per machine, and a Ray from `setup` is gone when `run` starts "
                    "again; start Ray in `run`",
                    False,
                )
            listens += [(line, one) for one in LISTENS.findall(words) if "ray start" not in words]
    ports = str(resources.get("ports", "")) if isinstance(resources, dict) else ""
    for line, one in listens:
        if one not in re.findall(r"\d+", ports) and "-" not in ports:
            yield FileFinding(
                line,
                f"port {one} is not among resources.ports, so SkyPilot does not open the port (Slipway: inv "
                f"forward RUN {one})",
                False,
            )
    if "service" in said and not ports:
        yield FileFinding(
            document.line("service"), "service: resources.ports is missing, so replicas cannot be reached", False
        )
    for section in ("envs", "secrets"):
        values = said.get(section)
        for name, value in values.items() if isinstance(values, dict) else ():
            as_written = document.texts.get((section, name))
            is_hidden = section == "secrets" or is_secret(str(name))
            if is_hidden and isinstance(value, str) and placeholders.is_placeholder(value) and "service" not in said:
                yield FileFinding(document.line(section, name), f"{section}: {placeholders.advice(name)}", False)
            if isinstance(value, (bool, int, float)) and as_written is not None and str(value) != as_written:
                reading = "a number or a truth value" if is_hidden else value
                quoted = "the value in quotes" if is_hidden else f"'{as_written}'"
                yield FileFinding(
                    document.line(section, name),
                    f"{section}: SkyPilot reads {name} as {reading}; write {quoted}",
                    False,
                )
