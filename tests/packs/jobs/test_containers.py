"""Scripts of a job in a container of Podman itself; the image is made from programs of this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from infra.agent.process import TOKEN
from scripts.project import debian
from tests.world import ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.needs("podman", "runc"), pytest.mark.timeout(900)]

PROGRAMS = ("bash", "cat", "ls", "mkdir", "rm", "sed", "sleep", "touch")
IMAGE = "localhost/slipway-tests:1"
# The limits of a container must not exceed the limits of these tests, which may not raise them.
CONFIGURATION = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
PODMAN = """#!/bin/sh
export CONTAINERS_CONF={folder}/containers.conf
exec {podman} --root {folder}/store --runroot {folder}/run --runtime runc "$@"
"""


def root_file_system(path):
    """Write an archive with a few programs of this machine, their libraries and a file."""
    wanted = {f"usr/bin/{name}": Path(shutil.which(name) or "").resolve() for name in PROGRAMS}
    for program in (*wanted.values(),):
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        wanted |= {one.lstrip("/"): Path(one).resolve() for one in re.findall(r"/\S+", said)}
    with tarfile.open(path, "w") as archive:
        for name, source in wanted.items():
            archive.add(source, re.sub(r"^lib", "usr/lib", name))
        for name, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name in ("etc", "tmp", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)


@pytest.fixture(scope="module")
def podman():
    """Yield the path of a `podman` with the image, and with storage of its own."""
    folder = Path(tempfile.mkdtemp(prefix="podman-"))  # Podman takes no path of more than 50 letters.
    (folder / "bin").mkdir()
    (folder / "containers.conf").write_text(CONFIGURATION)
    words = folder / "bin" / "podman"
    words.write_text(PODMAN.format(folder=folder, podman=debian.find("podman")))
    words.chmod(0o755)
    root_file_system(folder / "root.tar")
    subprocess.run([words, "import", folder / "root.tar", IMAGE], check=True, capture_output=True)
    yield words
    subprocess.run([words, "rm", "--all", "--force", "--time=0"], check=True, capture_output=True)
    subprocess.run([words, "rmi", "--all", "--force"], check=True, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


class Pod:
    """A folder of a pod with scripts that run in a container."""

    def __init__(self, root, podman, **environ):
        for name in ("work", "state", "code/sdk", "mount-0"):
            (root / name).mkdir(parents=True)
        (root / "mount-0" / "data.txt").write_text("data\n")
        self.root = root
        path = f"{podman.parent}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "SLIPWAY_WORK": str(root / "work"), TOKEN: "sw1-test", **environ}

    def begin(self, name, text, **more):
        mounts = [["mount-0", "", "/data"]]
        said = {"text": text, "name": "", "own_home": True, "image": IMAGE, "mounts": mounts, **more}
        (self.root / f"{name}.json").write_text(json.dumps(said))
        words = [sys.executable, "-m", "infra.agent.shell", "--config", str(self.root / f"{name}.json")]
        return subprocess.Popen(
            words, cwd=ROOT, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, name, text, **more):
        child = self.begin(name, text, **more)
        return child.communicate(timeout=300)[0], child.returncode


def test_run_finds_what_setup_left_in_the_container_and_gets_mounts_and_secrets(tmp_path, podman):
    pod = Pod(tmp_path / "pod", podman, A_KEY="it's\ntwo lines")
    said, code = pod.run("setup", "echo installed > /usr/bin/left; echo 'export KEPT=yes' >> ~/.bashrc")
    assert (said, code) == ("", 0)
    text = 'cat /usr/bin/left /data/data.txt; echo "$A_KEY"; echo $KEPT $OWN; [ -e /usr/bin/python3 ] || exit 5'
    said, code = pod.run("run", text, envs={"OWN": "a b"})
    assert (said.splitlines(), code) == (["installed", "data", "it's", "two lines", "yes a b"], 5)
    own = {"LANG": "C.UTF-8", "TMPDIR": "/x", "LD_LIBRARY_PATH": "/opt/x"}
    said, code = pod.run("own", 'echo "$LANG $TMPDIR $LD_LIBRARY_PATH"', envs=own)
    assert (said, code) == ("C.UTF-8 /x /opt/x\n", 0)
    assert not list((tmp_path / "pod" / "state").glob("*.variables"))
    assert (tmp_path / "pod" / "work" / "home" / ".bashrc").is_file()


def test_signal_reaches_all_processes_of_a_script_and_a_new_attempt_ends_those_of_a_killed_one(tmp_path, podman):
    pod = Pod(tmp_path / "pod", podman)
    text = (
        "(trap 'sleep 1; echo child saved > ~/child; exit' TERM; while :; do sleep 0.1; done) &\n"
        "trap 'exit 75' TERM\necho 1 > ~/begun; while :; do sleep 0.1; done\n"
    )
    begun = tmp_path / "pod" / "work" / "home" / "begun"
    child = pod.begin("run", text)
    until(begun.exists, "the script", 300.0)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=120) == 75
    assert (begun.parent / "child").read_text() == "child saved\n"
    begun.unlink()
    child = pod.begin("run", text)
    until(begun.exists, "the script", 300.0)
    child.kill()
    child.wait()
    assert pod.run("run", "echo next; ls /proc") != ("", 0)
    listed = subprocess.run([podman, "ps", "--quiet"], capture_output=True, text=True, check=True).stdout
    assert listed == ""


def test_container_of_a_removed_folder_is_removed_by_the_next_container(tmp_path, podman):
    first = Pod(tmp_path / "first", podman)
    assert first.run("setup", "touch /left") == ("", 0)
    shutil.rmtree(tmp_path / "first")
    assert Pod(tmp_path / "second", podman).run("setup", ":") == ("", 0)
    asked = [podman, "ps", "--all", "--format={{.Labels}}"]
    labels = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/second" in labels and f"{tmp_path}/first" not in labels


def test_launch_on_this_machine_runs_an_image_and_down_ends_the_container(tmp_path, podman):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"resources: {{image_id: 'docker:{IMAGE}'}}\nsetup: touch /of-setup\n"
        "run: |\n  ls /of-setup\n  while :; do sleep 0.1; done\n"
    )
    world = World(tmp_path / "world", {"PATH": f"{podman.parent}:{os.environ['PATH']}"})
    try:
        launch = world.begin("launch", str(file), "--provider", "local", "-n", "case", "--yes")
        until(lambda: "/of-setup" in world.run("logs", "case", "--file", "run").stdout, "the run", 300.0)
        plan = world.run("launch", str(file), "--provider", "local", "-n", "other", "--dry-run")
        told = " ".join(f"{plan.stdout} {plan.stderr}".split())
        assert f"Podman on the machine runs `setup` and `run` in a container of {IMAGE}" in told
        world.inv("down", "case")
        launch.communicate(timeout=120)
        listed = subprocess.run([podman, "ps", "--quiet"], capture_output=True, text=True, check=True).stdout
        assert listed == ""
    finally:
        world.inv("down", "--all")
