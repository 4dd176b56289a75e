"""Answers of stores and of networks that differ from the documents, with the real clients: which are final, and words.

`test_places` has the common promises of all stores, and the abilities that some services lack.
"""

import math
import ssl
import time
from email.utils import formatdate

import pytest
import urllib3
from botocore import exceptions

from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from store.manifest import AccessDenied, NoStore, StoreError
from store.patience import StoreAway, asked_wait_s
from store.run_sync import mounts
from store.run_sync.mounts import MountFolder
from store.run_sync.run_folder import RunFolder
from tests.store.conftest import moto_app, quick, serving
from tests.store.proxy import wire
from tests.store.test_uploader import pods

pytestmark = pytest.mark.process
pods = pods


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer of HTTP, for `Wire.answers`."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    head = {"Content-Length": str(len(body)), "Connection": "close", **given}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: str, code: str, **headers: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return answer(status, body, Content_Type="application/xml", **headers)


@pytest.fixture
def cable(s3, monkeypatch):
    """Yield a wire to moto's server, with a bucket in `place`."""
    uri = s3.bucket()
    open_place(uri).create()
    with wire(s3.url) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        found.place = quick(uri)
        yield found


# Names of files in the words of an error.


@pytest.mark.parametrize("run", ["length-buckets", "bucketing-1", "looking-for-the-bucket", "listing"])
def test_a_run_with_any_name_keeps_its_checkpoints(away_uri, pods, run):
    folder, pod = RunFolder(away_uri, run), pods("one", away_uri)
    name = pod.save(5, size=3000)
    assert folder.verified_checkpoints() == {}
    folder.put_checkpoint(pod.root / name, name)
    assert f"{name}/MANIFEST.json" in folder.file_sizes() and folder.problem(name) == ""


def test_a_missing_file_is_no_missing_bucket(away_uri):
    place = open_place(away_uri)
    for name in ("my-buckets", "the bucket does not exist", "listing a", "NoSuchBucket"):
        with pytest.raises(FileNotFoundError):
            place.get(name, 0, 9)
        place.put({}, [name])


def test_a_bucket_folder_with_any_name_is_mounted(s3, tmp_path, monkeypatch):
    for name in ("fuse_problem", "mount_problem"):
        monkeypatch.setattr(mounts, name, lambda: "")
    uri = s3.bucket()
    open_place(uri).create()
    assert MountFolder("", "books", tmp_path, f"{uri}/my-buckets", mounts.MOUNT).leave_to_rclone() == ""


# Connections.

CUT = exceptions.SSLError(endpoint_url="x", error=urllib3.exceptions.SSLError(ssl.SSLEOFError("EOF occurred")))
FOREIGN = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed certificate"))


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectTimeoutError(endpoint_url="x"),
        exceptions.ProxyConnectionError(proxy_url="x"),
        exceptions.EndpointConnectionError(endpoint_url="x"),
        exceptions.ReadTimeoutError(endpoint_url="x"),
        exceptions.ConnectionClosedError(endpoint_url="x"),
        exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        CUT,
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_connection_is_tried_again(s3, error):
    place, left, asked = quick(s3.bucket()), [error], []
    place.create()
    place.put({"a": b"hello"})

    def fail(**_):
        asked.append(1)
        if left:
            raise left[0] if is_always else left.pop()

    hook = ("before-send.s3.GetObject", fail)
    place._client.meta.events.register(*hook)
    try:
        is_always = False
        assert place.get("a", 0, 9) == b"hello" and len(asked) == 2
        left, is_always = [error], True
        with pytest.raises(StoreAway, match="given up after 6 tries"):
            place.get("a", 0, 9)
    finally:
        place._client.meta.events.unregister(*hook)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.SSLError(endpoint_url="x", error=FOREIGN),
        exceptions.UnknownEndpointError(service_name="a", region_name="b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_wrong_certificate_or_setting_is_final(s3, error):
    place, asked = quick(s3.bucket()), []
    place.create()

    def fail(**_):
        asked.append(1)
        raise error

    hook = ("before-send.s3.GetObject", fail)
    place._client.meta.events.register(*hook)
    try:
        with pytest.raises(StoreError) as seen:
            place.get("a", 0, 9)
    finally:
        place._client.meta.events.unregister(*hook)
    assert not isinstance(seen.value, StoreAway) and len(asked) == 1


# Answers that a service of S3 gives, and AWS does not.


def test_a_service_that_answers_404_to_the_removal_of_an_absent_file(s3, monkeypatch):
    moto, uri = moto_app(), s3.bucket()
    is_condition_ignored = True

    def google(environ, start):
        if is_condition_ignored:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] == "DELETE" and not environ["QUERY_STRING"]:
            seen = []
            moto({**environ, "REQUEST_METHOD": "HEAD"}, lambda status, *_: seen.append(status))
            if seen[0].startswith("404"):
                start("404 Not Found", [("Content-Type", "application/xml")])
                return [b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>"]
        return moto(environ, start)

    with serving(google) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        place = quick(uri)
        place.create()
        place.put({"a": b"x"}, gone=["a", "never/there"])
        assert place.listing() == {}
        with pytest.raises(NoStore, match="lacks conditional writes .*despite If-None-Match"):
            Store(uri).check_writable()
        assert place.listing() == {}
        is_condition_ignored = False
        Store(uri).check_writable()
        assert place.listing() == {}


HTML = b"<!doctype html><html><head><meta charset=utf-8></head><body><p>Please log in<br></body></html>"
XHTML = b"<html><head><title>Console</title></head><body><p>Please log in</p></body></html>"


@pytest.mark.parametrize("page", [HTML, XHTML], ids=["html", "xhtml"])
@pytest.mark.parametrize(
    ("uri", "variable", "said"),
    [
        ("s3://shelf/runs", "AWS_ENDPOINT_URL", "(does not answer as S3|a page of HTML); check AWS_ENDPOINT_URL"),
        ("gs://shelf/runs", "STORAGE_EMULATOR_HOST", "does not answer as Google Cloud Storage; check STORAGE_EMULATOR"),
    ],
)
def test_a_page_for_people_is_no_answer_of_a_store(s3, monkeypatch, page, uri, variable, said):
    def login(environ, start):
        start("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(page)))])
        return [page if environ["REQUEST_METHOD"] != "HEAD" else b""]

    with serving(login) as url:
        monkeypatch.setenv(variable, url)
        place = quick(uri, part_bytes=1 << 18)
        for ask in (
            place.listing,
            lambda: place.put({"a": b"x" * (1 << 20)}),
            lambda: place.put({"a": b"x"}),
            lambda: place.entry("a"),
            place.check_writable,
        ):
            with pytest.raises(StoreError, match=f"{said}|the service at {url} lacks ETags"):
                ask()


def test_a_listing_that_is_cut_short_is_asked_for_again(cable):
    cable.place.put({"a": b"hello"})
    cable.answers = [
        answer("200 OK", b"<ListBucketResult><Name>b", Content_Type="application/xml", Content_Length="900")
    ]
    assert list(cable.place.listing()) == ["a"]


def test_short_answers_between_other_faults_do_not_make_a_service_strange(cable):
    short = answer("200 OK")  # without an ETag
    busy = refusal("503 Service Unavailable", "SlowDown")
    cable.answers = [short, short, busy, short, short]
    cable.place.put({"a": b"x"})
    assert list(cable.place.listing()) == ["a"]


@pytest.mark.parametrize("where", ["header", "listing"])
def test_a_service_without_etags_is_named_and_keeps_no_probe(s3, monkeypatch, where):
    moto, uri = moto_app(), s3.bucket()

    def untagged(environ, start):
        seen = []
        body = b"".join(moto(environ, lambda status, headers, *_: seen.append((status, headers))))
        ((status, headers),) = seen
        is_put = environ["REQUEST_METHOD"] == "PUT"
        if where == "listing" and b"<ListBucketResult" in body:
            body = body.replace(b"<ETag>", b"<Tag>").replace(b"</ETag>", b"</Tag>")
        kept = [one for one in headers if not (where == "header" and is_put and one[0].lower() == "etag")]
        start(status, [one for one in kept if one[0].lower() != "content-length" or not body])
        return [body]

    open_place(uri).create()
    with serving(untagged) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(NoStore, match=f"the service at {url} lacks ETags.*Use a different store"):
            Store(uri).check_writable() if where == "header" else _list_one(uri)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    assert [name for name in open_place(uri).listing() if "probe" in name] == []


def _list_one(uri):
    open_place(uri).put({"a": b"x"})
    open_place(uri).listing()


# Refusals.


def test_a_wrong_clock_is_named_unless_the_clock_is_set_meanwhile(cable):
    cable.place.put({"a": b"hello"})
    cable.answers = [refusal("403 Forbidden", "RequestTimeTooSkewed")] * 2
    assert cable.place.get("a", 0, 9) == b"hello"
    cable.answers = [refusal("403 Forbidden", "RequestTimeTooSkewed")] * 9
    with pytest.raises(StoreAway, match="RequestTimeTooSkewed.*the clock of this machine differs.*timedatectl"):
        cable.place.get("a", 0, 9)


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        ([answer("403 Forbidden")], AccessDenied, "looking for the bucket.*AWS_ACCESS_KEY_ID"),
        (
            [answer("404 Not Found"), refusal("409 Conflict", "BucketAlreadyExists")],
            StoreError,
            "making the bucket: .*BucketAlreadyExists(?!.*a different writer)",
        ),
        ([answer("404 Not Found"), refusal("409 Conflict", "OperationAborted")], None, ""),
    ],
    ids=["of someone else", "taken", "being removed"],
)
def test_a_bucket_that_cannot_be_made(s3, monkeypatch, answers, error, said):
    with wire(s3.url) as cable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cable.url)
        place, cable.answers = quick(s3.bucket()), answers
        if error is None:
            assert place.create()
        else:
            with pytest.raises(error, match=said):
                place.create()
        assert not cable.answers


# Waits that a server asks for.


def test_a_wait_is_read_in_each_form():
    now = time.time()
    date = {"date": formatdate(now - 3600, usegmt=True)}  # the clock of this machine is an hour ahead
    for headers, wait_s in (
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": formatdate(now - 3600 + 30, usegmt=True), **date}, 30.0),
        ({"retry-after": formatdate(now - 7200, usegmt=True), **date}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "\xb2"}, None),
        ({"retry-after": "9" * 400}, math.inf),
        ({"ratelimit": '"api";r=0;t=55', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}, 55.0),
        ({"ratelimit": '"api";r=3;t=55'}, None),
        ({"ratelimit": '"api";r=0;t=55', "retry-after": "7"}, 7.0),
    ):
        assert asked_wait_s(headers) == wait_s, headers
    soon = asked_wait_s({"retry-after": formatdate(now + 100, usegmt=True)})
    assert soon is not None and 0 < soon <= 101


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry_After": "40"},
        {"Date": "Mon, 30 Nov 2026 20:09:20 GMT", "Retry_After": "Mon, 30 Nov 2026 20:10:00 GMT"},
        {"RateLimit": '"api";r=0;t=40'},
    ],
    ids=["seconds", "date", "ratelimit"],
)
@pytest.mark.parametrize("kind", ["s3", "gs", "hf"])
def test_a_wait_that_a_store_asks_for_is_kept_and_shown(request, monkeypatch, caplog, kind, headers):
    server = request.getfixturevalue({"s3": "s3", "gs": "google", "hf": "hub"}[kind])
    variable = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "hf": "HF_ENDPOINT"}[kind]
    uri = "hf://us/things" if kind == "hf" else server.bucket()
    open_place(uri).create()
    waits = []
    monkeypatch.setattr("store.patience.time.sleep", waits.append)
    with wire(server.url) as cable:
        monkeypatch.setenv(variable, cable.url)
        cable.answers = [answer("429 Too Many Requests", **headers)]
        assert open_place(uri).listing() == {}
    assert 40.0 in waits and "trying again in 40 s" in caplog.text
