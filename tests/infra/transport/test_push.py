"""A push gives the same folder over every transport, and the same folder as rsync."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zlib
from dataclasses import astuple
from pathlib import Path

import pytest

from infra.agent import receive
from infra.errors import SlipwayError, UsageError
from infra.transport import shipment
from infra.transport.protocol import ConnectionLost, ThisMachine
from infra.transport.push import PushResult, adopt, differences, push, pushed
from infra.transport.scan.inspector import BY_NAME, EMPTY_SUBMODULE, FileInspector
from infra.transport.ssh import Ssh
from tests.hosts import hosts, sshd, until  # noqa: F401

pytestmark = pytest.mark.process

TOKEN = "sw1-abcdefgh-0123456789abcdef"
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nAAAA\n"
ODD = ["with space", "-dash", "new\nline", "quo'te\"s", "ünïcode", "$HOME;`id`", "back\\slash", os.fsdecode(b"raw\xff")]


@pytest.fixture(params=["here", "ssh"])
def machine(request, tmp_path):
    if request.param == "here":
        yield ThisMachine()
    else:
        with Ssh(request.getfixturevalue("sshd").address, tmp_path / "known_hosts") as pod:
            yield pod


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "checkout"
    write(root, {name: name.encode(errors="surrogateescape") for name in ODD})
    write(root, {".gitignore": b"/var/\n*.log\n", "var/big": b"x" * 5000, "a.log": b"l", "empty": b""})
    write(root, {"sub/deep/run.sh": b"#!/bin/sh\n", "sub/data.bin": bytes(range(256)) * 9000})
    (root / "sub/deep/run.sh").chmod(0o775)
    (root / "sub/link").symlink_to("deep/run.sh")
    (root / "folder").symlink_to("sub")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def write(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def make_pod(folder: Path) -> Path:
    folder.mkdir()
    (folder / "POD.json").write_text(json.dumps({"token": TOKEN, "run": "a-1"}))
    return folder / "code"


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return permissions and content of every file and link."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (-1, os.fsencode(os.readlink(path)))
        elif path.is_file():
            found[str(path.relative_to(folder))] = (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
    return found


def change(root: Path) -> None:
    """Change a checkout in every possible way."""
    (root / ODD[0]).unlink()
    (root / "empty").unlink()
    write(root, {"empty/now a folder": b"1", "sub/data.bin": b"short", "new": b"n"})
    (root / "sub/deep/run.sh").chmod(0o644)
    (root / "sub/link").unlink()
    (root / "sub/link").symlink_to("data.bin")
    (root / "folder").unlink()
    write(root, {"folder/inside": b"was a link"})
    (root / ODD[1]).unlink()
    (root / ODD[1]).symlink_to("new")


@pytest.mark.needs("rsync")
def test_a_push_gives_the_same_result_as_rsync(machine, root, tmp_path):
    dest, mirror = make_pod(tmp_path / "pod"), tmp_path / "mirror"
    rsync = ["rsync", "-a", "--delete", "--chmod=Fu=rwX,Fgo=rX", "--exclude=.git", "--exclude=var", "--exclude=*.log"]
    for alter in (lambda _: None, change):
        alter(root)
        push(machine, root, dest, TOKEN)
        subprocess.run([*rsync, f"{root}/", f"{mirror}/"], check=True)
        assert contents(dest) == contents(mirror)
    assert not list((tmp_path / "pod").rglob("*.draft"))


def open_to_others(folder: Path) -> list[Path]:
    """Return the files writable by users other than the owner."""
    return [path for path in (folder, *folder.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o022]


def test_pushed_files_are_writable_by_the_owner_only_under_any_umask(machine, root, tmp_path):
    for path in root.rglob("*"):  # a checkout made with this umask
        path.is_symlink() or path.chmod(0o777 if path.is_dir() else 0o666)
    dest, before = make_pod(tmp_path / "pod"), os.umask(0)
    try:
        push(machine, root, dest, TOKEN)
        machine.put(b"text", dest / "made" / "file")
    finally:
        os.umask(before)
    assert contents(dest) and open_to_others(tmp_path / "pod") == []


def untouched(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Return facts that a write or a replacement of a file changes, without the access time, which a read changes."""
    seen = ((path, path.lstat()) for path in folder.rglob("*"))
    return {path: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in seen}


def test_unchanged_files_are_neither_sent_nor_touched(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    count = len(shipment.survey(root))
    assert push(machine, root, dest, TOKEN) == PushResult(count, 0, 0)
    before = untouched(dest)
    for _ in range(2):
        assert push(machine, root, dest, TOKEN) == PushResult(0, count, 0)
    (root / "empty").touch()  # a new time, the same content
    assert push(machine, root, dest, TOKEN) == PushResult(0, count, 0)
    assert untouched(dest) == before
    (root / "sub/data.bin").write_bytes(b"new")
    (root / "empty").unlink()
    assert push(machine, root, dest, TOKEN) == PushResult(1, count - 2, 1)


def test_files_changed_by_the_pod_are_restored_and_new_files_stay(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    push(machine, root, dest, TOKEN)
    wanted = contents(dest)
    (dest / "sub/data.bin").write_bytes(bytes(256 * 9000))  # of the same size
    (dest / "sub/deep/run.sh").chmod(0o600)
    (dest / "empty").unlink()
    (dest / "made").write_text("by the pod")
    assert push(machine, root, dest, TOKEN).sent == 3
    assert contents(dest) == wanted | {"made": (0o644, b"by the pod")}
    (tmp_path / "pod/state/pushed.json").unlink()  # the record is lost, but all files exist
    assert push(machine, root, dest, TOKEN).sent == 0


def test_a_push_from_or_to_a_wrong_folder_loses_no_file(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    push(machine, root, dest, TOKEN)
    (dest / "data").mkdir()
    (dest / "data/checkpoint").write_text("precious")
    before = contents(tmp_path / "pod")
    write(tmp_path, {"other/POD.json": b"{", "only secrets/.env": b"A=1"})
    (tmp_path / "nothing").mkdir()
    (dest.parent / "linked").symlink_to(tmp_path / "other")
    for source, place, token, said in [
        (tmp_path / "nothing", dest, TOKEN, "no file to send"),
        (tmp_path / "absent", dest, TOKEN, "no file to send"),
        (tmp_path / "only secrets", dest, TOKEN, "no file to send"),
        (Path("/"), dest, TOKEN, "/ is the root or a home folder"),
        (Path.home(), dest, TOKEN, "is the root or a home folder"),
        (root, dest, "another", f"is the pod of {TOKEN}, not of another"),
        (root, "/", TOKEN, "has no valid POD.json"),
        (root, "/code", TOKEN, "has no valid POD.json"),
        (root, "~/code", TOKEN, "has no valid POD.json"),
        (root, tmp_path / "other/code", TOKEN, "has no valid POD.json"),
        (root, dest.parent / "linked", TOKEN, "is a symbolic link; no files were pushed"),
    ]:
        with pytest.raises(UsageError, match=said):
            push(machine, source, place, token)
    assert {name: what for name, what in contents(tmp_path / "pod").items() if name != "linked"} == before
    assert os.listdir(tmp_path / "other") == ["POD.json"]


def test_a_secret_is_not_sent_and_a_file_that_became_secret_is_removed(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    write(root, {".env.local": b"A=1", "id": KEY.encode()})
    refused = push(machine, root, dest, TOKEN).refused
    assert [str(one) for one in refused] == [
        ".env.local: the name says that the file holds secrets",
        "id: holds a private key",
    ]
    write(root, {"empty": KEY.encode()})
    done = push(machine, root, dest, TOKEN)
    assert (done.removed, [one.path for one in done.refused]) == (1, [".env.local", "empty", "id"])
    assert not {".env.local", "id", "empty"} & contents(dest).keys()


def test_the_next_push_completes_an_interrupted_push(sshd, root, tmp_path):  # noqa: F811
    write(root, {f"big{number}": os.urandom(4_000_000) for number in range(5)})
    dest = make_pod(tmp_path / "pod")

    class Cut(Ssh):
        """Loses the connection after a large part of the stream."""

        def run(self, words, *, stdin, **more):
            return super().run(words, stdin=self.cut(stdin), **more)

        def cut(self, pieces):
            for number, piece in enumerate(pieces):
                if number == 10:
                    until(lambda: (dest / "big0").exists(), "the first files")
                    sshd.kill_sessions()
                yield piece

    with Cut(sshd.address, tmp_path / "known_hosts") as pod, pytest.raises(ConnectionLost):
        push(pod, root, dest, TOKEN)
    until(lambda: not list(dest.rglob("*.draft")), "the end of what was cut off")
    sent = contents(dest)
    assert 0 < len(sent) < len(shipment.survey(root))
    assert all(content == (root / name).read_bytes() for name, (mode, content) in sent.items() if mode >= 0)
    (root / "big0").unlink()
    with Ssh(sshd.address, tmp_path / "known_hosts") as pod:
        push(pod, root, dest, TOKEN)
    assert contents(dest).keys() == shipment.survey(root).keys()


def test_a_host_without_rsync_is_pushed_to(hosts, root, tmp_path):  # noqa: F811
    (host,) = hosts(1, hidden=["rsync"])
    with Ssh(host.address, tmp_path / "known_hosts") as pod:
        assert pod.run(["rsync", "--version"], timeout_s=20).exited != 0
        pod.put(json.dumps({"token": TOKEN}).encode(), f"{host.address.folder}/POD.json")
        push(pod, root, f"{host.address.folder}/code", TOKEN)
    assert contents(host.folder / "home/pod/code").keys() == shipment.survey(root).keys()


def test_a_file_that_changes_during_a_push_keeps_its_old_copy(root, tmp_path):
    dest = make_pod(tmp_path / "pod")

    push(ThisMachine(), root, dest, TOKEN)

    class EditedMeanwhile(ThisMachine):
        """A user edits the file between the listing and the stream."""

        def __init__(self, after):
            self.after = [None, after]

        def run(self, words, *, stdin, **more):
            after = self.after.pop(0)
            if after is not None:
                (root / "empty").write_bytes(after)
            return super().run(words, stdin=stdin, **more)

    for before, after in ((b"12", b"34"), (b"56", b"7890")):
        (root / "empty").write_bytes(before)
        with pytest.raises(UsageError, match="empty changed during the transfer; push again"):
            push(EditedMeanwhile(after), root, dest, TOKEN)
        assert (dest / "empty").read_bytes() == b""


@pytest.mark.parametrize("path", ["../escaped", "/tmp/escaped", "a/../../escaped", ".."])
def test_the_pod_refuses_a_path_outside_its_folder(path, tmp_path):
    dest = make_pod(tmp_path / "pod")
    sha = receive.sha256(b"x").hexdigest()
    request = zlib.compress(json.dumps({"remove": [], "keep": [], "send": [[path, None, 0o644, sha, 1]]}).encode())
    head = json.dumps({"dest": str(dest), "token": TOKEN}).encode() + b"\n%d\n" % len(request)
    words = [sys.executable, receive.__file__]
    done = subprocess.run(words, input=head + request + zlib.compress(b"x"), capture_output=True)
    assert done.returncode == receive.REFUSED and b"is outside of" in done.stderr
    assert not list(tmp_path.rglob("escaped"))


def test_a_pod_without_python_gets_a_clear_error(sshd, root, tmp_path):  # noqa: F811
    class WithoutPython(Ssh):
        python = "no-such-python"

    with (
        WithoutPython(sshd.address, tmp_path / "known_hosts") as pod,
        pytest.raises(SlipwayError, match="no-such-python"),
    ):
        push(pod, root, make_pod(tmp_path / "pod"), TOKEN)


def test_a_preview_lists_the_effects_of_a_push(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    assert pushed(machine, dest) == {}
    push(machine, root, dest, TOKEN)
    write(root, {"big.bin": bytes(30 << 20), ".env.local": b"TOKEN=canary", "sub/data.bin": b"changed"})
    (root / "empty").unlink()
    plan = shipment.preview(root, pushed(machine, dest))
    assert plan.largest[0] == ("big.bin", 30 << 20) and len(plan.largest) == 10
    assert plan.new == ("big.bin", "sub/data.bin") and plan.gone == ("empty",)
    assert [one.path for one in plan.refused] == [".env.local"] and "canary" not in repr(plan)
    assert (plan.ignored_files, plan.ignored_bytes) == (2, 5001)
    assert plan.files == len(contents(dest)) and plan.bytes > 30 << 20


def git(folder: Path, *words: str) -> None:
    known = ("-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *known, "-C", folder, *words], check=True, capture_output=True)


def test_files_of_submodules_are_sent_and_other_repositories_inside_are_not(tmp_path):
    for name, inner in (("deep", ""), ("library", "deep"), ("app", "library")):
        write(tmp_path / name, {f"{name}.py": b"x = 1\n", ".gitignore": b"*.log\n", "a.log": b"ignored"})
        git(tmp_path / name, "init", "-q")
        if inner:
            git(tmp_path / name, "submodule", "add", "-q", tmp_path / inner, f"vendored/{inner}")
        git(tmp_path / name, "add", "-A")
        git(tmp_path / name, "commit", "-q", "-m", "begin")
    root = tmp_path / "app"
    git(root, "submodule", "update", "--init", "--recursive")
    git(root, "clone", "-q", tmp_path / "deep", root / "clone")
    library = "vendored/library"
    write(root / library, {"new.py": b"y = 2\n", ".env": b"TOKEN=canary", "b.log": b"ignored"})
    packed = shipment.pack(root)
    wanted = {"app.py", f"{library}/library.py", f"{library}/new.py", f"{library}/vendored/deep/deep.py"}
    assert {path for path in packed.files if path.endswith(".py")} == wanted
    assert not [path for path in packed.files if path.endswith((".log", "/.git"))]
    told = dict(map(astuple, packed.refused))
    assert told == {"clone": "a separate git repository", f"{library}/.env": BY_NAME}
    sent = shipment.pack(root, [f"{library}/library.py"]).files  # named, and tracked by the submodule
    assert sent == packed.files
    git(root, "submodule", "deinit", "-q", "-f", library)
    assert dict(map(astuple, shipment.measure(root).refused))[library] == EMPTY_SUBMODULE


def link_to_a_repository(root: Path) -> None:
    (root / "lib").symlink_to("../other")


def link_to_the_root(root: Path) -> None:
    (root / "lib").symlink_to(".")
    (root / "again").symlink_to(".")


def link_in_place_of_a_submodule(root: Path) -> None:
    git(root, "submodule", "add", "-q", root.parent / "other", "lib")
    git(root, "commit", "-q", "-m", "add a submodule")
    shutil.rmtree(root / "lib")
    link_to_a_repository(root)


def link_in_place_of_a_folder(root: Path) -> None:
    write(root, {"lib/other.py": b"x = 1\n"})
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "add a folder")
    shutil.rmtree(root / "lib")
    link_to_a_repository(root)


def link_above_a_submodule(root: Path) -> None:
    git(root, "submodule", "add", "-q", root.parent / "other", "lib/app")
    git(root, "commit", "-q", "-m", "add a submodule")
    shutil.rmtree(root / "lib")
    (root / "lib").symlink_to("..")  # `lib/app` is now the repository itself


def repository_in_place_of_a_file(root: Path) -> None:
    write(root, {"lib": b"x = 1\n"})
    git(root, "add", "-A")
    (root / "lib").unlink()
    git(root, "clone", "-q", root.parent / "other", root / "lib")


@pytest.mark.parametrize(
    ("begin", "links", "told"),
    [
        (link_to_a_repository, (), "a link out of the folder, to ../other"),
        (link_to_the_root, ("again", "lib"), ""),
        (link_in_place_of_a_submodule, (), "a link out of the folder, to ../other"),
        (link_in_place_of_a_folder, (), "a link out of the folder, to ../other"),
        (link_above_a_submodule, (), "a link out of the folder, to .."),
        (repository_in_place_of_a_file, (), "a separate git repository"),
    ],
)
@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_link_is_no_submodule(tmp_path, begin, links, told, is_tracked):
    """Only files of the checkout and of its submodules are sent."""
    for name in ("other", "app"):
        write(tmp_path / name, {f"{name}.py": b"x = 1\n", "sub/a.py": b"x = 1\n"})
        git(tmp_path / name, "init", "-q")
        git(tmp_path / name, "add", "-A")
        git(tmp_path / name, "commit", "-q", "-m", "begin")
    root = tmp_path / "app"
    begin(root)
    if is_tracked and begin is not repository_in_place_of_a_file:
        git(root, "add", "-A", "--", *links or ("lib",))
    packed = shipment.pack(root)
    assert set(packed.files) - {".gitmodules"} == {"app.py", "sub/a.py", *links}
    assert dict(map(astuple, packed.refused)) == ({"lib": told} if told else {})


def test_pointers_of_git_lfs_are_counted(root):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12345\n" % 7
    write(root, {"data/a.bin": pointer, "data/b.bin": b"content"})
    assert shipment.measure(root).pointers == ()
    write(root, {"data/.gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    assert shipment.measure(root).pointers == ("data/a.bin",)
    assert shipment.measure(root / "data", "a.bin").pointers == ("a.bin",)
    assert shipment.preview(root, {}).pointers == ("data/a.bin",)


@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes"])
def test_pointers_of_git_lfs_are_counted_in_a_folder_of_a_checkout(root, place):
    write(root, {"sub/a.bin": b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12345\n" % 7})
    assert shipment.measure(root / "sub").pointers == ()
    write(root, {place: b"*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    assert shipment.measure(root / "sub").pointers == ("a.bin",)
    assert shipment.measure(root / "sub", "a.bin").pointers == ("a.bin",)


def test_a_preview_handles_seventy_thousand_files_of_the_last_push(tmp_path):
    dest = make_pod(tmp_path / "pod")
    entry = [[1, 2**60, 2**60, 2**40], 0o644, "a" * 64, [0o100644, 1, 2**60, 2**60, 2**40]]
    paths = [f"{'a folder/' * 5}{number}" for number in range(70_000)]
    write(tmp_path / "pod", {"state/pushed.json": json.dumps(dict.fromkeys(paths, entry)).encode()})
    assert pushed(ThisMachine(), dest) == dict.fromkeys(paths, "a" * 64)


def test_a_preview_outside_a_checkout_counts_skipped_files(tmp_path):
    write(tmp_path / "plain", {"a.py": b"a", ".venv/lib/x": b"xx", "sub/__pycache__/y.pyc": b"yyy"})
    plan = shipment.preview(tmp_path / "plain", {})
    assert (plan.files, plan.ignored_files, plan.ignored_bytes) == (1, 2, 5)


def test_a_damaged_record_of_earlier_pushes_is_named(machine, root, tmp_path):
    dest = make_pod(tmp_path / "pod")
    push(machine, root, dest, TOKEN)
    (tmp_path / "pod/state/pushed.json").write_text('{"half": [')
    with pytest.raises(UsageError, match="pushed.json is damaged"):
        push(machine, root, dest, TOKEN)


def test_an_unreadable_file_is_named(root, tmp_path):
    (root / "gone").write_text("x")
    seen = os.lstat(root / "gone")
    (root / "gone").unlink()
    with pytest.raises(UsageError, match="gone cannot be read for sending: No such file"):
        FileInspector.for_folder(root).inspect("gone", seen)


def test_a_second_pod_reuses_the_files_of_the_first_and_lists_differences(machine, root, tmp_path):
    write(root, {"pyproject.toml": b""})
    (tmp_path / "pods").mkdir()
    first, second = make_pod(tmp_path / "pods" / "a-1"), make_pod(tmp_path / "pods" / "b-2")
    assert adopt(machine, second, TOKEN) == "", "nobody has sent anything yet"
    push(machine, root, first, TOKEN)
    (first / "made").write_text("by the pod")
    assert adopt(machine, second, TOKEN) == "a-1" and differences(machine, root, second, TOKEN) == []
    assert {path.name for path in second.rglob("*")} == {path.name for path in first.rglob("*")} - {"made"}
    write(root, {"empty": b"no more", "new": b""})
    (root / "with space").unlink()
    (second / "sub" / "data.bin").write_bytes(b"edited there")
    assert differences(machine, root, second, TOKEN) == ["empty", "new", "sub/data.bin", "with space"]
    assert push(machine, root, second, TOKEN).removed == 1 and differences(machine, root, second, TOKEN) == []
    assert adopt(machine, first, TOKEN) == "b-2", "the newest"
    assert (first / "made").exists() and not (first / "with space").exists()
