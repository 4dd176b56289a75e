"""How many of other people's task files does Slipway accept, of the files that SkyPilot accepts?

    python -m tests.packs.jobs.corpus FOLDER SKY_PYTHON [--show] [--out FILE]

FOLDER: a checkout with SkyPilot YAML files, such as a fork of SkyPilot. SKY_PYTHON: a Python with SkyPilot 0.14.1, the
judge. Each file is planned in an empty folder with stand-ins for the local files that the file names, and with a value
for each variable without one. A file counts as accepted if every key and variable is in the plan, or named in the plan
as without effect (`accounted`). A file with `service` is planned by `serve.up`. Through SkyPilot, the task or service
that Slipway would submit must be valid for SkyPilot, too.
"""

import argparse
import collections
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from string import Template
from typing import Any

import yaml

from flows.runs import work_kinds
from flows.services import serve
from flows.specs.service import ServeSpec
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.records import Plan
from infra.selection import registry
from infra.settings import Settings
from scripts.runs.launch import LaunchFlags
from serve import own_image, own_run, revision
from serve.replicas import placement
from store import packs
from tests.packs.jobs import accounted
from tests.world import ROOT

VALIDATOR = Path(__file__).with_name("sky_validator.py")
PROVIDERS = ("runpod", "lium", "shadeform", "skypilot")
VALUE = "a-value"


@dataclasses.dataclass
class Sample:
    """A task file, with stand-ins for what the file needs."""

    name: str
    text: str
    documents: list[Any]
    values: dict[str, str]
    """Values for the variables without one."""
    folder: Path

    @property
    def is_service(self) -> bool:
        return any("service" in one for one in self.documents)


def samples(root: Path, scratch: Path) -> Iterator[Sample]:
    """Yield the YAML files of a folder that are mappings."""
    for number, path in enumerate(sorted((*root.rglob("*.yaml"), *root.rglob("*.yml")))):
        text = path.read_text("utf-8", errors="replace")
        try:
            documents = [one for one in yaml.safe_load_all(text) if one]
        except yaml.YAMLError:
            continue
        if documents and all(isinstance(one, dict) for one in documents):
            yield _with_stand_ins(str(path.relative_to(root)), text, documents, scratch / str(number))


def _with_stand_ins(name: str, text: str, documents: list[Any], folder: Path) -> Sample:
    home = folder.with_name(f"{folder.name}-home")
    for one in (folder, home):
        one.mkdir(parents=True)
    values: dict[str, str] = {}
    for one in documents:
        for section in ("envs", "secrets"):
            said = one.get(section)
            pairs = said.items() if isinstance(said, dict) else ((each, None) for each in said or ())
            values |= {str(key): VALUE for key, value in pairs if value is None}
    for one in documents:
        envs = one.get("envs") if isinstance(one.get("envs"), dict) else {}
        known = {**{str(key): str(value) for key, value in envs.items() if value is not None}, **values}
        for source, is_folder in _local_sources(one):
            if source.startswith("/"):
                moved = f"{folder}/root{source}"
                text = re.sub(rf"(?<![\w.~/-]){re.escape(source)}(?![\w/-])", moved, text)
                source = moved
            at = folder / Template(source).safe_substitute(known).replace("~", str(home), 1)
            if is_folder or not at.suffix:
                at.mkdir(parents=True, exist_ok=True)
                (at / "stand-in.txt").write_text("a file\n")
            else:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text("a file\n") if not at.is_dir() else None
    (folder / "task.yaml").write_text(text)
    return Sample(name, text, [one for one in yaml.safe_load_all(text) if one], values, folder)


def _local_sources(task: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each local path that a task needs, and whether the path must be a folder."""
    if isinstance(task.get("workdir"), str):
        yield task["workdir"], True
    mounts = task.get("file_mounts")
    for one in mounts.values() if isinstance(mounts, dict) else ():
        said = one.get("source") if isinstance(one, dict) else one
        for source in said if isinstance(said, list) else [said]:
            if isinstance(source, str) and "://" not in source and source.strip():
                yield source, isinstance(one, dict) and str(one.get("mode", "MOUNT")).upper() != "COPY"


def judged(python: str, texts: Sequence[tuple[str, Mapping[str, str]]], home: Path) -> list[str]:
    """Return SkyPilot's refusal of each text, "" for a valid text."""
    environ = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [python, str(VALIDATOR)], cwd=home, input=json.dumps(texts), capture_output=True, text=True, env=environ
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [str(one) for one in json.loads(done.stdout.splitlines()[-1])]


def planned(path: Path, provider: str, values: Mapping[str, str]) -> tuple[Plan, list[Any]]:
    """Return the plan of a job file and the requests for machines, without asking a vendor. Raises SlipwayError."""
    settings = Settings.load(ROOT, {"provider": provider}, [f"{name}={value}" for name, value in values.items()])
    work = work_kinds.work_of_command(LaunchFlags(provider=provider, dry_run=True), str(path))
    spec = work.with_provider(LaunchFlags(provider=provider, dry_run=True))
    work.variables(settings)
    resolved = work.resolve(work.with_flags(spec, settings, print), settings)
    plan = resolved.work.plan(settings, resolved.request, registry.candidates(settings)[0], resolved.limits)
    return plan, [resolved.request, *resolved.others]


def served(sample: Sample, path: Path, provider: str, journal: Journal) -> list[str]:
    """Return the missing keys of a service file. Raises SlipwayError."""
    settings = Settings.load(ROOT, {}, [f"{name}={value}" for name, value in sample.values.items()])
    said: list[str] = []
    found = serve.plan(ServeSpec(config=str(path), provider=provider, name="t"), journal, settings, said.append)
    revision.check_reach(found.version, settings)
    service = found.version.service
    told = "\n".join(said)
    if found.version.engine != "run":  # The model of the file on an engine of Slipway, which the command says.
        return []
    image, *_ = own_image.ways(service, placement.candidates(found.version.provider, settings), is_rehearsed=False)
    request = dataclasses.replace(placement.request_of(service, "t-0"), image=image.booted)
    steps = own_run.steps(service, "serve", False, image.contained)
    carried = {one.config["text"].strip() for one in steps}
    (said_file,) = sample.documents
    missing = [key for key in ("run", "setup") if said_file.get(key) and str(said_file[key]).strip() not in carried]
    for key, value in (said_file.get("resources") or {}).items():
        fields = accounted.OF_REQUEST.get(key, ())
        if value and key != "ports" and not any(getattr(request, one, None) for one in fields):
            is_read = key == "use_spot" and service.file.resources.use_spot
            is_read = is_read or (key == "image_id" and image.contained)
            missing += [] if is_read or accounted.is_named(key, told) else [f"resources.{key}"]
    return missing


def verdicts(sample: Sample, provider: str, journal: Journal) -> tuple[str, Plan | None]:
    """Return "" for an accepted file, or the refusal; and the plan of a job."""
    path = sample.folder / "task.yaml"
    said = io.StringIO()
    os.environ["HOME"] = f"{sample.folder}-home"
    try:
        with chdir(sample.folder), redirect_stdout(said), redirect_stderr(said):
            if sample.is_service:
                missing = served(sample, path, provider, journal) if provider != "skypilot" else []
                plan = None
            else:
                plan, requests = planned(path, provider, sample.values)
                missing = accounted.missing(sample.documents, plan, requests, said.getvalue(), sample.values)
    except SlipwayError as error:
        return " ".join(str(error).replace(f"{path}", "FILE").replace("task.yaml", "FILE").split()), None
    except Exception as error:
        return f"FAULT {type(error).__name__}: {error}", None
    return (f"not in the plan: {', '.join(missing)}" if missing else ""), plan


def submission(sample: Sample, plan: Plan | None, folder: Path) -> dict[str, Any]:
    """Return the task that Slipway would submit to SkyPilot, or the service that `serve.up` would hand over."""
    if plan is None:
        read = packs.load("packs.skypilot.control.service_file:with_values")
        settings = Settings.load(ROOT, {}, [f"{name}={value}" for name, value in sample.values.items()])
        with chdir(sample.folder):
            (said,) = sample.documents
            full = packs.load("packs.skypilot.control.service_file:with_full_paths")
            return dict(full(read(said, sample.folder / "task.yaml", settings)))
    assert plan.job is not None
    job = dataclasses.replace(plan.job, token="sw1-corpus-0123456789abcdef")
    secrets = dict.fromkeys(job.secrets, VALUE)
    task_of = packs.load("packs.skypilot.control.task:task_of")
    keys, nodes = plan.engine_keys, plan.request.nodes
    return dict(task_of(job, nodes=nodes, keys=keys, bundle=folder, secrets=secrets, now=0.0))


def reason(text: str) -> str:
    """Return the class of a refusal: the text without names, numbers and lines of the file."""
    found = re.sub(r"FILE: \d+ lines to correct ", "", text)
    found = re.sub(r"(FILE: )?line \d+: ", "", found)
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\w.~$/{}-]*/[\w.~$/{}:-]+|\d+", "_", found)[:110]


def main(words: Sequence[str]) -> int:
    about = (__doc__ or "").split("\n")[0]
    known = argparse.ArgumentParser(prog="python -m tests.packs.jobs.corpus", description=about)
    known.add_argument("folder", type=Path)
    known.add_argument("sky_python")
    known.add_argument("--show", action="store_true", help="name every refused file")
    known.add_argument("--out", type=Path, help="write all verdicts to this JSON file")
    asked = known.parse_args(words)
    for name in ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY"):
        os.environ.setdefault(name, "a-key-that-is-never-sent")
    with tempfile.TemporaryDirectory(prefix="corpus-") as made:
        scratch = Path(made).resolve()
        os.environ["SLIPWAY_STATE_FILE"] = str(scratch / "state" / "journal.db")
        os.environ["SLIPWAY_STORE"] = str(scratch / "store")
        (scratch / "judge").mkdir()
        every = [*samples(asked.folder.resolve(), scratch)]
        refused = judged(asked.sky_python, [(one.text, one.values) for one in every], scratch / "judge")
        taken = [one for one, why in zip(every, refused, strict=True) if not why]
        print(f"{len(every)} files are mappings; SkyPilot accepts {len(taken)}\n")
        found: dict[str, dict[str, str]] = {}
        home = os.environ["HOME"]
        with Journal.open(scratch / "state" / "journal.db") as journal:
            for provider in PROVIDERS:
                seen = {one.name: verdicts(one, provider, journal) for one in taken}
                found[provider] = {name: why for name, (why, _) in seen.items()}
        os.environ["HOME"] = home
        submitted = {one.name: submission(one, seen[one.name][1], scratch) for one in taken if not seen[one.name][0]}
        texts = [(yaml.safe_dump(one), {}) for one in submitted.values()]
        for name, why in zip(submitted, judged(asked.sky_python, texts, scratch / "judge"), strict=True):
            found[PROVIDERS[-1]][name] = f"SkyPilot refuses the submitted task: {why}" if why else ""
    print(table(found, taken))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1))
    if asked.show:
        for provider, each in found.items():
            print(f"\n{provider}\n" + "\n".join(f"  {name}: {why}" for name, why in each.items() if why))
    return 0


def table(found: Mapping[str, Mapping[str, str]], taken: Sequence[Sample]) -> str:
    lines = ["| provider | jobs | services | accepted | share |", "|---|---|---|---|---|"]
    services = {one.name for one in taken if one.is_service}
    for provider, each in found.items():
        good = [name for name, why in each.items() if not why]
        of = [name for name in good if name in services]
        lines.append(
            f"| {provider} | {len(good) - len(of)} of {len(each) - len(services)} | {len(of)} of {len(services)} | "
            f"{len(good)} of {len(each)} | {100 * len(good) / max(1, len(each)):.0f} % |"
        )
    for provider, each in found.items():
        lines += ["", f"Refusals, {provider}:"]
        counted = collections.Counter(reason(why) for why in each.values() if why)
        lines += [f"{number:4} {why}" for why, number in counted.most_common(60)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
