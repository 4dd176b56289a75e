"""Commands about the checkout itself: its settings, what the machine has, tests and checks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from invoke import Exit

from scripts.cli.command import command
from scripts.cli.invoke_patch import print_json, words_after_dashes
from scripts.cli.render import columns
from scripts.project import debian
from store import moving_line

ROOT = Path(__file__).resolve().parents[2]
MOST_TESTS = 8  # at a time: each worker has PyTorch in its memory
TYPED = ("infra", "data", "store", "serve", "flows", "trainer", "scripts", "packs", "tests/programs")


@command("", "scripts.project.flags:ConfigFlags", example="inv config --schema launch")
def config(c, spec):
    """Show every setting, its value and where it came from.

    With --profile it shows a recipe instead, with --schema the JSON Schema of a file, and with --config which of the
    files that a file names exist.
    """
    from infra.settings import Settings

    if spec.config:
        from scripts.data import found_paths

        found_paths.show(spec.config, spec.json)
        return
    if spec.profile or spec.params:
        from scripts.models.fit import show

        show(spec.profile or Settings.load(ROOT).profile, spec.params, spec.json)
        return
    if spec.schema:
        from scripts.project import schemas

        print_json(schemas.schema(spec.schema))
        return
    shown = Settings.load(ROOT).shown()
    if spec.json:
        print_json({one.name: one for one in shown})
    else:
        print(columns([(one.name, one.value, one.source) for one in shown]))


@command("scripts.project.init", "scripts.project.flags:InitFlags", world="", is_here=True, example="inv init runpod")
def init(c, spec):
    """Ask for keys and a store, check them, and write .env.

    Keys are checked with their vendors before they are written, and never shown. Existing entries are kept.
    """


@command("", "scripts.project.flags:DoctorFlags", example="inv doctor --provider runpod")
def doctor(c, spec):
    """Show what this machine, own machines or an account lack.

    The exit code is 0 when nothing necessary is missing.
    """
    from flows.installation import doctor as machine
    from infra.errors import UsageError
    from infra.providers import by_name
    from infra.settings import VENDORS, Settings
    from store import packs

    provider, for_ = spec.provider, spec.for_
    if spec.lint and (provider or for_):
        raise UsageError("--lint looks at a file alone; leave --provider and --for out")
    if provider not in ("", *by_name.known()):
        why = packs.lacking("providers", provider) or f"known: {', '.join(by_name.known())}"
        raise UsageError(f"--provider is {provider!r}; {why}")
    if for_ not in ("", "serve", "train") or (for_ == "serve" and provider) or (spec.config and for_ != "serve"):
        raise UsageError("expected --for train, --for serve, the latter with --config FILE or without, or "
                         "--provider NAME")  # fmt: skip
    settings = Settings.load(ROOT, {"provider": provider})
    with moving_line.waiting(f"{provider or for_ or 'this machine'} is looked at"):
        if spec.lint:
            found = machine.lint(spec.lint)
        elif for_ == "train":
            from flows.installation import checklist
            from scripts.cli.session import open_journal

            with open_journal(settings) as journal:
                found = checklist.training(settings, journal)
        elif for_:
            from scripts.services.checklist import serving

            found = serving(spec.config, settings)
        elif provider in VENDORS:
            found = machine.account(provider, settings)
        else:
            own = {name: packs.load(one.doctor) for name, one in packs.providers().items()}
            ask = {"ssh": machine.nodes, **own}.get(provider)
            found = ask(settings) if ask else machine.findings(ROOT, settings)
    if spec.json:
        print_json(found)
    else:
        print(columns([(one.name, one.state, one.detail) for one in found]))
    if any(one.state == "bad" for one in found):
        known = {
            "ssh": "some machines cannot be used",
            "": "this machine cannot run a training yet",
        }
        which = known.get(provider.removeprefix("local"), f"nothing can be rented at {provider}")
        if spec.lint:
            raise Exit(f"inv doctor: {spec.lint} has lines to correct", code=1)
        which = {"serve": "a service could not run yet", "train": "a training should not be rented yet"}.get(
            for_, which
        )
        raise Exit(f"inv doctor: {which}: see the lines marked bad", code=1)


@command("", "scripts.project.flags:TestFlags", is_here=True, example="inv test --fast")
def test(c, spec):
    """Run the tests, in an environment of their own.

    Arguments after -- go to pytest.
    """
    if not spec.fast:
        bring_programs(spec.yes)
    words = ["-m", "pytest", *spec.paths, *words_after_dashes()]
    words += ["--fast"] if spec.fast else []
    words += ["-k", spec.k] if spec.k else []
    words += ["-m", "not gpu and not account"] if spec.nightly else []
    if not spec.paths and not spec.k:
        words += ["-n", str(at_a_time()), "--dist", "loadfile", "--no-loadscope-reorder"]
    code = run_in_dev(words, Path.cwd() if spec.paths else ROOT)
    if code:
        raise Exit(code=code)


def at_a_time() -> int:
    """Return the number of parallel tests: two for each core, since most of them wait for processes."""
    return min(MOST_TESTS, 2 * (os.cpu_count() or 1))


@command(is_here=True, example="inv check")
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
    moving_line.clear()
    print(f"inv: {text}", file=sys.stderr, flush=True)
