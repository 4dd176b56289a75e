"""Reading any answer of a server raises only SlipwayErrors, so a malformed answer never stops a sweep."""

import json
import time
from email.utils import formatdate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from infra.errors import SlipwayError
from infra.providers.json_api import JsonApi
from infra.providers.rate_limit import Pace
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

KEY = ("Authorization", "Bearer secret")
DEEP = b'{"errors":' * 50_000 + b"1" + b"}" * 50_000
QUICK = settings(max_examples=100)
DATES = ("Sun, 22 Nov 99999999999999999999 10:00:00 GMT", "Sun, 99 Nov 2026 10:00:00 GMT", "x", "", "0",
         "Sun, 22 Nov 2026 10:00:00 +99999999999", "Sun, 22 Nov 2026 99999999999:00:00 GMT",
         "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "1 Jan 1 00:00 -0000")  # fmt: skip


class Thing(Struct):
    name: str


@pytest.fixture
def stand():
    with Stand(KEY, paths=["/thing"]) as stand:
        yield stand


def api(stand, **more):
    return JsonApi("vendor", stand.url, dict([KEY]), read_s=0.0, pace=Pace.per_minute(10**6), **more)


def ask(stand, answer):
    """Send a request in every possible way; return the messages of failures."""
    stand.on("GET /thing", answer)
    stand.on("POST /thing", answer)
    asking, said = api(stand), []
    for way in (
        lambda: asking.read("/thing", Thing),
        lambda: asking.query("/thing", {}, Thing),
        lambda: asking.decode(asking.send_change("POST", "/thing", {}), Thing),
    ):
        try:
            way()
        except SlipwayError as error:
            said.append(str(error))
            assert str(error).isprintable() and len(str(error)) < 1000, error
    return asking, said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["errors", "error", "message", "detail", "hint", "code", "error_code", "name", "data"])
        | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode())  # fmt: skip
HEADER = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Date": st.sampled_from(DATES) | HEADER,
        "Retry-After": st.sampled_from(["9" * 400, "-1", "1e9", "\xb2"]) | HEADER,
        "X-Request-Id": HEADER,
        "Content-Type": HEADER,
        "Location": st.sampled_from(["/thing", "//", "http://[", "http://x:99999/", "https://xn--/"]) | HEADER,
        "Content-Encoding": st.sampled_from(["gzip", "deflate", "br", "x"]),
        "Set-Cookie": HEADER,
    },
)


@QUICK
@given(st.integers(200, 599), JSON | st.binary(max_size=30), HEADERS)
@example(500, b'{"errors": true}', {})
@example(404, b'{"errors": 5, "error": {"code": []}}', {})
@example(409, DEEP, {})
@example(200, DEEP, {})
@example(400, b"[" * 100_000, {})
@example(500, b'{"detail": ' + b"9" * 6000 + b"}", {})
@example(200, b'{"name": "x"}', {"Date": DATES[0]})
@example(302, b"", {"Location": "http://["})
def test_reading_an_answer_raises_only_slipway_errors(stand, status, body, headers):
    ask(stand, Answer(status, body, headers))


@pytest.mark.parametrize("body", [b'{"errors": true}', b'{"errors": "no"}', b'{"errors": [{"message": ["no"]}]}',
                                  b'{"error": {"message": {"detail": "no"}}}'])  # fmt: skip
def test_the_content_of_a_malformed_error_body_is_shown(stand, body):
    _, said = ask(stand, Answer(404, body))
    assert len(said) == 3 and all("404 " in one and ("no" in one or "rue" in one) for one in said), said


@pytest.mark.parametrize("date", DATES)
def test_an_invalid_date_leaves_the_clock_unchanged(stand, date):
    asking, _ = ask(stand, Answer(200, {"name": "x"}))
    stand.on("GET /thing", Answer(200, {"name": "x"}, {"Date": date}))
    assert asking.read("/thing", Thing).name == "x"
    far = date.startswith(("Fri, 31 Dec 9999 23:59:59", "Mon, 01 Jan 0001", "1 Jan 1"))  # readable, and far off
    assert abs(asking.now() - time.time()) < 60 and not asking.skew_problem or far


@pytest.mark.parametrize(
    ("off_s", "apart"), [(-7200, "2 h behind"), (-3500, ""), (3500, ""), (3.15e9, "875000 h ahead")]
)
def test_clocks_more_than_an_hour_apart_are_reported(stand, off_s, apart):
    asking, _ = ask(stand, Answer(200, {"name": "x"}, {"Date": formatdate(time.time() + off_s, usegmt=True)}))
    assert apart in asking.skew_problem and bool(asking.skew_problem) == bool(apart)
    assert not api(stand, clock_scale=60.0).skew_problem


def test_setting_our_clock_does_not_affect_the_vendors_clock(stand, monkeypatch):
    asking, _ = ask(stand, Answer(200, {"name": "x"}))
    before, ours = asking.now(), time.time
    monkeypatch.setattr(time, "time", lambda: ours() + 86_400)
    assert abs(asking.now() - before) < 60
