"""Buckets as file systems: rclone of Debian and FUSE, with a bucket of moto's server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from infra.agent.execution import bucket_mount
from infra.agent.process import TOKEN
from packs.jobs.control import job_file, job_steps
from store.backends.backend import open_place
from store.run_sync import mounts
from store.run_sync.mounts import MountFolder
from tests.processes import command_line, pids
from tests.store.conftest import KEY, S3
from tests.world import ROOT, World, until

REAL = [pytest.mark.process, pytest.mark.nightly, pytest.mark.needs("rclone", "fusermount3"), pytest.mark.timeout(600)]


def mark(test):
    for one in REAL:
        test = one(test)
    return test


@pytest.fixture(scope="module")
def server():
    made = S3()
    yield made
    made.server.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """Return the folder `books` of a bucket with a file, which the processes of the test reach."""
    for name, value in {**KEY, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    made = open_place(f"s3://shelf-{uuid.uuid4().hex[:12]}/books")
    made.create()
    made.put({"a.txt": b"words\n", "deep/b.txt": b"b"})
    return made


def content(bucket, name: str) -> bytes:
    return bucket.get(name, 0, bucket.listing()[name].size)


class Pod:
    """A folder of a pod, with a bucket that rclone mounts at `data`."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root, self.environ = root, {**os.environ, "SLIPWAY_WORK": str(root / "work"), TOKEN: "sw1-test"}
        self.environ["TMPDIR"] = str(root.with_name(f"{root.name}-tmp"))
        for folder in (root / "work", root / "state", Path(self.environ["TMPDIR"])):
            folder.mkdir(parents=True)
        self.uri = uri
        assert not MountFolder("", "books", root, uri, mounts.MOUNT).leave_to_rclone()

    def begin(self, text: str) -> "subprocess.Popen[str]":
        kept = [["books", "", "~/data", self.uri, mounts.MOUNT]]
        (self.root / "run.json").write_text(json.dumps({"text": text, "name": "", "own_home": True, "kept": kept}))
        words = [sys.executable, "-m", "infra.agent.shell", "--config", str(self.root / "run.json")]
        return subprocess.Popen(
            words, cwd=ROOT, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, text: str) -> tuple[str, int]:
        child = self.begin(text)
        return child.communicate(timeout=300)[0], child.returncode

    @property
    def mounts(self) -> list[str]:
        """Return the mounts of this pod, from the kernel's table."""
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return [line.split()[1] for line in lines if self.environ["TMPDIR"] in line]

    def rclone(self) -> int:
        """Return the process of rclone."""
        ours = self.environ["TMPDIR"].encode()
        (found,) = [pid for pid in pids() if b"rclone" in command_line(pid) and ours in command_line(pid)]
        return found


@mark
def test_script_reads_and_writes_a_mounted_bucket_and_no_mount_stays(tmp_path, bucket):
    pod = Pod(tmp_path / "pod", bucket.uri)
    pod.environ |= {"RCLONE_READ_ONLY": "true", "RCLONE_S3_ENDPOINT": "http://127.0.0.1:9", "RCLONE_CONFIG": "/x"}
    text = (
        "cat ~/data/a.txt; ls ~/data\nprintf W | dd of=$HOME/data/a.txt conv=notrunc status=none\n"
        "mkdir ~/data/new; seq 100000 > ~/data/new/numbers; echo tail >> ~/data/new/numbers; rm ~/data/deep/b.txt\n"
    )
    said, code = pod.run(text)
    assert code == 0 and said.splitlines() == ["words", "a.txt", "deep"]
    numbers = "".join(f"{one}\n" for one in range(1, 100001)) + "tail\n"
    assert content(bucket, "a.txt") == b"Words\n" and content(bucket, "new/numbers") == numbers.encode()
    assert "deep/b.txt" not in bucket.listing()
    assert not pod.mounts and not list(Path(pod.environ["TMPDIR"]).glob("slipway-mounts-*/*"))


@mark
def test_killed_script_ends_rclone_and_the_removal_of_the_pod_reaches_no_bucket(tmp_path, bucket):
    pod = Pod(tmp_path / "pod", bucket.uri)
    child = pod.begin("touch ~/begun; while :; do sleep 0.1; done")
    until((pod.root / "work" / "home" / "begun").exists, "the script", 60.0)
    (point,) = pod.mounts
    assert not Path(point).is_relative_to(pod.root)
    shutil.rmtree(pod.root)
    assert sorted(bucket.listing()) == ["a.txt", "deep/b.txt"]
    group = os.getpgid(int(subprocess.check_output(["pgrep", "-P", str(child.pid), "bash"])))
    child.kill()
    child.wait()
    os.killpg(group, signal.SIGKILL)
    until(lambda: not pod.mounts, "the end of rclone", 60.0)
    assert sorted(bucket.listing()) == ["a.txt", "deep/b.txt"]


@mark
def test_script_after_a_killed_rclone_fails_and_the_next_one_finds_the_bucket_and_uploads_the_rest(tmp_path, bucket):
    pod = Pod(tmp_path / "pod", bucket.uri)
    child = pod.begin("touch ~/begun; until [ -e ~/on ]; do sleep 0.1; done; cat ~/data/a.txt")
    home = pod.root / "work" / "home"
    until((home / "begun").exists, "the script", 60.0)
    os.kill(pod.rclone(), signal.SIGKILL)
    (home / "on").touch()
    assert "not connected" in child.communicate(timeout=60)[0] and child.returncode != 0
    assert not pod.mounts
    child = pod.begin("echo late > ~/data/late.txt; sleep 0.3; touch ~/written; sleep 60")
    until((home / "written").exists, "the script", 60.0)
    os.kill(pod.rclone(), signal.SIGKILL)  # before the upload, which begins after a second
    child.terminate()
    child.wait(60)
    said, code = pod.run("cat ~/data/late.txt")
    assert (code, said.splitlines()[-1]) == (0, "late") and content(bucket, "late.txt") == b"late\n"


@mark
def test_processes_left_behind_end_before_the_wait_for_uploads_and_the_exit_code_stays(tmp_path, bucket):
    pod = Pod(tmp_path / "pod", bucket.uri)
    said, code = pod.run("(while :; do echo line; sleep 0.1; done > ~/data/log.txt) &\nsleep 1; exit 75")
    assert code == 75 and content(bucket, "log.txt").startswith(b"line\n"), said


@mark
def test_files_written_after_the_end_of_rclone_reach_the_bucket_and_the_script_has_failed(tmp_path, bucket):
    """A cluster that takes its machine back sends SIGTERM to every process, and the script saves."""
    pod = Pod(tmp_path / "pod", bucket.uri)
    child = pod.begin(
        "touch ~/begun; until [ -e ~/on ]; do sleep 0.1; done; mkdir ~/data/c; echo saved > ~/data/c/step"
    )
    home = pod.root / "work" / "home"
    until((home / "begun").exists, "the script", 60.0)
    os.kill(pod.rclone(), signal.SIGTERM)
    until(lambda: not pod.mounts, "the end of rclone", 60.0)
    (home / "on").touch()
    said = child.communicate(timeout=60)[0]
    assert child.returncode == 1 and f"rclone of {bucket.uri} ended during the script" in said
    assert content(bucket, "c/step") == b"saved\n" and not list(Path(pod.environ["TMPDIR"]).glob("slipway-mounts-*/*"))


@mark
def test_mount_that_stays_after_the_end_of_rclone_is_not_moved_into_the_bucket(tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(bucket_mount.tempfile, "tempdir", str(tmp_path))
    first, second = (bucket_mount.BucketMount(tmp_path / "pod", "books", bucket.uri) for _ in range(2))
    first.start(os.environ)
    second.process = subprocess.Popen(["true"])  # the rclone of a second script of the pod has ended
    second.process.wait()
    second.environ, second.words = first.environ, first.words
    with monkeypatch.context() as stuck:
        stuck.setattr(bucket_mount, "unmount", lambda point: None)
        second.end()
    assert sorted(bucket.listing()) == ["a.txt", "deep/b.txt"]
    first.end()
    assert sorted(bucket.listing()) == ["a.txt", "deep/b.txt"] and not os.path.lexists(first.point)


@mark
def test_bucket_that_rclone_cannot_mount_ends_the_script_with_the_reason(tmp_path, bucket):
    pod = Pod(tmp_path / "pod", bucket.uri)
    pod.environ["AWS_CA_BUNDLE"] = str(tmp_path / "missing.pem")
    said, code = pod.run("echo never")
    assert code == 1 and "rclone could not mount the bucket" in said and "missing.pem" in said and "never" not in said
    assert "MOUNT_CACHED" in said and not pod.mounts
    pod.environ["PATH"] = str(tmp_path)
    said, code = pod.run("echo never")
    assert code == 1 and "rclone does not start" in said


@mark
def test_launch_on_this_machine_mounts_a_bucket_and_a_machine_without_rclone_copies(tmp_path, bucket, server):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"file_mounts: {{~/data: {{source: '{bucket.uri}', mode: MOUNT}}}}\n"
        "setup: cat ~/data/a.txt\nrun: cat ~/data/a.txt; echo $RANDOM > ~/data/$NAME\n"
    )
    environ = {**KEY, "AWS_ENDPOINT_URL": server.url}
    world = World(tmp_path / "world", environ)
    plan = world.run("launch", str(file), "--provider", "local", "-e", "NAME=one", "--dry-run").stderr
    assert f"~/data is {bucket.uri}, mounted by rclone" in plan
    world.inv("launch", str(file), "--provider", "local", "-e", "NAME=one", "-n", "one", "--yes")
    pod = world.folder / "pods" / "one"
    assert "one" in bucket.listing() and not list((pod / "work/mounts").rglob("a.txt"))
    bare = tmp_path / "bin"
    bare.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for one in Path(folder).glob("*"):
            if one.name not in ("rclone",) and not (bare / one.name).exists():
                (bare / one.name).symlink_to(one)
    world = World(tmp_path / "other", {**environ, "PATH": str(bare)})
    plan = world.run("launch", str(file), "--provider", "local", "-e", "NAME=two", "--dry-run").stderr
    assert "as with MOUNT_CACHED, because this machine lacks rclone (Debian, Ubuntu: apt install rclone)" in plan
    world.inv("launch", str(file), "--provider", "local", "-e", "NAME=two", "-n", "two", "--yes")
    assert "two" in bucket.listing() and list((world.folder / "pods/two/work/mounts").rglob("a.txt"))


@pytest.mark.process
def test_reason_for_a_copy_names_what_the_machine_lacks_and_the_decision_of_a_pod_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mounts.fuse_problem() == "this machine lacks rclone and fuse3 (Debian, Ubuntu: apt install rclone fuse3)"
    for name in ("rclone", "fusermount"):
        (tmp_path / name).write_text("#!/bin/sh\necho fusermount: not permitted >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(mounts, "FUSE", str(tmp_path / "no-fuse"))
    assert mounts.fuse_problem().startswith("this machine gives no access to FUSE (")
    monkeypatch.setattr(mounts, "FUSE", os.devnull)
    folder = MountFolder("", "books", tmp_path / "pod", "s3://shelf/books", mounts.MOUNT)
    assert folder.leave_to_rclone() == "rclone cannot mount on this machine (fusermount: not permitted)"
    monkeypatch.setattr(mounts, "mount_problem", lambda: "")
    monkeypatch.setattr(MountFolder, "_file_problem", lambda self: "")
    record = tmp_path / "pod/work/mounts/.books.mount"
    record.parent.mkdir(parents=True)
    assert folder.leave_to_rclone() == "" and record.read_text() == "s3://shelf/books\n"
    monkeypatch.setattr(mounts, "FUSE", str(tmp_path / "no-fuse"))
    assert folder.leave_to_rclone() == ""
    copied = MountFolder("", "films", tmp_path / "pod", "s3://shelf/films", mounts.MOUNT)
    copied.here.mkdir(parents=True)
    assert copied.leave_to_rclone() == "the files are on the pod already"
    assert MountFolder("", "books", tmp_path / "pod", "s3://shelf/books").leave_to_rclone() and not record.exists()


def test_tasks_that_copy_and_mount_one_bucket_have_folders_of_their_own(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: two\n---\nfile_mounts: {~/data: {source: s3://shelf/a, mode: MOUNT}}\nrun: x\n---\n"
        "file_mounts: {~/data: {source: s3://shelf/a, mode: COPY}}\nrun: x\n"
    )
    (first,), (second,) = job_steps.lay_out(job_file.load(path), is_own=True).kept
    assert (first.kind, second.kind) == ("mount", "still") and first.name != second.name


@pytest.mark.parametrize(
    "environ, words",
    [
        ({}, ["--s3-provider", "AWS", "--s3-region", "us-east-1"]),
        (
            {"AWS_ENDPOINT_URL": "http://a", "AWS_DEFAULT_REGION": "eu-west-1", "AWS_CA_BUNDLE": "/ca.pem"},
            ["--s3-provider", "Other", "--s3-region", "eu-west-1", "--s3-endpoint", "http://a", "--ca-cert", "/ca.pem"],
        ),
        (
            {
                "AWS_ENDPOINT_URL": "http://a",
                "AWS_ENDPOINT_URL_S3": "http://b",
                "AWS_REGION": "x",
                "AWS_DEFAULT_REGION": "y",
            },
            ["--s3-provider", "Other", "--s3-region", "x", "--s3-endpoint", "http://b"],
        ),
    ],
)
def test_service_of_a_mount_follows_the_variables_of_the_aws_tools(environ, words):
    assert bucket_mount.service_words(environ) == words


def test_uploads_are_given_up_after_five_failed_tries(tmp_path):
    one = bucket_mount.BucketMount(tmp_path, "books", "s3://shelf/books")
    one.log.parent.mkdir(parents=True)
    line = "ERROR : a: vfs cache: failed to upload try #{}, will retry in 1s: AccessDenied: no\n"
    one.log.write_text("".join(line.format(number) for number in (1, 2, 3, 4)))
    assert one._tries() == 4
    one.log.write_text(line.format(5))
    assert one._tries() == bucket_mount.MOST_TRIES and one.last_words().endswith("AccessDenied: no")


def test_written_file_is_pending_until_the_record_of_the_cache_says_otherwise(tmp_path):
    one = bucket_mount.BucketMount(tmp_path, "books", "s3://shelf/books")
    records = one.cache / "vfsMeta" / ":s3{x}" / "shelf"
    records.mkdir(parents=True)
    for name, text in (("clean", '{"Dirty": false}'), ("dirty", '{"Dirty": true}'), ("being-written", "")):
        (records / name).write_text(text)
    assert sorted(one.pending()) == ["being-written", "dirty"]
