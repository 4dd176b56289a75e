"""Linter for job and service files: finds valid keys and commands that fail at run time, mainly under SkyPilot.

Each finding has a line number and suggests a replacement. Errors of the parser are reported as findings too. Source:
SkyPilot's guides on distributed training and on Ray.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.runs.work_kinds import FileFinding
from infra import strict_yaml
from infra.errors import UsageError
from infra.strict_yaml import YamlDocument
from packs.jobs.control import job_file

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


def lint(path: Path) -> list[FileFinding]:
    """Return the findings of a file, ordered by line.

    Raise UsageError for a file without job or service keys, and OSError for an unreadable file.
    """
    documents = strict_yaml.documents(path)
    if not any(
        isinstance(one.value, dict) and {*job_file.schema.JOB_KEYS, "service"} & set(one.value) for one in documents
    ):
        raise UsageError(f"{path}: not a job file: `run`, `setup`, `resources` and `service` are missing")
    written = path.read_text(encoding="utf-8").splitlines()
    found = [each for one in documents if isinstance(one.value, dict) for each in _findings(one, written)]
    if not any("service" in one.value for one in documents if isinstance(one.value, dict)):
        try:
            job_file.load(path)
        except UsageError as error:
            line, _, words = str(error).removeprefix(f"{path}: line ").partition(": ")
            found.append(FileFinding(int(line), words) if line.isdecimal() else FileFinding(1, str(error)))
    return sorted(dict.fromkeys(found), key=lambda one: one.line)


def _findings(document: YamlDocument, written: Sequence[str]) -> Iterator[FileFinding]:
    said = document.value
    listens: list[tuple[int, str]] = []
    for key in TEXTS:
        text = said.get(key)
        words_of = text.splitlines() if isinstance(text, str) else []
        begins = document.line(key)
        if words_of and words_of[0].strip() not in written[begins - 1]:
            begins += 1  # A block scalar begins on the line below the key.
        for line, words in enumerate(words_of, begins):
            if words.lstrip().startswith("#"):
                continue
            yield from (FileFinding(line, f"{key}: {told}") for rule, told in RULES if re.search(rule, words))
            if key == "setup" and re.search(r"\bray\s+start\b", words):
                yield FileFinding(
                    line,
                    "setup: this section runs once per machine, and a Ray from `setup` is gone when `run` starts "
                    "again; start Ray in `run`",
                )
            listens += [(line, one) for one in LISTENS.findall(words) if "ray start" not in words]
    resources = said.get("resources")
    ports = str(resources.get("ports", "")) if isinstance(resources, dict) else ""
    for line, one in listens:
        if one not in re.findall(r"\d+", ports) and "-" not in ports:
            yield FileFinding(
                line,
                f"port {one} is not among resources.ports, so SkyPilot does not open the port (Slipway: inv "
                f"forward RUN {one})",
            )
    if "service" in said and not ports:
        yield FileFinding(
            document.line("service"), "service: resources.ports is missing, so replicas cannot be reached"
        )
    for section in ("envs", "secrets"):
        values = said.get(section)
        for name, value in values.items() if isinstance(values, dict) else ():
            as_written = document.texts.get((section, name))
            if isinstance(value, (bool, int, float)) and as_written is not None and str(value) != as_written:
                yield FileFinding(
                    document.line(section, name), f"{section}: SkyPilot reads {name} as {value}; write '{as_written}'"
                )
