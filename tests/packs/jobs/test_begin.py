"""Before a script of a job, bash reads what an interactive shell of the user would read."""

import json
import os
import stat
import subprocess
import sys

import pytest

from infra.agent import shell
from infra.selection import missing_programs
from packs.jobs.control import lint

pytestmark = pytest.mark.process

CONDA = """#!/bin/bash
[ "$1 $2" = "shell.bash hook" ] && echo 'conda() { echo "hooked: $*"; }' || echo "not hooked: $*"
"""
MICROMAMBA = """#!/bin/bash
[ "$1 $2" = "shell hook" ] && echo 'micromamba() { echo "mamba: $*"; }'
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def said_by(home, text, **variables):
    config = home / "run.json"
    config.write_text(json.dumps({"text": text, "name": "", "envs": variables}))
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SLIPWAY_WORK": str(home / "work")}
    words = [sys.executable, "-m", shell.__name__, "--config", str(config)]
    done = subprocess.run(words, env=environ, check=False, capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "guard",
    [
        "",
        "case $- in\n  *i*) ;;\n  *) return;;\nesac\n",
        '[ -z "$PS1" ] && return\n',
        "[[ $- != *i* ]] && return\n",
    ],
)
def test_run_has_what_setup_wrote_into_bashrc(home, guard):
    (home / ".bashrc").write_text(f"{guard}export CORPUS=/opt/corpus\nread_me() {{ echo f; }}\n")
    said = said_by(
        home, 'echo "$CORPUS $(read_me) ${PS1-none} ${BASH_ENV-none} ${SLIPWAY_BASH_ENV-none} $(bash -c "echo $-")"'
    )
    assert said.split()[:5] == ["/opt/corpus", "f", "none", "none", "none"]


def test_script_without_a_workdir_starts_in_the_folder_of_skypilot(tmp_path, monkeypatch):
    brought, root = tmp_path / "home" / "sky_workdir", tmp_path / "pod"
    monkeypatch.setenv("HOME", str(brought.parent))

    def start(workdir):
        return shell.prepare(root, shell.Script(text="", name="", workdir=workdir), {})[1]

    for workdir, expected in (("", "sky_workdir"), ("files", "files"), ("", "sky_workdir")):
        assert start(workdir) == root / expected and brought.resolve() == (root / expected).resolve()
    own = shell.Script(text="", name="", mounts=[["mount", "", "~/sky_workdir/"]])
    assert shell.prepare(root, own, {})[1] == root / "mount" and brought.resolve() == root / "mount"
    brought.unlink()
    brought.mkdir()  # as on a machine of SkyPilot
    assert start("") == root / "sky_workdir" and not brought.is_symlink()


def test_run_finds_what_setup_cloned_into_sky_workdir(home):
    assert said_by(home, "mkdir lesson") == ""
    assert said_by(home, 'cd ~/sky_workdir/lesson && basename "$PWD"') == "lesson\n"


def test_run_has_local_programs_and_its_own_variables(home):
    program(home / ".local/bin/tool", "#!/bin/sh\necho tool\n")
    assert said_by(home, "tool") == "tool\n"
    own = home / "own.sh"
    own.write_text("echo own\n")
    assert said_by(home, 'echo "$BASH_ENV"; bash -c true', BASH_ENV=str(own)) == f"{own}\nown\n"
    assert said_by(home, 'echo "$0 $LINENO ${BASH_SOURCE[0]}"').split()[1] == "1"


def test_hook_of_an_installed_conda_is_read(home):
    program(home / "miniconda3/bin/conda", CONDA)
    assert said_by(home, "conda activate lesson") == "hooked: activate lesson\n"
    program(home / ".local/bin/conda", CONDA.replace("hooked", "first"))
    assert said_by(home, "conda activate lesson") == "first: activate lesson\n"


def test_micromamba_takes_the_place_of_conda(home):
    program(home / ".local/bin/micromamba", MICROMAMBA)
    if not os.path.exists("/opt/conda/bin/conda"):
        assert said_by(home, "micromamba activate a; conda activate b") == "mamba: activate a\nmamba: activate b\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("setup: conda create -n lesson python=3.11 -y\nrun: python a.py\n", 1),
        ("run: |\n  # conda activate a\n  echo\n  source a && conda activate b\n", 4),
        ("setup: pip install conda-pack\nrun: |\n  set -e\n  (conda run -n a python)\n", 4),
        ("setup: |\n  bash Miniconda3-latest-Linux-x86_64.sh -b\n  conda create -n a\nrun: conda activate a\n", 0),
        ("run: echo conda is not used; ls ~/conda\n", 0),
        (f"setup: |\n  {missing_programs.INSTALL_CONDA}\nrun: conda activate a\n", 0),
    ],
)
def test_call_of_a_missing_conda_is_found_with_the_line_to_write(tmp_path, text, line):
    (tmp_path / "job.yaml").write_text(text)
    found = [one for one in lint.lint(tmp_path / "job.yaml") if "conda" in one.text]
    assert [one.line for one in found] == ([line] if line else [])
    assert all(missing_programs.INSTALL_CONDA in one.text and not one.is_refused for one in found)
