"""Commands about the checkout itself: its settings, what the machine has, tests and checks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from invoke import Exit

from scripts.cli.invoke_patch import command, print_json, words_after_dashes
from scripts.cli.render import columns
from scripts.project import debian

ROOT = Path(__file__).resolve().parents[2]
TYPED = ("infra", "data", "store", "serve", "flows", "scripts", "tests/programs")


@command(
    help={
        "schema": "pod: what may stand in a file for inv apply, with the defaults",
        "profile": "all of a recipe of model and training instead: runpod_2b, or a .yaml file",
        "params": "only how many parameters its model has",
        "json": "one JSON document",
    }
)
def config(c, schema="", profile="", params=False, json=False):
    """Show every setting, its value and where it came from.

    With --profile: a recipe instead. With --schema: the keys of a file.
    """
    from infra.settings import Settings

    if profile or params:
        from scripts.models.fit import show

        show(profile or Settings.load(ROOT).profile, params, json)
        return

    if schema:
        show_schema(schema, json)
        return
    shown = Settings.load(ROOT).shown()
    if json:
        print_json({one.name: one for one in shown})
    else:
        print(columns([(one.name, one.value, one.source) for one in shown]))


def show_schema(schema: str, as_json: bool) -> None:
    from infra.errors import UsageError
    from infra.runs import pod_set

    if schema != "pod":
        raise UsageError(f"--schema {schema}: known: pod")
    keys = pod_set.schema()
    if as_json:
        print_json([{"name": name, "default": default, "about": about} for name, default, about in keys])
    else:
        print(columns([(name, "null" if default is None else str(default), about) for name, default, about in keys]))


@command(
    help={
        "provider": "instead: ssh, the machines of the inventory; runpod, lium, shadeform, what they say to the key",
        "for": "instead: serve, what should be in place before a service is begun",
        "config": "with --for serve: its service file (default serve/service.yaml)",
        "json": "one JSON document",
    }
)
def doctor(c, provider="", for_="", config="", json=False):
    """Say what this machine, own machines or an account lack.

    The exit code is 0 when it can be used.
    """
    from flows import doctor as machine
    from infra.errors import UsageError
    from infra.settings import VENDORS, Settings

    if provider not in ("", "local", "ssh", *VENDORS):
        raise UsageError(f"--provider is {provider!r}; known: local, ssh, {', '.join(VENDORS)}")
    if for_ not in ("", "serve") or (for_ and provider) or (config and not for_):
        raise UsageError("expected --for serve, with --config FILE or without, or --provider NAME")
    settings = Settings.load(ROOT)
    if for_:
        from scripts.services import preflight

        found = preflight.serving(config, settings)
    elif provider in VENDORS:
        found = machine.account(provider, settings)
    else:
        found = machine.nodes(settings) if provider == "ssh" else machine.findings(ROOT, settings)
    if json:
        print_json(found)
    else:
        print(columns([(one.name, one.state, one.detail) for one in found]))
    if any(one.state == "bad" for one in found):
        known = {"ssh": "some machines cannot be used", "": "this machine cannot run the street yet"}
        which = known.get(provider.removeprefix("local"), f"nothing can be rented at {provider}")
        which = "a service could not run yet" if for_ else which
        raise Exit(f"inv doctor: {which}: see the lines marked bad", code=1)


@command(
    word="paths",
    iterable=["paths"],
    help={
        "paths": "files or folders, all tests without",
        "k": "only tests whose names match",
        "fast": "only those that start no process, open no socket and compute no longer than a moment",
        "nightly": "slow ones too",
        "yes": "install the Debian packages that they want, as root or by sudo; CI=true says so, too",
    },
)
def test(c, paths=None, k="", fast=False, nightly=False, yes=False):
    """Run the tests, in an environment of their own.

    Words after -- go to pytest.
    """
    if not fast:
        bring_programs(yes)
    words = ["-m", "pytest", *paths, *words_after_dashes()]
    words += ["--fast"] if fast else []
    words += ["-k", k] if k else []
    words += ["-m", "not gpu and not account"] if nightly else []
    if not paths and not k:  # most of the tests wait for processes of their own: two at a time use two cores
        words += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    code = run_in_dev(words, Path.cwd() if paths else ROOT)
    if code:
        raise Exit(code=code)


@command()
def check(c):
    """Run format, lint, types, import floors and tests.

    A change must pass all of them.
    """
    failed = []
    for name, words in (
        ("format", ["-m", "ruff", "format", "--check", "."]),
        ("lint", ["-m", "ruff", "check", "."]),
        ("types", ["-m", "mypy", *TYPED]),
        ("tests", ["-m", "pytest"]),  # tests/test_floors.py among them
    ):
        say(name)
        if name == "tests":
            bring_programs(yes=False)
        if run_in_dev(words, ROOT):
            failed.append(name)
    if failed:
        raise Exit(f"inv check: failed: {', '.join(failed)}", code=1)


def bring_programs(yes: bool) -> None:
    """Install the programs that the tests want, or name them. Raises Exit when the installing fails."""
    packages = debian.missing()
    if not packages:
        return
    if (yes or debian.is_ci()) and debian.is_allowed():
        if not debian.install(packages, say):
            raise Exit("inv test: without --yes and CI=true, tests that need those are skipped", code=1)
        return
    how = " ".join(debian.command(packages)) or "no apt-get here; bring their programs yourself"
    say(f"tests that need {', '.join(packages)} are skipped; to have them: {how}")


def run_in_dev(words: Sequence[str], cwd: Path) -> int:
    """Run `python *words` in the dev environment on this terminal; returns its exit code."""
    from infra import train_env
    from infra.settings import Settings

    python = train_env.interpreter(ROOT, Settings.load(ROOT).environments, say, "dev")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{os.environ.get('PATH', os.defpath)}:{debian.SBIN}"}
    process = subprocess.Popen([str(python), *words], cwd=cwd, env=environ, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # the terminal has told it as well; it has its own last words
        raise
    finally:
        process.kill()


def say(text: str) -> None:
    print(f"inv: {text}", file=sys.stderr, flush=True)
