"""An archive as untrusted input: no archive writes, reads or changes a file outside of the target folder."""

import gzip
import io
import os
import stat
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import UsageError
from packs.control_host.control import bounded_tar
from store.untrusted_input import UnusableDocument
from tests import seeds


def packed(*members, form=tarfile.PAX_FORMAT):
    """Return an archive of (name, kind, content or target, mode)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=form) as tar:
        for name, kind, content, mode in members:
            one = tarfile.TarInfo(name)
            one.type, one.mode = kind, mode
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                one.linkname = content
            else:
                one.size = len(content)
            tar.addfile(one, io.BytesIO(content if isinstance(content, bytes) else b""))
    return io.BytesIO(file.getvalue())


def declared(name, kind, size, form=tarfile.GNU_FORMAT):
    """Return an archive that only declares a member of this size."""
    one = tarfile.TarInfo(name)
    one.type, one.size = kind, size
    return io.BytesIO(gzip.compress(one.tobuf(form) + bytes(10240)))


def file(name, content=b"x", mode=0o644):
    return name, tarfile.REGTYPE, content, mode


def link(name, target):
    return name, tarfile.SYMTYPE, target, 0o777


def second(name, first):
    return name, tarfile.LNKTYPE, first, 0o777


def extract(archive, folder, **bounds):
    folder.mkdir(exist_ok=True)
    links = bounded_tar.extract(
        archive, folder, lambda name: name.split("/")[0] == "top", bounded_tar.ArchiveBounds(**bounds)
    )
    return bounded_tar.make_links(folder, links)


def test_files_folders_and_links_get_harmless_permissions(tmp_path):
    left_out = extract(
        packed(
            ("top", tarfile.DIRTYPE, b"", 0o7777),
            file("top/3/model", b"weights", 0o6777),
            file("top/key", b"k", 0o600),
            link("top/latest", "3"),
            link("top/3/up", "../key"),
            link("top/gone", "nowhere"),
            second("top/same", "top/key"),
        ),
        tmp_path / "out",
    )
    top = tmp_path / "out" / "top"
    assert left_out == []
    assert os.readlink(top / "latest") == "3" and (top / "3" / "up").read_bytes() == b"k"
    assert (top / "gone").is_symlink() and (top / "same").read_bytes() == b"k"
    assert (top / "same").stat().st_nlink == 1
    modes = {name: (top / name).stat().st_mode & 0o7777 for name in ("3/model", "key", "same")}
    assert modes == {"3/model": 0o755, "key": 0o600, "same": 0o600} and not top.stat().st_mode & 0o7022


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "top/../../x", "top//x", "top/./x", "", "other/x", "top/" + "n" * 300]
)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_name_outside_of_the_folder_or_the_request_is_refused(tmp_path, name, kind):
    with pytest.raises(UnusableDocument):
        extract(packed(file("top/a"), (name, kind, "a" if kind in b"12" else b"", 0o644)), tmp_path / "out")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "out", "top"]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "..", "../..", "../../x", "s/../..", "a/../../x", "./../..", "n" * 3000]
)
def test_link_that_may_leave_the_folder_is_omitted_and_named(tmp_path, target):
    sentences = extract(packed(file("top/a"), link("top/s", "."), link("top/odd\x1b[2J", target)), tmp_path / "out")
    (said,) = sentences
    assert said.startswith("top/odd\\x1b[2J, a link to ") and sorted(os.listdir(tmp_path / "out" / "top")) == ["a", "s"]


def test_no_file_is_written_through_a_link_or_a_duplicate_name(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    (kept / "id_rsa").write_text("key")
    (kept / "id_rsa").chmod(0o600)
    before = (kept / "id_rsa").stat()
    attacks = (
        (link("top/a", str(kept)), file("top/a/id_rsa")),
        (link("top/a", "../../kept"), file("top/a/new")),
        (second("top/k", str(kept / "id_rsa")),),
        (second("top/k", "../kept/id_rsa"),),
        (second("top/k", "top/none"),),
        (link("top/l", str(kept / "id_rsa")), second("top/k", "top/l")),
        (file("top/a"), file("top/a")),
        (file("top/a"), file("top/a/b")),
        (file("top/a"), link("top/a", "b")),
        (second("top/a", "top/a"),),
        (("top/p", tarfile.FIFOTYPE, b"", 0o644),),
        (("top/d", tarfile.CHRTYPE, b"", 0o644),),
    )
    for number, members in enumerate(attacks):
        with pytest.raises(UnusableDocument):
            extract(packed(*members), tmp_path / f"out{number}")
    after = (kept / "id_rsa").stat()
    assert os.listdir(kept) == ["id_rsa"] and (after.st_mode, after.st_nlink) == (before.st_mode, before.st_nlink)


def test_sizes_are_bounded_for_every_header(tmp_path):
    zeros = bytes(3 << 20)
    for number, (archive, bounds) in enumerate(
        (
            (packed(file("top/a", zeros)), {"file_bytes": 1 << 20}),
            (packed(*(file(f"top/{n}", zeros) for n in range(4))), {"bytes": 10 << 20}),
            (packed(file("top/a", zeros), *(second(f"top/{n}", "top/a") for n in range(4))), {"bytes": 10 << 20}),
            (packed(*(file(f"top/{n}") for n in range(9))), {"entries": 8}),
        )
    ):
        with pytest.raises(UnusableDocument):
            extract(archive, tmp_path / f"out{number}", **bounds)
        used = sum(one.stat().st_size for one in (tmp_path / f"out{number}").rglob("*") if one.is_file())
        assert used <= bounds.get("bytes", 10 << 20)
    with pytest.raises(UnusableDocument, match="a part of the list of files"):
        extract(declared("top/long", tarfile.GNUTYPE_LONGNAME, 1 << 40), tmp_path / "long")
    with pytest.raises(UnusableDocument, match="the limit for a file is|unpacks to more than"):
        extract(declared("top/large", tarfile.REGTYPE, 1 << 50), tmp_path / "large")
    with pytest.raises(UnusableDocument):
        extract(declared("top/short", tarfile.REGTYPE, 1 << 20), tmp_path / "short")


PARTS = st.sampled_from(["top", "a", "b", "..", ".", "", "victim", "\0", "\udc80", "n" * 256, "A"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.just("/victim")
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE,
                         tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Q"])  # fmt: skip


@st.composite
def archives(draw):
    names = [draw(NAMES.map(lambda name: f"top/{name}")) if draw(st.booleans()) else draw(NAMES) for _ in range(6)]
    members = []
    for name in names[: draw(st.integers(1, 6))]:
        kind = draw(KINDS)
        is_link = kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
        members.append(
            (name, kind, draw(NAMES | st.sampled_from(names)) if is_link else b"content", draw(st.integers(0, 0o7777)))
        )
    raw = bytearray(packed(*members, form=draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))).getvalue())
    if draw(st.integers(0, 3)) == 0:
        unzipped = bytearray(gzip.decompress(raw))
        unzipped[draw(st.integers(0, len(unzipped) - 1))] = draw(st.integers(0, 255))
        raw = bytearray(gzip.compress(unzipped))
    return bytes(raw[: draw(st.sampled_from([len(raw)] * 4 + [len(raw) // 2]))])


@pytest.mark.slow
@settings(max_examples=seeds.examples(60, 300))
@given(archives())
def test_any_archive_changes_only_its_own_folder(tmp_path_factory, raw):
    base = tmp_path_factory.mktemp("any")
    (base / "victim").mkdir()
    (base / "victim" / "file").write_text("mine")
    (base / "target").mkdir()
    (base / "target" / "b").symlink_to(base / "victim")
    before = (base / "victim" / "file").stat()
    try:
        extract(io.BytesIO(raw), base / "out")
        if (base / "out" / "top").is_dir():
            bounded_tar.put(base / "out" / "top", base / "target")
    except (UnusableDocument, UsageError):
        pass
    after = (base / "victim" / "file").stat()
    assert (before.st_mode, before.st_nlink, before.st_mtime_ns) == (after.st_mode, after.st_nlink, after.st_mtime_ns)
    assert os.listdir(base / "victim") == ["file"] and set(os.listdir(base)) <= {"victim", "target", "out"}
    for one in (base / "out", base / "target"):
        for folder, folders, files in os.walk(one):
            for name in (*folders, *files):
                seen = os.lstat(os.path.join(folder, name))
                if stat.S_ISLNK(seen.st_mode) and (folder, name) != (str(base / "target"), "b"):
                    inside = os.path.realpath(os.path.join(folder, name))
                    assert inside.startswith(
                        (f"{base}/out/top", f"{base}/target", f"{base}/victim" if one.name == "target" else "-")
                    )
                assert stat.S_ISLNK(seen.st_mode) or not seen.st_mode & 0o7022
