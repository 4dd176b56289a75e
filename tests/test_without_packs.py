"""The core works without packs, and without each single pack: nightly tests in clones with deleted pack folders."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from store import packs
from tests.world import ROOT, World

JOBS = "packs.jobs.commands.example_jobs:ROWS"
pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(7200)]


def clone(to: Path, *without: str) -> Path:
    """Return a checkout with our files, without the given folders."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(to)], check=True)
    for folder in without:
        shutil.rmtree(to / folder)
    return to


def run_tests(checkout: Path, *words: str) -> str:
    """Run tests in a checkout; return the end of the output. All tests must pass."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SLIPWAY_"))}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # a socket of a test has at most 107 bytes
        line.append(f"--basetemp={folder}/t")
        done = subprocess.run([*line, *words], cwd=checkout, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout[-200:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a checkout that all packs share: Python and pytest compile each module once, not once per pack."""
    return clone(tmp_path_factory.mktemp("packs") / "checkout")


@pytest.fixture
def checkout(whole, name, tmp_path):
    """Take the folder of one pack out of the checkout during a test."""
    folder, absent = whole / "packs" / name, tmp_path / "absent"
    shutil.move(folder, absent)
    yield whole
    shutil.move(absent, folder)


@dataclass(frozen=True, kw_only=True)
class Apart(World):
    """An installation of a second checkout."""

    checkout: Path

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *words],
            cwd=self.checkout,
            env=self.environ,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def test_the_core_passes_its_tests_without_any_pack(tmp_path):
    """The tests include the README's commands, launches by SSH and at each rehearsed vendor, and a service."""
    assert " passed" in run_tests(clone(tmp_path / "checkout", "packs"), "-n", "4")


@pytest.mark.parametrize("name", packs.installed())
def test_the_rest_works_without_a_pack_and_its_commands_name_the_pack(name, checkout, tmp_path):
    world = Apart(tmp_path, checkout=checkout)
    listed = world.inv("--list")
    process = world.run("doctor")
    assert "Traceback" not in process.stdout + process.stderr
    for command, about in packs.known()[name]["commands"].items():
        assert f"  {command} " not in listed and about["summary"] not in listed
        process = world.run(command)
        err = process.stderr
        assert process.returncode == 2 and f"{command} belongs to the pack {name}, and packs/{name} is missing" in err
    for flag in packs.known()[name]["line_flags"]:
        process = world.run("status", flag, "word")
        err = process.stderr
        assert process.returncode == 2 and f"{flag} belongs to the pack {name}" in err
    for setting, row in packs.known()[name]["settings"].items():
        (checkout / "slipway.yaml").write_text(f"{setting}: 1\n")
        process = world.run("config")
        err = process.stderr
        assert process.returncode == 2 and f"{setting} belongs to the pack {name}" in err, row
        (checkout / "slipway.yaml").unlink()
    launch = ("launch", "--phase", "base", "--dry-run")
    typed = [(one, ("--provider", "local", "--track", one)) for one in packs.known()[name]["trackers"]]
    typed += [(one, ("--provider", one)) for one in packs.known()[name]["providers"]]
    for word, flags in typed:
        process = world.run(*launch, *flags)
        err = process.stderr
        assert process.returncode == 2 and f"{word} belongs to the pack {name}" in err
    for flag, kind in (("phase", "phases"), ("profile", "profiles")):
        for word in packs.known()[name][kind]:
            process = world.run("launch", f"--{flag}", word, "--provider", "local", "--dry-run")
            err = process.stderr
            assert process.returncode == 2 and f"{word} belongs to the pack {name}" in err
    for word in packs.known()[name]["command_flags"]:
        process = world.run(*word.split(), "word")
        err = process.stderr
        assert process.returncode == 2 and f"{word} belongs to the pack {name}" in err
    # A row with its own words, and no words for this machine, begins with a published model on the hub.
    for file, here in [(file, here) for file, usual, here in packs.load(JOBS) if here or not usual]:
        words = (f"examples/jobs/{file}", *here.split(), "--provider", "local", "--dry-run")
        process = world.run("launch", *words, "--json")
        out, err = process.stdout, process.stderr
        is_of_pack = f"belongs to the pack {name}" in out + err
        assert is_of_pack or json.loads(out)["steps"], file
    assert " passed" in run_tests(checkout, "--fast", "-n", "2")
