"""The common promises of a folder, a bucket and a repository, with requests over a bad network."""

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import credentials, packs
from store.artifacts.artifacts import Store
from store.backends.backend import BACKENDS, PART_BYTES, Backend, open_place
from store.backends.hub import Repository
from store.backends.s3 import Bucket
from store.manifest import Artifact, NoStore, StoreError
from store.patience import Conflict, Patience, Retryable, StoreAway
from store.run_sync.run_folder import MANIFEST, RunFolder
from tests import seeds
from tests.faults.trial import rounds
from tests.hub import Fault
from tests.store.conftest import QUICK, TOKEN, digest, moto_app, quick, serving
from tests.store.proxy import wire
from tests.store.test_store import folder_of
from tests.store.test_uploader import FOLDER, RUN, fetch, pods, uploader

pytestmark = pytest.mark.process

pods = pods
LARGE = random.Random(7).randbytes(700_000)


def test_every_kind_of_address_with_keys_has_a_backend_in_the_table():
    assert {*credentials.PLACES, "", "file", "memory"} == set(BACKENDS)
    assert all(issubclass(packs.load(where), Backend) for where in BACKENDS.values())


def test_a_stored_file_is_listed_read_by_ranges_and_removed(uri, tmp_path):
    place = open_place(uri)
    assert place.listing() == {} and place.create() is (uri == str(tmp_path / "the store"))
    (tmp_path / "large").write_bytes(LARGE)
    place.put({"a": b"hello", "deep/down/large": tmp_path / "large"})
    assert {name: one.size for name, one in place.listing().items()} == {"a": 5, "deep/down/large": 700_000}
    assert list(place.listing("deep")) == ["deep/down/large"] and place.listing("nowhere") == {}
    assert [place.get("a", start, stop) for start, stop in ((0, 5), (1, 3), (3, 99), (5, 9), (7, 9))] == [
        b"hello",
        b"el",
        b"lo",
        b"",
        b"",
    ]
    assert place.get("deep/down/large", 600_000, 700_000) == LARGE[600_000:]
    assert place.sha256("deep/down/large") == digest(LARGE)
    with pytest.raises(FileNotFoundError):
        place.get("b", 0, 1)
    place.put({"a": b"new"}, gone=["deep/down/large", "never/there"])
    assert list(place.listing()) == ["a"] and place.get("a", 0, 9) == b"new"


def test_the_write_check_of_a_store_succeeds_and_leaves_no_file(uri, request):
    place = open_place(uri)
    place.create()
    before = place.current_revision()
    place.put({"a": b"hello"})
    commits = place.current_revision()
    assert (commits != before) is uri.startswith("hf://")
    Store(uri).check_writable()
    assert list(place.listing()) == ["a"] and place.current_revision() == commits


@pytest.mark.parametrize("uri", ["s3://nowhere-91/some/folder", "hf://us/nowhere", "hf://us/there@no-branch"])
def test_an_unwritable_store_is_detected_before_any_work(s3, hub, uri):
    open_place("hf://us/there").create()
    with pytest.raises(NoStore) as seen:
        Store(uri).check_writable()
    assert seen.value.exit_code == 2 and "\n" not in str(seen.value)


def test_a_read_only_bucket_is_detected_before_any_work(s3, monkeypatch):
    uri = s3.bucket()
    open_place(uri).create()
    denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with wire(s3.url) as cut:
        cut.answers.append(head % len(denied) + denied)
        monkeypatch.setenv("AWS_ENDPOINT_URL", cut.url)
        with pytest.raises(NoStore, match="AccessDenied.*AWS_ACCESS_KEY_ID"):
            Store(uri).check_writable()


LACKS = b"<Error><Code>NotImplemented</Code><Message>A header implies functionality that is not here</Message></Error>"


IGNORED = {
    "conditions, silently": ["HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"],
    "If-Match, silently": ["HTTP_IF_MATCH"],
    "ranges, silently": ["HTTP_RANGE"],
}


@contextlib.contextmanager
def service_without(ability, status="501 Not Implemented", code="NotImplemented"):
    """Yield the address of an S3 service that lacks an ability (moto's behind a filter), and the refused paths."""
    refused: list[str] = []
    moto = moto_app()

    def service(environ, start):
        is_read, query = environ["REQUEST_METHOD"] == "GET", environ["QUERY_STRING"]
        is_lacking = {
            "conditions": "HTTP_IF_NONE_MATCH" in environ,
            "writes": environ["REQUEST_METHOD"] == "PUT",
            "listing": is_read and "uploads" in query,
            "parts": is_read and "uploadId" in query,
            "copies": "HTTP_X_AMZ_COPY_SOURCE" in environ and not query,
            "copies of parts": "HTTP_X_AMZ_COPY_SOURCE" in environ and "uploadId" in query,
        }
        if is_lacking.get(ability):
            refused.append(environ["PATH_INFO"])
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(LACKS)))])
            return [LACKS.replace(b"NotImplemented", code.encode())]
        for header in IGNORED.get(ability, ()):
            environ.pop(header, None)
        return moto(environ, start)

    with serving(service) as url:
        yield url, refused


@pytest.mark.day_cases(2)
@pytest.mark.parametrize(
    ("ability", "said"),
    [
        ("conditions", "lacks conditional writes .*: it answers 501 .NotImplemented."),
        ("conditions, silently", "lacks conditional writes .*: it has overwritten a file despite If-None-Match"),
        ("If-Match, silently", "lacks conditional writes .*: it has overwritten a file despite If-Match"),
        ("ranges, silently", "lacks reads of a range of a file: it has returned other bytes"),
        ("listing", "lacks the listing of multipart uploads"),
        ("parts", "lacks the listing of the parts of an upload"),
        ("copies", "lacks copies within a bucket"),
        ("copies of parts", "lacks copies of parts within a bucket"),
    ],
)
def test_a_service_that_lacks_an_ability_is_refused_before_any_work(s3, monkeypatch, ability, said):
    uri = s3.bucket()
    with service_without(ability) as (url, refused):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        place = open_place(uri)
        place.create()
        with pytest.raises(NoStore, match=f"the service at {url} {said}.*Use a different store"):
            Store(uri).check_writable()
        assert len(refused) == (0 if ability in IGNORED else 1)  # The answer is final.
        assert place.listing() == {}


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("ability", "status", "code", "said"),
    [
        ("conditions", "400 Bad Request", "InvalidArgument", "lacks conditional writes .*400"),
        ("conditions", "412 Precondition Failed", "PreconditionFailed", "lacks conditional writes .*NoSuchKey"),
        ("listing", "404 Not Found", "NoSuchKey", "lacks the listing of multipart uploads.*NoSuchKey"),
        ("listing", "400 Bad Request", "InvalidRequest", "lacks the listing of multipart uploads.*InvalidRequest"),
        ("copies of parts", "400 Bad Request", "InvalidRequest", "lacks copies of parts .*InvalidRequest"),
    ],
)
def test_a_missing_ability_is_named_for_any_answer(s3, monkeypatch, ability, status, code, said):
    uri = s3.bucket()
    with service_without(ability, status, code) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        open_place(uri).create()
        with pytest.raises(NoStore, match=f"the service at {url} {said}.*Use a different store"):
            Store(uri).check_writable()


def test_a_long_wait_that_a_store_asks_for_is_shown(monkeypatch, caplog):
    waits, asked = [], iter([0.5, 7.0, 300.0])
    monkeypatch.setattr("store.patience.time.sleep", waits.append)

    def action():
        if (wait_s := next(asked, None)) is not None:
            raise Retryable("it answers 503 (SlowDown)", wait_s)
        return "done"

    assert Patience().retry("s3://b: writing a", action) == "done" and waits == [0.5, 7.0, 60.0]
    assert [one.getMessage() for one in caplog.records] == [
        f"s3://b: writing a: it answers 503 (SlowDown); trying again in {wait_s} s" for wait_s in (7, 60)
    ]


def test_a_foreign_change_is_not_overwritten_silently(away_uri):
    place = open_place(away_uri)
    place.put({"m": b"one"}, guard=("m", ""))
    first = place.listing()["m"].version
    with pytest.raises(Conflict):
        place.put({"m": b"two"}, guard=("m", ""))
    place.put({"other": b"x"})  # no change of m
    place.put({"m": b"two"}, guard=("m", first))
    with pytest.raises(Conflict):
        place.put({"m": b"three"}, guard=("m", first))
    assert place.get("m", 0, 9) == b"two"


def test_a_pinned_revision_is_read_despite_later_commits(hub):
    place = open_place("hf://us/things")
    place.create()
    place.put({"a": b"old", "large": LARGE})
    pin = place.current_revision()
    place.put({"a": b"new"}, gone=["large"])
    assert (place.get("a", 0, 9, at=pin), place.get("a", 0, 9)) == (b"old", b"new")
    assert place.sha256("large", at=pin) == digest(LARGE) and sorted(place.listing(at=pin)) == ["a", "large"]
    named = open_place(f"hf://us/things@{pin}")
    assert named.get("a", 0, 9) == b"old"


def test_a_bucket_reports_an_object_that_changes_during_a_read(s3):
    place = open_place(s3.bucket())
    place.create()
    place.put({"a": b"old"})
    seen = place.listing()["a"].version
    place.put({"a": b"new"})
    with pytest.raises(Conflict):
        place.get("a", 0, 3, version=seen)


# Artifacts.


@pytest.mark.day_cases(2)
def test_artifacts_are_published_replaced_verified_and_downloaded_from_any_store(uri, tmp_path, monkeypatch):
    store = Store(uri)
    made = folder_of(tmp_path / "made", {"train/a.txt": b"alpha", "b.bin": LARGE})
    store.publish(made, "datasets/text", "f1", {"n": 1})
    store.publish(folder_of(tmp_path / "flat", {"who.jsonl": b"[]\n"}), "who", "f3", {}, flat=True)
    store.publish(folder_of(tmp_path / "new", {"b.bin": LARGE, "c.txt": b"c"}), "datasets/text", "f2", {"n": 2})
    assert store.artifacts() == [Artifact("datasets/text", "f2", "", {"n": 2}), Artifact("who", "f3")]
    assert store.check("datasets/text", deep=True).problem == "" and store.check("nothing").problem == "it is missing"
    for cache in ("cache", "another"):  # the place of the publication, and a place that needs a download
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        place = store.path("datasets/text", "f2")
        assert {one.name for one in place.rglob("*") if one.is_file()} == {"b.bin", "c.txt", "ARTIFACT.json"}
        assert (place / "b.bin").read_bytes() == LARGE
        assert (store.path("who", "f3") / "who.jsonl").read_bytes() == b"[]\n"
        assert (store.path("datasets/text", "f1") / "train/a.txt").read_bytes() == b"alpha"  # the old content stays
    with pytest.raises(StoreError, match="the fingerprint is f2, but f7 is wanted"):
        store.path("datasets/text", "f7")
    store.point_name("datasets/text", "f1")
    assert store.check("datasets/text", deep=True).fingerprint == "f1"
    store.remove("by-fingerprint/text/f2")
    assert [one.fingerprint for one in store.list_all()[1]] == ["f1", "f3"]
    with pytest.raises(StoreError, match="f2 is wanted"):
        store.point_name("datasets/text", "f2")
    assert store.check("datasets/text").fingerprint == "f1"
    with pytest.raises(StoreError, match="an artifact cannot lie inside of a second artifact"):
        store.publish(made, "datasets", "f1", {})


@pytest.mark.day_cases(4)
@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing", "more", "garbled"])
@pytest.mark.parametrize("where", ["text", "by-fingerprint/text/f1"])
def test_damage_in_a_remote_store_is_named_and_never_downloaded(away_uri, tmp_path, monkeypatch, damage, where):
    store, place = Store(away_uri), open_place(away_uri)
    store.publish(folder_of(tmp_path / "made", {"a.bin": LARGE, "b": b"b"}), "text", "f1", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    if damage == "flipped":
        place.put({f"{where}/a.bin": LARGE[:-1] + bytes([LARGE[-1] ^ 1])})
    elif damage == "shorter":
        place.put({f"{where}/a.bin": LARGE[:-1]})
    elif damage == "missing":
        place.put({}, [f"{where}/a.bin"])
    elif damage == "more":
        place.put({f"{where}/c": b"?"})
    else:
        place.put({f"{where}/ARTIFACT.json": b"{"})
    words = {
        "flipped": "other sha256",
        "shorter": "has 699999 bytes",
        "missing": "is missing",
        "more": "not in the manifest",
        "garbled": "cannot be used",
    }[damage]
    assert words in store.check(where).problem
    assert words in {one.name: one for some in store.list_all() for one in some}[where].problem
    assert (store.path("text", "f1") / "a.bin").read_bytes() == LARGE  # of the other name
    place.put({f"{one}/ARTIFACT.json": b"{" for one in ("text", "by-fingerprint/text/f1")})
    with pytest.raises(StoreError, match="cannot be used"):
        store.path("text", "f1")
    place.put({}, [f"{where}/c"])
    store.publish(tmp_path / "made", "text", "f1", {})
    assert store.check("text", deep=True).problem == ""


def test_content_that_differs_after_download_is_not_used(hub, tmp_path, monkeypatch):
    """The store lists the right files, and sends different content."""
    place = open_place("hf://us/things")
    place.create()
    store = Store("hf://us/things")
    store.publish(folder_of(tmp_path / "made", {"a.bin": LARGE}), "text", "f1", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    hub.faults = [Fault(f"GET /store/us/things/{digest(LARGE)}", "stale")]
    with pytest.raises(StoreError, match="the copy has a different sha256 than the published file"):
        store.path("text", "f1")
    assert (store.path("text", "f1") / "a.bin").read_bytes() == LARGE  # the next download is correct


def test_content_that_reads_back_differently_is_not_published(hub, tmp_path):
    store = Store("hf://us/things")
    open_place("hf://us/things").create()
    hub.faults = [Fault("GET /store", "stale")]
    with pytest.raises(StoreError, match="reads back with other bytes"):
        store.publish(folder_of(tmp_path / "made", {"a.bin": LARGE}), "text", "f1", {})
    assert store.artifacts() == []
    store.publish(tmp_path / "made", "text", "f1", {})
    assert store.artifacts() == [Artifact("text", "f1")]


def test_a_name_on_a_hub_moves_in_one_commit_without_a_new_upload(hub, tmp_path):
    open_place("hf://us/things").create()
    store, repo = Store("hf://us/things"), hub.repos["us/things"]
    store.publish(folder_of(tmp_path / "one", {"a": b"1", "b": b"1"}), "text", "f1", {})
    before = len(repo.commits)
    store.publish(folder_of(tmp_path / "two", {"a": LARGE, "c": b"2"}), "text", "f2", {})
    assert len(repo.commits) == before + 2
    assert sum(one.size for one in hub.asked if one.verb == "PUT") < 1.1 * len(LARGE)
    assert {name for name in repo.files if name.startswith("text/")} == {"text/a", "text/c", "text/ARTIFACT.json"}


# Runs at work.


@pytest.mark.day_cases(1)
def test_a_run_continues_on_a_second_pod_from_any_store(uri, pods):
    first, second = pods("one", uri), pods("two", uri)
    one = uploader(first)
    first.write("logs/base.log", "hello\n")
    first.write("work/runs/base/metrics.jsonl", '{"step": 15}\n')
    for step in (5, 10, 15):
        first.save(step, size=3000)
        one.upload_changes()
    one.upload_changes(last=True)
    assert first.stored_checkpoints() == [f"{FOLDER}/step-{step:09d}" for step in (15, 10)]
    assert first.folder.read("logs/base.log") == b"hello\n"
    assert fetch(second)["checkpoints"] == [f"{FOLDER}/step-000000015"]
    assert (second.root / FOLDER / "step-000000015" / "model.safetensors").read_bytes() == (
        first.root / FOLDER / "step-000000015" / "model.safetensors"
    ).read_bytes()
    assert (second.root / "logs" / "base.log").read_text() == "hello\n"


def test_a_damaged_remote_checkpoint_is_named_and_the_previous_checkpoint_is_fetched(away_uri, pods):
    first, second = pods("one", away_uri), pods("two", away_uri)
    for step in (5, 10):
        first.save(step, size=3000)
        uploader(first).upload_changes()
    place, name = open_place(away_uri), f"runs/{RUN}/{FOLDER}/step-000000010/model.safetensors"
    content = bytearray(place.get(name, 0, 3000))
    content[1500] ^= 1
    place.put({name: bytes(content)})
    brought = fetch(second)
    assert brought["checkpoints"] == [f"{FOLDER}/step-000000005"]
    assert "step-000000010" in brought["damaged"][0] and "other content" in brought["damaged"][0]


def test_a_hub_gets_one_commit_per_checkpoint_and_per_look_at_figures(hub, pods):
    open_place("hf://us/things").create()
    pod = pods("one", "hf://us/things")
    repo, one = hub.repos["us/things"], uploader(pod)
    pod.write("logs/base.log", "a\n")
    pod.write("logs/agent.log", "b\n")
    pod.write("work/runs/base/metrics.jsonl", "{}\n")
    before = len(repo.commits)
    one.upload_changes()
    assert len(repo.commits) == before + 1
    pod.save(5, size=3000)
    one.upload_changes()
    assert len(repo.commits) == before + 3  # the checkpoint, and the acknowledgement


def test_the_hub_client_downloads_the_logs_of_all_runs(hub, pods, tmp_path):
    open_place("hf://us/things").create()
    pod = pods("one", "hf://us/things")
    pod.write("logs/base.log", "a\n")
    pod.write("logs/error-20261121T000000Z.log", "Traceback\n" * 50)
    pod.write("work/runs/base/metrics.jsonl", "{}\n")
    uploader(pod).upload_changes()
    words = ["download", "us/things", "--include", "logs/*.log", "--local-dir", tmp_path / "logs", "--token", TOKEN]
    done = subprocess.run([Path(sys.executable).with_name("hf"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    came = {one.relative_to(tmp_path).as_posix(): one.read_text() for one in tmp_path.rglob("logs/logs/**/*.log")}
    above = f"logs/logs/{RUN}"
    assert came == {f"{above}/base.log": "a\n", f"{above}/error-20261121T000000Z.log": "Traceback\n" * 50}


# A bad network.


def test_received_parts_of_a_cut_upload_are_not_sent_again_to_a_bucket(s3, tmp_path, monkeypatch):
    part, size = 5 << 20, 21 << 20
    (tmp_path / "large").write_bytes(random.Random(3).randbytes(size))
    address = s3.bucket()
    open_place(address).create()
    with wire(s3.url) as cable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cable.url)
        bad = Bucket(address, Patience(answer_s=5, total_s=5, tries=1), part_bytes=part)
        cut = ("before-send.s3.UploadPart", _cut_third)
        bad._client.meta.events.register(*cut)
        with pytest.raises(StoreAway):
            bad.put({"large": tmp_path / "large"})
        bad._client.meta.events.unregister(*cut)
        assert open_place(address).listing() == {}
        sent, cable.cuts = cable.sent_bytes, []
        good = Bucket(address, QUICK, part_bytes=part)
        good.put({"large": tmp_path / "large"})
        assert cable.sent_bytes - sent < size - 2 * part + (1 << 20)  # two of the five parts were stored
        assert good.sha256("large") == digest((tmp_path / "large").read_bytes())
        assert good._unfinished_uploads("some/folder/large") == []


def _cut_third(request, **_):
    if "partNumber=3" in request.url:
        raise ConnectionResetError("the cable is cut")


def test_received_parts_of_a_cut_upload_are_not_sent_again_to_a_hub(hub, tmp_path):
    uri = "hf://us/things"
    open_place(uri).create()
    files = {f"{number}.bin": random.Random(number).randbytes(150_000) for number in range(4)}
    folder_of(tmp_path, files)
    hub.faults = [Fault(f"PUT /store/us/things/{digest(files['2.bin'])}", "deaf", 70_000, times=99)]
    with pytest.raises(StoreAway):
        Repository(uri, Patience(answer_s=5, total_s=5, tries=2, first_wait_s=0.01)).put(
            {name: tmp_path / name for name in files}
        )
    assert open_place(uri).listing() == {}
    hub.faults, before = [], hub.sent("/store")
    Repository(uri, QUICK).put({name: tmp_path / name for name in files})
    assert hub.sent("/store") - before == 300_000  # the third and the fourth part
    assert {name: one.sha256 for name, one in open_place(uri).listing().items()} == {
        name: digest(content) for name, content in files.items()
    }


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("GET /api", 429, 0), Fault("commit", 503), Fault("PUT", 500, times=2)],
        [Fault("commit", "lost")],
        [Fault("batch", "lost"), Fault("PUT", "lost"), Fault("verify", "lost")],
        [Fault("GET /store", "cut", 1000, times=2), Fault("tree", "cut", 10)],
    ],
    ids=["busy", "commit unheard", "uploads unheard", "cut"],
)
def test_requests_to_a_failing_hub_are_retried_with_the_same_result(hub, tmp_path, faults):
    place = quick("hf://us/things")
    place.create()
    hub.faults = faults
    place.put({"a": b"small", "large": LARGE}, guard=("a", ""))
    assert place.sha256("large") == digest(LARGE) and place.get("a", 0, 9) == b"small"
    assert all(not fault.times for fault in hub.faults)
    assert len(hub.repos["us/things"].commits) == 2  # the first commit, and a single commit of ours


def test_requests_to_a_failing_bucket_are_retried(s3, monkeypatch):
    address = s3.bucket()
    open_place(address).create()
    busy = b"HTTP/1.1 503 Slow Down\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with wire(s3.url) as cable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cable.url)
        place = quick(address)
        cable.answers = [busy, b"HTTP/1.1 200 OK\r\nContent-"]
        began = time.monotonic()
        place.put({"a": b"hello"})
        assert time.monotonic() - began >= 1.0  # as requested by the server
        assert place.get("a", 0, 9) == b"hello" and cable.connections >= 3


@pytest.mark.parametrize("kind", ["drip", "hole", 429])
def test_a_silent_store_is_given_up_in_time(hub, kind):
    place = Repository("hf://us/things", Patience(answer_s=0.5, total_s=1.5, first_wait_s=0.1))
    open_place("hf://us/things").create()
    hub.faults = [Fault("GET /api", kind, 1 if kind == 429 else -1, times=99)]
    began = time.monotonic()
    with pytest.raises(StoreAway, match="given up after"):
        place.listing()
    assert time.monotonic() - began < 1.5 + 1.0 + 10.0  # a second of grace; the rest is for a busy machine
    assert len(hub.asked) < 12


def test_a_silent_bucket_is_given_up_in_time(monkeypatch, s3):
    with wire(s3.url) as cable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cable.url)
        cable.cuts = [0] * 99
        place = Bucket("s3://nowhere", Patience(answer_s=0.5, total_s=1.5, first_wait_s=0.1, tries=4))
        with pytest.raises(StoreAway, match="s3://nowhere: listing it: .*given up after"):
            place.listing()
        assert cable.connections <= 4


FAULTS = ("race", "lost", "cut", "deaf", "stale", 500, 429, 403, 401)
WHERE = (
    "/commit/",
    "PUT /store",
    "batch",
    "preupload",
    "verify",
    "GET /store",
    "/tree/",
    "/revision/",
    "/resolve/",
    "",
)


@rounds(4, 300)
def test_acknowledged_uploads_are_stored_after_any_fault_and_the_next_look_completes_them(
    hub, pods, monkeypatch, rounds
):
    seed = seeds.seed()
    chance, uri, hit = random.Random(seed), "hf://us/things", 0
    monkeypatch.setattr(
        "store.backends.hub.Patience", lambda: Patience(answer_s=5.0, total_s=5.0, tries=3, first_wait_s=0.01)
    )
    open_place(uri).create()
    pod = pods("one", uri)
    for step in range(1, rounds + 1):
        name, one = pod.save(step, size=300), uploader(pod)
        pod.write("logs/base.log", f"step {step}\n")
        kind = chance.choice(FAULTS)
        fault = Fault(
            chance.choice(WHERE), kind, 0 if kind == 429 else chance.randrange(1, 200), chance.randrange(1, 5)
        )
        hub.faults = [fault]
        times, began = fault.times, time.monotonic()
        try:
            one.upload_changes()
        except (StoreError, OSError) as error:
            print(f"{fault}: {error}")
        hit += fault.times < times
        print(f"{time.monotonic() - began:.2f} s {fault}")
        hub.faults = []
        assert name not in pod.acknowledged() or pod.stored_checkpoints()[0] == name, fault
        again = uploader(pod)
        again.upload_changes()
        assert pod.stored_checkpoints()[0] == name and name in pod.acknowledged(), fault
        assert pod.folder.read("logs/base.log") == f"step {step}\n".encode()
    assert hit >= rounds / 2


# Keys.


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("s3://nowhere-at-all/x", "no such bucket; to make the bucket: inv ckpt.init --to s3://nowhere-at-all"),
        ("s3:///x", "expected s3://bucket/folder"),
        ("hf://us/nothing", "no such repository.*inv ckpt.init --to hf://us/nothing"),
        ("hf://us", "expected hf://user/repo"),
    ],
)
def test_the_error_for_a_missing_store_shows_how_to_make_it(s3, hub, uri, words):
    with pytest.raises(NoStore, match=words) as seen:
        open_place(uri).listing()
    assert seen.value.exit_code == 2 and "\n" not in str(seen.value)


def test_a_token_without_write_access_is_reported_and_never_shown(hub, monkeypatch):
    open_place("hf://us/things").create()
    for token, words in (("hf_canary-read-94", "may only read"), ("hf_canary-gone-95", "Invalid username")):
        monkeypatch.setenv("HF_TOKEN", token)
        place = quick("hf://us/things")
        for ask in (lambda place=place: place.put({"a": b"x"}), Store("hf://us/things").check_writable):
            with pytest.raises(NoStore, match=words) as seen:
                ask()
            assert "HF_TOKEN" in str(seen.value) and "canary" not in str(seen.value)


def test_a_token_is_sent_to_the_hub_and_not_to_redirect_targets(hub):
    place = open_place("hf://us/things")
    place.create()
    place.put({"large": LARGE})
    place.sha256("large")
    assert {one.authorization for one in hub.asked if one.path.startswith("/store/")} == {""}
    assert {one.authorization for one in hub.asked if one.path.startswith("/api/")} == {f"Bearer {TOKEN}"}


def test_a_signed_address_is_not_shown(hub):
    place = Repository("hf://us/things", Patience(answer_s=1, total_s=1, tries=1))
    place.create()
    hub.faults = [Fault("PUT /store", 400)]
    with pytest.raises(StoreError) as seen:
        place.put({"large": LARGE})
    assert "signed-canary" not in str(seen.value)


def test_the_error_of_a_bucket_names_the_missing_keys(monkeypatch, s3):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(NoStore, match="no credentials for the store; set AWS_ACCESS_KEY_ID"):
        open_place(s3.bucket()).listing()


def test_the_parts_of_a_range_add_up(s3):
    place = open_place(s3.bucket())
    place.create()
    content = os.urandom(2 * PART_BYTES + 1)
    place.put({"a": content})
    assert b"".join(place.read_chunks("a")) == content


def test_a_half_downloaded_checkpoint_is_not_listed(away_uri, pods, request):
    pod = pods("one", away_uri)
    name = pod.save(5, size=150_000)
    folder = RunFolder(away_uri, RUN)
    place = open_place(away_uri)
    place.put({f"runs/{RUN}/{name}/model.safetensors": pod.root / name / "model.safetensors"})
    assert pod.stored_checkpoints() == [] and fetch(pods("two", away_uri))["checkpoints"] == []
    folder.put_checkpoint(pod.root / name, name)
    assert pod.stored_checkpoints() == [name] and f"{name}/{MANIFEST}" in folder.file_sizes()
