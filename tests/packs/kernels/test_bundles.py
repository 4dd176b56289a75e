"""Bundles of kernels in a store: signed by the user, and never unpacked after damage or from others."""

import hashlib
import io
import json
import os
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from packs.kernels.records.job_variables import JOB_KEY, OWN, RENTED
from packs.kernels.trainer import bundle, user_key
from packs.kernels.trainer.bundle import UnusableBundle, open_header, read_files, seal, unseal, write_files
from packs.kernels.trainer.stored_bundles import ARCHIVE, FOLDER, HEADER, KernelStore
from packs.kernels.trainer.user_key import NoKey, find_key
from scripts.store.gc import unread
from store.artifacts.artifacts import Store

KEY = b"k" * 32
FACTS = {"device": "cpu", "cpu": "zen", "torch": "2.13.0", "python": "3.11", "code": "c", "shape": "s", "dtype": "bf16"}
FILES = {"fxgraph/ab/graph": b"graph" * 100, "cd/kernel.so": b"\x7fELF" * 500, "cd/kernel.cpp": b"int x;" * 50}
COMPILE_S = 50.0


@pytest.fixture
def space(tmp_path) -> KernelStore:
    said: list[str] = []
    found = KernelStore(uri=str(tmp_path / "store"), key=KEY, facts=FACTS, say=said.append)
    found.publish(FILES, COMPILE_S, "a machine")
    return found


def folder_of(space: KernelStore) -> Path:
    return next(Path(space.uri, FOLDER).glob(f"{space.name}-*"))


def found(space: KernelStore) -> dict[str, bytes]:
    return space.find(lambda header: None)


def put(space: KernelStore, header: bytes, archive: bytes) -> None:
    folder = folder_of(space)
    (folder / HEADER).write_bytes(header)
    (folder / ARCHIVE).write_bytes(archive)


def test_published_kernels_are_found_by_the_same_user_and_the_same_facts_only(space):
    assert found(space) == FILES
    for name in FACTS:
        assert found(replace(space, facts={**FACTS, name: "other"})) == {}
    assert found(replace(space, key=b"o" * 32)) == {}


def test_bundle_with_more_files_is_found_first(space):
    more = {**FILES, "ef/new.so": b"new"}
    space.publish(more, COMPILE_S, "a machine")
    assert found(space) == more
    (sorted(Path(space.uri, FOLDER).glob(f"{space.name}-*"))[-1] / ARCHIVE).write_bytes(b"damaged")
    assert found(space) == FILES


def test_kernels_are_not_restored_if_the_compilation_is_faster(tmp_path):
    space = KernelStore(uri=str(tmp_path), key=KEY, facts=FACTS, say=lambda text: None)
    space.publish(FILES, 1.5, "a machine")
    assert found(space) == {}


def damages(header: bytes, archive: bytes) -> dict[str, tuple[bytes, bytes]]:
    """Return damaged pairs of a header and an archive by kind of damage, without a new signature."""
    kinds: dict[str, tuple[bytes, bytes]] = {}
    for at in range(0, len(header), max(1, len(header) // 45)):
        kinds[f"header bit {at}"] = header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :], archive
    for at in range(0, len(archive), max(1, len(archive) // 35)):
        kinds[f"archive bit {at}"] = header, archive[:at] + bytes([archive[at] ^ 1]) + archive[at + 1 :]
    mac, signed = header.split(b"\n", 1)
    for cut in (0, 1, len(mac), len(header) // 2, len(header) - 1):
        kinds[f"header cut at {cut}"] = header[:cut], archive
        kinds[f"archive cut at {cut}"] = header, archive[:cut]
    said = json.loads(signed)
    for name in said:
        less = {key: value for key, value in said.items() if key != name}
        kinds[f"without {name}"] = mac + b"\n" + json.dumps(less).encode(), archive
    other, other_archive = seal({"evil.so": b"evil"}, FACTS, COMPILE_S, b"o" * 32)
    kinds |= {
        "all of another user": (other, other_archive),
        "archive of another user": (header, other_archive),
        "signature of another user": (other.split(b"\n")[0] + b"\n" + signed, archive),
        "no signature": (b"\n" + signed, archive),
        "unkeyed digest as signature": (hashlib.sha256(signed).hexdigest().encode() + b"\n" + signed, archive),
        "more after the header": (header + b" ", archive),
        "more after the archive": (header, archive + b"\0"),
        "long header": (header + b" " * bundle.HEADER_BYTES, archive),
        "long archive": (header, archive + bytes(1 << 21)),
        "empty": (b"", b""),
    }
    return kinds


def test_damaged_and_foreign_bundles_are_neither_used_nor_fatal(space):
    folder = folder_of(space)
    header, archive = (folder / HEADER).read_bytes(), (folder / ARCHIVE).read_bytes()
    kinds = damages(header, archive)
    assert len(kinds) >= 100
    used = []
    for kind, (new_header, new_archive) in kinds.items():
        put(space, new_header, new_archive)
        used += [kind] if found(space) else []
    assert used == []
    put(space, header, archive)
    assert found(space) == FILES


def test_links_pipes_folders_and_missing_files_are_not_read(space, tmp_path):
    folder = folder_of(space)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    (tmp_path / "outside").write_bytes((folder / ARCHIVE).read_bytes())
    for make in (
        lambda path: path.symlink_to(tmp_path / "outside"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: None,
    ):
        for name in (HEADER, ARCHIVE):
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            (folder / name).unlink()
            make(folder / name)
            assert found(space) == {}


def packed(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in entries:
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def named(name: str, kind: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o600) << 16
    return info


ODD = {
    "path out of the folder": [(named("../evil.so"), b"x")],
    "path out and in": [(named("a/../../evil.so"), b"x")],
    "absolute path": [(named("/etc/evil.so"), b"x")],
    "path with an empty part": [(named("a//evil.so"), b"x")],
    "path with a backslash": [(named("a\\..\\evil.so"), b"x")],
    "hidden file": [(named("a/.evil"), b"x")],
    "mark of a process": [(named("in-use"), b"x")],
    "lock": [(named("locks/evil"), b"x")],
    "link": [(named("link", stat.S_IFLNK), b"/etc")],
    "device": [(named("device", stat.S_IFCHR), b"")],
    "folder": [(named("folder/", stat.S_IFDIR), b"")],
    "name twice": [(named("a.so"), b"one"), (named("a.so"), b"two")],
    "long name": [(named("a" * 300), b"x")],
    "more bytes than a cache has": [(named("a.so"), bytes(2000)), (named("b.so"), bytes(2000))],
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_of_a_faulty_writer_with_the_right_key_is_refused(kind, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_UNPACKED_BYTES", 3000)
    archive = packed(ODD[kind])
    header, _ = seal(FILES, FACTS, COMPILE_S, KEY)
    signed = replace(
        open_header(header, FACTS, KEY), num_bytes=len(archive), sha256=hashlib.sha256(archive).hexdigest()
    )
    with pytest.raises(UnusableBundle):
        unseal(signed, archive)


def test_archive_that_is_no_zip_is_refused():
    header = open_header(seal(FILES, FACTS, COMPILE_S, KEY)[0], FACTS, KEY)
    for archive in (b"", b"PK\x05\x06" + bytes(10), b"#!/bin/sh", packed([])[:-1]):
        with pytest.raises(UnusableBundle):
            unseal(replace(header, num_bytes=len(archive), sha256=hashlib.sha256(archive).hexdigest()), archive)


def test_files_of_a_cache_come_back_without_locks_links_and_drafts(tmp_path):
    cache, new = tmp_path / "cache", tmp_path / "new"
    write_files({**FILES, "locks/one": b"", "in-use": b"", "ab/.draft": b""}, cache)
    (cache / "link.so").symlink_to("/etc/hostname")
    files = read_files(cache)
    assert files == FILES
    write_files({"cd/kernel.so": b"of this run"}, new)
    write_files(files, new)
    assert read_files(new) == {**FILES, "cd/kernel.so": b"of this run"}
    assert stat.S_IMODE((new / "cd/kernel.cpp").stat().st_mode) == 0o600


def test_key_file_of_a_store_is_private_and_kept(tmp_path):
    key = find_key(str(tmp_path / "store"), OWN)
    file = next((tmp_path / "store").glob(".kernels-key-*"))
    assert find_key(f"file://{tmp_path}/store", RENTED) == key == file.read_bytes() and len(key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["readable", "writable", "link", "second name", "short", "long", "folder", "owner"])
def test_key_file_that_others_may_know_or_change_is_refused(tmp_path, damage):
    find_key(str(tmp_path), OWN)
    file = next(tmp_path.glob(".kernels-key-*"))
    if damage in ("readable", "writable"):
        file.chmod(0o640 if damage == "readable" else 0o620)
    elif damage == "link":
        file.rename(tmp_path / "other")
        file.symlink_to(tmp_path / "other")
    elif damage == "second name":
        os.link(file, tmp_path / "other")
    elif damage in ("short", "long"):
        file.write_bytes(b"k" * (31 if damage == "short" else 33))
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    elif os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    else:
        pytest.skip("only root can give a file away")
    with pytest.raises(NoKey):
        find_key(str(tmp_path), OWN)


@pytest.mark.parametrize("kind", ["nfs4", "vfat", "fuse.sshfs", "cifs", "9p", ""])
def test_store_on_a_file_system_with_unknown_owners_has_no_key(tmp_path, monkeypatch, kind):
    mounts = tmp_path / "mountinfo"
    line = f"21 1 0:20 / {tmp_path} rw - {kind} source rw\n"
    mounts.write_text(f"20 1 8:1 / / rw - ext4 /dev/vda rw\n{line}")
    monkeypatch.setattr(user_key, "MOUNTS", mounts if kind else tmp_path / "missing")
    with pytest.raises(NoKey, match="may report wrong owners"):
        find_key(str(tmp_path), OWN)


def test_own_machine_never_uses_the_key_of_rented_machines(tmp_path):
    environ = {JOB_KEY: "rented", "XDG_CONFIG_HOME": str(tmp_path)}
    assert find_key("s3://bucket/folder", RENTED, environ) == b"rented"
    assert find_key("s3://bucket/folder", OWN, environ) == (tmp_path / "slipway/kernels-key").read_bytes() != b"rented"
    with pytest.raises(NoKey):
        find_key("s3://bucket/folder", RENTED, {"XDG_CONFIG_HOME": str(tmp_path)})


def test_store_gc_removes_old_bundles(space):
    published = Store(space.uri).list_all()[1]
    assert [one.name for one in published] == [f"{FOLDER}/{folder_of(space).name}"]
    assert unread(space.uri, [], published, (), published[0].published_at) == []
    due = unread(space.uri, [], published, (), published[0].published_at + 1)
    Store(space.uri).remove(due[0].name)
    assert found(space) == {}
