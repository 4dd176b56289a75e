"""`./inv` on a bare machine: a copy of the checkout, an empty home, and the system's Python."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from scripts.cli.front_page import FIRST_SCREEN

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
BASE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
ENVIRONMENTS = ("SLIPWAY_ENVIRONMENTS", "XDG_CACHE_HOME", "XDG_STATE_HOME", "VIRTUAL_ENV")
ENVIRONMENTS += ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def copy_checkout(folder: Path) -> Path:
    wanted = [
        *subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).split("\n")
    ]
    for name in filter(None, wanted):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def bare_environ(home: Path) -> dict[str, str]:
    """Return this machine's environment, with an empty home and only the settings of the package indexes."""
    environ = {name: value for name, value in os.environ.items() if name not in ENVIRONMENTS}
    for known in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (Path.home() / known).exists():
            environ.setdefault("PIP_CONFIG_FILE", str(Path.home() / known))
    return {**environ, "HOME": str(home)}


class Checkout:
    def __init__(self, folder: Path) -> None:
        (folder / "home").mkdir()
        self.root = copy_checkout(folder / "code")
        self.environ = bare_environ(folder / "home")
        self.venv = self.root / ".venv"

    def start(self, *words: str, python: str = BASE, cwd: Path | None = None, **environ: str) -> subprocess.Popen:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = (python, str(self.root / "inv"), *words)
        return subprocess.Popen(words, cwd=cwd or self.root, env={**self.environ, **environ}, text=True, **pipes)

    def inv(self, *words: str, **options) -> tuple[int, str, str]:
        with self.start(*words, **options) as process:
            out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def made(self) -> int:
        return (self.venv / "slipway-environment").stat().st_mtime_ns


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    """Return a checkout after the first command."""
    one = Checkout(tmp_path_factory.mktemp("machine"))
    code, out, err = one.inv("config", "--json")
    assert code == 0, err
    assert json.loads(out)["provider"]["value"]
    assert "inv: making the control environment" in err
    return one


@pytest.mark.nightly
def test_the_second_call_does_no_work(checkout):
    made = checkout.made()
    assert checkout.inv("config")[::2] == (0, "")
    assert checkout.made() == made


@pytest.mark.nightly
def test_inv_shows_the_first_screen_without_words_and_completes_from_any_folder(checkout, tmp_path):
    assert checkout.inv() == checkout.inv("--help") == (0, f"{FIRST_SCREEN}\n", "")
    code, out, err = checkout.inv("--complete", "--", "~/slipway/inv", "lau", cwd=tmp_path)
    assert (code, err) == (0, "") and "launch" in out.split()


@pytest.mark.nightly
def test_inv_of_the_environment_works_by_itself(checkout):
    words = [str(checkout.venv / "bin" / "inv"), "--list"]
    done = subprocess.run(words, cwd=checkout.root, env=checkout.environ, capture_output=True, text=True)
    assert done.returncode == 0 and "doctor" in done.stdout


@pytest.mark.nightly
def test_inv_can_be_called_by_path_from_another_folder(checkout, tmp_path):
    assert checkout.inv("config", "--json", cwd=tmp_path)[0] == 0


@pytest.mark.nightly
def test_unrelated_change_keeps_the_environment(checkout):
    made = checkout.made()
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("\n# a remark\n")
    assert checkout.inv("config")[::2] == (0, "")
    assert checkout.made() == made


@pytest.mark.nightly
def test_changed_pin_recreates_the_environment(checkout):
    made = checkout.made()
    with (checkout.root / "constraints" / "control.txt").open("a") as file:
        file.write("# a remark is part of the pins\n")
    code, _, err = checkout.inv("config")
    assert code == 0 and "making the control environment" in err
    assert checkout.made() > made


@pytest.mark.nightly
@pytest.mark.parametrize("lost", ["bin/inv", "bin/python"])
def test_broken_environment_is_repaired(checkout, lost):
    (checkout.venv / lost).unlink()
    assert checkout.inv("config")[0] == 0
    assert (checkout.venv / lost).exists()


@pytest.mark.nightly
def test_killed_bootstrap_leaves_no_environment_that_looks_finished(checkout):
    shutil.rmtree(checkout.venv)
    with checkout.start("config") as process:
        deadline = time.monotonic() + 60
        while not checkout.venv.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (checkout.venv / "slipway-environment").exists()
    assert not (checkout.venv / "slipway-inv").exists()
    both = [checkout.start("config"), checkout.start("config")]  # Two further calls, at once.
    assert [one.communicate(timeout=100) and one.returncode for one in both] == [0, 0]


@pytest.mark.nightly
def test_two_commands_that_finish_the_environment_at_once_both_continue(checkout, tmp_path):
    (checkout.venv / "slipway-inv").unlink()
    words = [BASE, ROOT / "tests" / "programs" / "paced_stamp.py", tmp_path, checkout.root / "inv", "config"]
    both = [
        subprocess.Popen(words, cwd=checkout.root, env=checkout.environ, stdout=subprocess.DEVNULL) for _ in range(2)
    ]
    assert [one.wait(timeout=100) for one in both] == [0, 0]
    assert [path.name for path in checkout.venv.glob("slipway-inv*")] == ["slipway-inv"]


def python_without(folder: Path, *modules: str) -> str:
    """Return a Python without these modules, like Debian's Python before python3-venv is installed."""
    library = Path(sysconfig.get_path("stdlib"))
    copy = folder / "lib" / library.name
    copy.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name not in (*modules, "site-packages", "dist-packages"):
            (copy / entry.name).symlink_to(entry)
    (folder / "bin").mkdir()
    shutil.copy2(BASE, folder / "bin" / "python3")
    for shared in Path(BASE).parent.parent.joinpath("lib").glob("libpython*"):
        (folder / "lib" / shared.name).symlink_to(shared)
    return str(folder / "bin" / "python3")


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("missing", ["ensurepip", "venv"])
def test_python_without_venv_gets_one_line_with_the_fix(tmp_path, missing):
    one = Checkout(tmp_path)
    code, out, err = one.inv("config", python=python_without(tmp_path / "python", missing), PATH="/usr/bin:/bin")
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(
        "inv: the control environment could not be made: this Python cannot create virtual environments"
    )
    assert "apt install python3-venv" in last
    assert not (one.venv / "slipway-environment").exists()


def test_missing_network_gets_one_line_with_the_fix(tmp_path):
    one = Checkout(tmp_path)
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": ""}
    nowhere |= {"PIP_FIND_LINKS": "", "UV_HTTP_RETRIES": "0", "SLIPWAY_INSTALLER": "uv"}
    code, out, err = one.inv("config", python=sys.executable, **nowhere)  # uv is installed beside this Python.
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert "some packages are not in the cache (uv --offline); no package index answers (uv); " in last
    assert "; check the network and `pip config list`. " in last


def test_old_python_is_named_in_the_error():
    pretend = "import runpy, sys; sys.version_info = (3, 8, 1); runpy.run_path('inv', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr.startswith("inv: Python 3.8.1 is too old; Slipway needs Python 3.10 or newer")
        and done.stderr.count("\n") == 1
    )
    ast.parse((ROOT / "inv").read_text(encoding="utf-8"), feature_version=(3, 4))


def without_rights(*words: str) -> list[str]:
    """Return the prefix of a command that runs without the privileges of root."""
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("foreign"))


@pytest.mark.needs("root")
@pytest.mark.parametrize("there", ["nothing", "a marker", "a stamp that is not ours to read", "a lock"])
def test_error_in_a_foreign_checkout_names_the_owner_and_the_fix(foreign, there):
    one = foreign
    shutil.rmtree(one.venv, ignore_errors=True)
    (one.root / ".venv.lock").unlink(missing_ok=True)
    if there != "nothing":
        (one.venv / "bin").mkdir(parents=True)
        for name in ("slipway-environment", "slipway-inv", "bin/inv", "bin/python"):
            if name != "bin/python" or "stamp" in there:
                (one.venv / name).write_text("")
    if there == "a stamp that is not ours to read":
        (one.venv / "slipway-inv").chmod(0)
    if there == "a lock":
        (one.root / ".venv.lock").write_text("")
    subprocess.run(["chown", "-R", "65534:65534", one.root], check=True)
    words = without_rights(BASE, str(one.root / "inv"), "config")
    done = subprocess.run(words, cwd=one.root, env=one.environ, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr
    assert last.startswith("inv: ") and "belongs to nobody, and you are root; " in last
    assert f"git config --global --add safe.directory {one.root}/.git && git clone {one.root} ~/slipway" in last


@pytest.mark.nightly
@pytest.mark.needs("root")
def test_cache_owned_by_root_is_named_with_the_fix(checkout, tmp_path):
    home = Path(checkout.environ["HOME"])
    cache = home / ".cache" / "slipway"
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["chown", "-R", "65534", cache], check=True)
    try:
        real = [str(checkout.venv / "bin" / "inv"), "test", "tests/test_floors.py"]
        done = subprocess.run(
            without_rights(*real), cwd=checkout.root, env=checkout.environ, capture_output=True, text=True
        )
    finally:
        subprocess.run(["chown", "-R", "0", cache], check=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"belongs to nobody, and you are root; run: sudo chown -R root {cache}" in done.stderr.splitlines()[-1]


@pytest.mark.nightly
def test_problem_in_env_file_is_reported_once_with_file_and_line(checkout):
    file = checkout.root / ".env"
    file.write_text("# mine\n\nRUNPOD_API_KEY: forgotten-1\nSLIPWAY_PROFILE=tiny\nHF_TOKEN=hf_canary\n")
    file.chmod(0o644)
    try:
        code, out, err = checkout.inv("launch", "--phase", "sft", "--dry-run", "--json")
    finally:
        file.unlink()
    assert code == 0 and json.loads(out)
    assert err.count(".env") == 3  # The third name is in the output of chmod.
    assert f"inv: {file}: line 3 is left out: expected NAME=value\n" in err
    assert f"inv: {file} holds HF_TOKEN, and other users can read the file; run: chmod 600 {file}\n" in err
    assert "forgotten-1" not in err and "canary" not in err
