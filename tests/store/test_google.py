"""A Google bucket with a bad network and bad keys; test_places has the tests common to all stores."""

import json
import random
import subprocess
import sys

import pytest

from infra.job_environment import secrets
from infra.settings import Settings
from store.backends.backend import open_place
from store.backends.gs import STEP_BYTES, GoogleBucket
from store.manifest import AccessDenied, NoStore
from store.patience import Conflict, Patience, StoreAway
from tests.store.conftest import QUICK, digest

pytestmark = pytest.mark.process
LARGE = random.Random(5).randbytes(5 * STEP_BYTES + 1234)


@pytest.fixture
def place(google):
    found = GoogleBucket(google.bucket(), QUICK, part_bytes=2 * STEP_BYTES)
    assert found.create() and not found.create()
    return found


def test_received_parts_of_a_cut_upload_are_not_sent_again(google, place, tmp_path):
    (tmp_path / "large").write_bytes(LARGE)
    google.faults = [("PUT /session", 503), ("PUT /session", "cut"), ("PUT /session", "lost")]
    place.put({"large": tmp_path / "large"}, guard=("large", ""))
    assert place.sha256("large") == digest(LARGE) and not google.faults
    assert google.sent_bytes < len(LARGE) + 5 * STEP_BYTES


def test_an_unanswered_write_is_no_conflict_but_a_foreign_write_is(google, place):
    google.faults = [("uploadType=media", "lost")]
    place.put({"note": b"first"}, guard=("note", ""))
    seen = place.listing()["note"].version
    place.put({"note": b"second"}, guard=("note", seen))
    for before in (seen, ""):
        with pytest.raises(Conflict, match="a different writer has written the same object meanwhile"):
            place.put({"note": b"third"}, guard=("note", before))
    with pytest.raises(Conflict):
        place.get("note", 0, 9, version=seen)
    assert place.get("note", 0, 9) == b"second"


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("fault", [429, 500, 503, "cut", "lost"])
def test_requests_to_a_failing_bucket_are_retried(google, place, fault):
    place.put({f"deep/{number}": b"x" * number for number in range(20)})
    google.faults = [(f"GET /storage/v1/b/{place.bucket}/o?", fault)]
    assert len(place.listing("deep")) == 20
    google.faults = [("alt=media", fault)]
    assert place.get("deep/9", 0, 99) == b"x" * 9 and not google.faults


def test_a_bucket_that_only_answers_503_is_given_up(google, place):
    google.faults = [("GET", 503)] * 99
    place.patience = Patience(first_wait_s=0.1, tries=4)
    with pytest.raises(StoreAway, match="listing it: it answers 503 backendError; given up after 4 tries"):
        place.listing()


def test_names_with_any_characters_are_kept(place):
    names = ["a b/c+d?e#f%20", "ü/ß&=.json", "x"]
    place.put({name: name.encode() for name in names})
    assert sorted(place.listing()) == sorted(names) and place.get(names[0], 0, 99) == names[0].encode()
    place.put({}, gone=names)
    assert place.listing() == {}


@pytest.mark.parametrize("form", ["content", "path"])
def test_an_account_key_signs_for_a_token_and_both_stay_secret(google, tmp_path, monkeypatch, form):
    google.wants_token = True
    (tmp_path / "key.json").write_text(google.key_file())
    said = google.key_file() if form == "content" else str(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_CREDENTIALS", said)
    place = open_place(google.bucket())
    assert place.create()
    place.put({"a": b"hello"})
    assert place.get("a", 0, 9) == b"hello" and google.asked.count("POST /token") == 1
    google.tokens.clear()
    with pytest.raises(AccessDenied, match="Anonymous caller.*set GOOGLE_CREDENTIALS") as seen:
        place.listing()
    assert "ya29" not in str(seen.value) and "PRIVATE" not in str(seen.value)


@pytest.mark.parametrize("said", ["{}", "{", "/no/such/file", '{"type": "service_account"}', "nonsense"])
def test_an_invalid_key_file_is_reported_in_one_line(google, monkeypatch, said):
    monkeypatch.setenv("GOOGLE_CREDENTIALS", said)
    with pytest.raises(
        AccessDenied, match="GOOGLE_CREDENTIALS is neither a key file nor the path of a key file"
    ) as seen:
        open_place(google.bucket()).listing()
    assert "\n" not in str(seen.value) and seen.value.exit_code == 4


def test_the_error_for_a_missing_bucket_shows_how_to_make_it(google):
    with pytest.raises(NoStore, match="no such bucket; to make the bucket: inv ckpt.init --to gs://nowhere"):
        open_place("gs://nowhere/x").listing()
    with pytest.raises(NoStore, match="expected gs://bucket/folder"):
        open_place("gs:///x").listing()


def test_a_job_gets_the_google_key_only_for_a_google_store(google, tmp_path, monkeypatch):
    (tmp_path / "key.json").write_text(google.key_file())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    settings = Settings.load(tmp_path, {"store": "gs://bucket/runs"}, environ={})
    assert json.loads(secrets(settings)["GOOGLE_CREDENTIALS"])["project_id"] == "canary-project"
    assert "GOOGLE_CREDENTIALS" not in secrets(Settings.load(tmp_path, {"store": "s3://bucket/runs"}, environ={}))


def test_google_modules_are_imported_only_for_a_bucket():
    probe = "import sys, store.backends.gs; print([one for one in sys.modules if one.split('.')[0] == 'google'])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
