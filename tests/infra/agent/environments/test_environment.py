"""Environments, built by real uv and pip from small wheels in a folder, without network."""

import base64
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder, environment
from tests.programs import source

REPOSITORY = Path(__file__).parents[4]
BASE = getattr(sys, "_base_executable", sys.executable)
ENSURE = source("ensure")
BROKEN = "#!/bin/sh\n[ $1 = --version ] && echo uv 0.13.8 || { echo error: this uv is broken; exit 3; }\n"


def make_wheel(folder: Path, name: str, version: str, text: str = "", needs: str = "") -> None:
    """Make a wheel of one module, with hashes for installers."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{about}/RECORD"] = record + f"{about}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def describe(code: Path, requirement: str, pin: str, name: str = "tiny") -> None:
    (code / "constraints").mkdir(parents=True, exist_ok=True)
    (code / "constraints" / f"{name}.txt").write_text(f"{pin}\n")
    (code / "pyproject.toml").write_text(f'[dependency-groups]\nother = []\n{name} = [\n    "{requirement}",\n]\n')


class Rig:
    """A checkout with one small group, a folder with the only wheels, and an empty cache."""

    def __init__(self, folder: Path) -> None:
        self.code, self.cache, self.wheels = folder / "code", folder / "cache", folder / "wheels"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        self.environ |= {
            "HOME": str(folder),
            "UV_CACHE_DIR": str(folder / "uv"),
            "UV_HTTP_RETRIES": "0",
            "PIP_CONFIG_FILE": str(folder / "pip.conf"),
            "PYTHONPATH": str(REPOSITORY),
        }
        absent = folder / "absent"  # pip accepts a missing configured folder
        text = f"[global]\nno-index = true\nfind-links =\n    {absent}\n    {self.wheels}\n"
        (folder / "pip.conf").write_text(text)
        make_wheel(self.wheels, "whale", "1.0", "size = 'big'\n")
        make_wheel(self.wheels, "whale", "2.0", "size = 'bigger'\n")
        describe(self.code, "whale", "whale==1.0")

    def ensure(
        self, torch: str = "", python: str = sys.executable, name: str = "tiny", **environ: str
    ) -> subprocess.CompletedProcess:
        words = [python, "-c", ENSURE, name, str(self.code), str(self.cache), torch]
        return subprocess.run(words, env={**self.environ, **environ}, capture_output=True, text=True)

    def ask(self, done: subprocess.CompletedProcess, text: str) -> str:
        assert done.returncode == 0, done.stderr
        words = [done.stdout.strip(), "-c", text]
        return subprocess.run(words, capture_output=True, text=True, check=True, cwd=self.code).stdout.strip()


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.process
def test_an_environment_contains_the_pinned_packages_and_is_made_once(rig):
    first = rig.ensure()
    assert rig.ask(first, "import whale; print(whale.size)") == "big"
    assert "making the tiny environment with uv" in first.stderr
    marker = Path(first.stdout.strip()).parent.parent / environment.MARKER
    made = marker.stat().st_mtime_ns
    second = rig.ensure()
    assert (second.stdout, second.stderr) == (first.stdout, "")
    assert marker.stat().st_mtime_ns == made


def test_only_the_contents_of_an_environment_change_its_key(tmp_path):
    describe(tmp_path, "whale", "whale==1.0")
    key = environment.read_spec("tiny", tmp_path, "cpu").key
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write("\n[tool.other]\nx = 1\n")
    assert environment.read_spec("tiny", tmp_path, "cuda").key == key  # no torch in the environment
    describe(tmp_path, "whale>=1", "whale==1.0")
    other = environment.read_spec("tiny", tmp_path, "cpu").key
    describe(tmp_path, "whale", "whale==2.0")
    assert len({key, other, environment.read_spec("tiny", tmp_path, "cpu").key}) == 3
    describe(tmp_path, "torch==2.13.0", "")
    assert environment.read_spec("tiny", tmp_path, "cpu").key != environment.read_spec("tiny", tmp_path, "cuda").key


@pytest.mark.process
def test_an_unfinished_environment_is_made_again(rig):
    done = rig.ensure()
    folder = Path(done.stdout.strip()).parent.parent
    (folder / environment.MARKER).unlink()
    (folder / "leftover").touch()
    assert rig.ensure().stdout == done.stdout
    assert not (folder / "leftover").exists() and (folder / environment.MARKER).exists()


@pytest.mark.process
def test_a_moved_environment_counts_as_incomplete(rig):
    folder = Path(rig.ensure().stdout.strip()).parent.parent
    rig.cache.rename(rig.cache.with_name("moved"))
    rig.cache.with_name("moved").joinpath(folder.name).rename(folder.parent.with_name("elsewhere"))
    rig.cache.mkdir()
    rig.cache.with_name("elsewhere").rename(folder.with_name("tiny-elsewhere"))
    spec = environment.read_spec("tiny", rig.code, "")
    assert environment.find("tiny", rig.code, rig.cache, "") is None
    assert (folder.with_name("tiny-elsewhere") / environment.MARKER).read_text().startswith(spec.key)


@pytest.mark.process
def test_two_concurrent_processes_make_an_environment_once(rig):
    words = [sys.executable, "-c", ENSURE, "tiny", str(rig.code), str(rig.cache), ""]
    both = [subprocess.Popen(words, env=rig.environ, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=60)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert "".join(said).count("making the tiny environment") == 1


@pytest.mark.nightly
@pytest.mark.process
def test_pip_replaces_a_broken_uv(rig, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(BROKEN)
    (tmp_path / "bin" / "uv").chmod(0o755)
    done = rig.ensure(python=BASE, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert rig.ask(done, "import whale; print(whale.size)") == "big"
    assert "with uv" in done.stderr and "with pip" in done.stderr


@pytest.mark.process
def test_uv_uses_its_cache_when_no_index_answers(rig, tmp_path):
    """A different machine sent the index; uv recognizes the cache by the index."""
    (tmp_path / "whale").mkdir()
    make_wheel(tmp_path / "whale", "whale", "1.0", "size = 'served'\n")
    (tmp_path / "pip.conf").write_text("")
    serve = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever).start()
        index = {"CARRIED": json.dumps({"settings": {"index-url": [f"http://127.0.0.1:{server.server_port}"]}})}
        online = rig.ensure(**index)
        server.shutdown()
    assert rig.ask(online, "import whale; print(whale.size)") == "served"
    rig.cache = tmp_path / "another"
    assert rig.ask(rig.ensure(**index, SLIPWAY_INSTALLER="uv"), "import whale; print(whale.size)") == "served"
    (rig.environ["UV_CACHE_DIR"], rig.cache) = (str(tmp_path / "empty"), tmp_path / "third")
    nowhere = rig.ensure(**index, SLIPWAY_INSTALLER="uv", PIP_INDEX_URL="http://127.0.0.1:9")
    last = nowhere.stderr.splitlines()[-1]
    assert nowhere.returncode == 1 and "no package index answers (uv)" in last and "find-links = FOLDER" in last


@pytest.mark.process
def test_the_uploaded_uv_replaces_an_unusable_uv(rig, tmp_path):
    (tmp_path / "bin").mkdir()
    for old in ("echo uv 0.1.2", "exit 126"):
        (tmp_path / "bin" / "uv").write_text(f"#!/bin/sh\n{old}\n")
        (tmp_path / "bin" / "uv").chmod(0o755)
        rig.cache = tmp_path / old
        uv = Path(sysconfig.get_path("scripts")) / "uv"
        environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CARRIED": json.dumps({"uv": str(uv)})}
        done = rig.ensure(python=BASE, SLIPWAY_INSTALLER="uv", **environ)
        assert rig.ask(done, "import whale; print(whale.size)") == "big"


@pytest.mark.process
def test_uv_installs_a_python_if_every_python_is_too_old(rig):
    """Use our own Python again as the new Python, because a test downloads nothing."""
    too_old = ENSURE.replace(
        "name, code", f"environment.OLDEST, environment.MANAGED = (99, 0), {BASE!r}\nname, code", 1
    )
    words = [sys.executable, "-c", too_old, "tiny", str(rig.code), str(rig.cache), ""]
    made = subprocess.run(words, env={**rig.environ, "PATH": "/nowhere"}, capture_output=True, text=True)
    assert rig.ask(made, "import whale; print(whale.size)") == "big"
    nothing = too_old.replace(repr(BASE), "'9.99'")
    rig.cache = rig.cache / "other"
    words = [sys.executable, "-c", nothing, "tiny", str(rig.code), str(rig.cache), ""]
    failed = subprocess.run(words, env={**rig.environ, "PATH": "/nowhere"}, capture_output=True, text=True)
    assert (
        failed.returncode == 1
        and "Python 3.10 or newer is not installed" in failed.stderr
        and "(pip)" not in failed.stderr
    )


@pytest.mark.process
def test_a_missing_package_is_reported_in_one_line_and_leaves_no_environment(rig):
    describe(rig.code, "whale", "whale==3.0")
    done = rig.ensure(SLIPWAY_INSTALLER="uv")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "the tiny environment could not be made: " in last and "whale==3.0" in last
    assert not list(rig.cache.glob(f"*/{environment.MARKER}"))


@pytest.mark.process
def test_a_machine_without_a_gpu_gets_the_cpu_build_of_torch(rig):
    describe(rig.code, "torch==2.13.0", "torch==2.13.0")
    make_wheel(rig.wheels, "torch", "2.13.0", "class version: cuda = '13.0'\n")
    make_wheel(rig.wheels, "torch", "2.13.0+cpu", "class version: cuda = None\n")
    assert rig.ask(rig.ensure("cpu"), "import torch; print(torch.version.cuda)") == "None"
    assert rig.ask(rig.ensure("cuda"), "import torch; print(torch.version.cuda)") == "13.0"


@pytest.mark.process
@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.nightly)])
def test_a_machine_without_a_gpu_never_gets_the_cuda_build(rig, installer):
    describe(rig.code, "torch==2.13.0", "torch==2.13.0")
    make_wheel(rig.wheels, "torch", "2.13.0", "class version: cuda = '13.0'\n")
    done = rig.ensure("cpu", SLIPWAY_INSTALLER=installer)
    assert done.returncode == 1 and "the tiny environment could not be made" in done.stderr
    assert not list(rig.cache.glob("*/lib/*/site-packages/torch*"))


@pytest.mark.process
def test_a_wheel_with_a_false_build_is_refused(rig):
    describe(rig.code, "torch==2.13.0", "torch==2.13.0")
    make_wheel(rig.wheels, "torch", "2.13.0+cpu", "class version: cuda = '13.0'\n")
    done = rig.ensure("cpu", SLIPWAY_INSTALLER="uv")
    assert "the cuda build of torch instead of the cpu build" in done.stderr
    assert not list(rig.cache.glob(f"*/{environment.MARKER}"))


@pytest.mark.process
@pytest.mark.parametrize("installer", ["uv", pytest.param("pip", marks=pytest.mark.nightly)])
def test_a_complete_list_of_pins_installs_no_other_package(rig, installer):
    make_wheel(rig.wheels, "boat", "1.0", needs="whale")
    make_wheel(rig.wheels, "torch", "2.13.0", "class version: cuda = '13.0'\n")
    make_wheel(rig.wheels, "torch", "2.13.0+cpu", "class version: cuda = None\n", needs="triton")
    describe(rig.code, "torch==2.13.0", "# The whole list.\nboat==1.0\ntorch==2.13.0", "tiny-cpu")
    done = rig.ensure("cuda", name="tiny-cpu", SLIPWAY_INSTALLER=installer)  # on a machine with a GPU, too
    here = "import importlib.util as u; print([bool(u.find_spec(one)) for one in ('torch', 'boat', 'whale')])"
    assert rig.ask(done, here) == "[True, True, False]"
    assert rig.ask(done, "import torch; print(torch.version.cuda)") == "None"


@pytest.mark.process
def test_a_gpu_environment_is_not_made_without_a_gpu(rig):
    describe(rig.code, "torch==2.13.0", "torch==2.13.0", "tiny-cuda")
    done = rig.ensure("cpu", name="tiny-cuda")
    assert "the tiny-cuda environment needs an NVIDIA GPU, but nvidia-smi is not installed here" in done.stderr
    assert not rig.cache.exists()


def test_the_cache_is_in_the_configured_folder():
    assert cache_folder.default_cache({"SLIPWAY_ENVIRONMENTS": "/e"}) == Path("/e")
    assert cache_folder.default_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/slipway/environments")


def test_full_disk_is_not_explained_by_a_missing_package():
    """Output of `python -m venv` on a full disk."""
    said = "OSError: [Errno 28] No space left on device\nError: Command '['python', '-m', 'ensurepip']' returned 1\n"
    assert environment._reason(said) == "the disk is full"
    assert environment._reason("Error: Command '['python', '-m', 'ensurepip']' returned 1\n") == environment.NO_VENV


def test_requirements_are_pinned_by_name_and_version_only():
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for name in (
        "control",
        "train",
        "store",
        "serve",
        "serve-cpu",
        "serve-cuda",
        "llama-cpp",
        "bitsandbytes",
        "lm-eval",
        "trl",
        "skypilot",
        "ui",
        "browser",
        "dev",
    ):
        pins = (REPOSITORY / "constraints" / f"{name}.txt").read_text(encoding="utf-8")
        lines = [line for line in pins.splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*( ; .+)?", line) for line in lines)
        pinned = {line.partition("==")[0] for line in lines}
        wanted = {re.split(r"[\[<>=!; ]", one)[0].lower() for one in environment.read_group(pyproject, name)}
        assert wanted <= pinned


def test_a_group_is_read_with_its_included_groups():
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    control, dev = environment.read_group(pyproject, "control"), environment.read_group(pyproject, "dev")
    assert set(control) < set(dev) and "torch==2.13.0" in dev and "pytest" in dev
    with pytest.raises(ValueError):
        environment.read_group(pyproject, "nowhere")
