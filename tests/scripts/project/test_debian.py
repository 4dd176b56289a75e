"""The Debian packages of the tests: missing packages are named with the command, and installed on request."""

import os

import pytest
from invoke import Exit

from scripts.project import debian
from scripts.project.dev_environment import bring_programs

LACKING = {"git": ("git",), "some-server": ("some-serverd",), "some-library": ("/nowhere/*/some.so.1",)}
RECORD = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RECORD"
[ "$1" != -n ] || shift
[ "$(basename "$0")" != sudo ] || [ "$1" = true ] || { shift; exec "$@"; }
exit ${APT_CODE:-0}
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return the calls of apt-get, line by line; a recording program replaces the real apt-get."""
    for name in ("apt-get", "sudo"):
        (tmp_path / name).write_text(RECORD)
        (tmp_path / name).chmod(0o755)
    record = tmp_path / "record"
    record.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(record))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(debian, "PACKAGES", LACKING)
    return lambda: [line for line in record.read_text().splitlines() if line.startswith("apt-get")]


def test_missing_packages_are_named_in_one_line_with_the_command(installed, capsys):
    bring_programs(yes=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("inv: tests that need some-server, some-library are skipped. To run these tests: ")
    assert line.endswith("apt-get install -y --no-install-recommends some-server some-library")
    assert installed() == []


@pytest.mark.process
@pytest.mark.parametrize(("yes", "ci"), [(True, ""), (False, "true"), (True, "1")])
def test_packages_are_installed_on_request(installed, monkeypatch, yes, ci):
    monkeypatch.setenv("CI", ci)
    bring_programs(yes)
    update, install = installed()
    assert update == "apt-get update -qq"
    assert install.removesuffix(" -qq") == "apt-get install -y --no-install-recommends some-server some-library"


def test_nightly_tests_need_further_packages(installed, monkeypatch, capsys):
    monkeypatch.setattr(debian, "NIGHTLY", {"some-cluster": ("some-clusterd",)})
    bring_programs(yes=False, is_nightly=True)
    assert "tests that need some-server, some-library, some-cluster are skipped" in capsys.readouterr().err


@pytest.mark.process
def test_failed_installation_is_reported_and_no_test_starts(installed, monkeypatch, capsys):
    monkeypatch.setenv("APT_CODE", "100")
    monkeypatch.setattr(debian, "is_allowed", lambda: True)
    with pytest.raises(Exit, match="Without --yes and CI=true, tests that need these packages are skipped"):
        bring_programs(yes=True)
    assert "inv: failed: " in capsys.readouterr().err


def test_complete_packages_cause_no_message_and_no_call(installed, monkeypatch, capsys):
    monkeypatch.setattr(debian, "PACKAGES", {"git": ("git",)})
    bring_programs(yes=True)
    assert (capsys.readouterr().err, installed()) == ("", [])


@pytest.mark.parametrize(("ci", "is_one"), [("", False), ("0", False), ("false", False), ("true", True), ("1", True)])
def test_ci_requests_the_installation_itself(monkeypatch, ci, is_one):
    monkeypatch.setenv("CI", ci)
    assert debian.is_ci() is is_one
