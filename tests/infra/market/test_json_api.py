"""The one HTTP client: what may be repeated, what may not, and what an answer proves."""

import time
from email.utils import formatdate

import pytest
from msgspec import Struct

from infra.errors import Ambiguous, AuthError, SlipwayError, UsageError
from infra.providers import json_api
from infra.providers.json_api import JsonApi, RequestNotSent, VendorRefused, endpoint
from infra.providers.pace import Pace
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

KEY = ("Authorization", "Bearer secret")


class Thing(Struct):
    name: str


THING = Answer(200, {"name": "one"})


@pytest.fixture
def stand():
    with Stand(KEY, paths=["/thing", "/other"]) as stand:
        yield stand
    assert stand.wrong == []


def api(stand, **options):
    slept = []
    made = JsonApi("vendor", stand.url, dict([KEY]), **{"sleep": slept.append, **options})
    made.slept = slept
    return made


@pytest.mark.parametrize("bad", [Answer(500), Answer(503), Answer(408), Answer(how="drop"), Answer(200, b"{"),
                                 Answer(200, {"name": 1}), Answer(200, {"name": "one"}, how="short")])  # fmt: skip
def test_a_read_is_repeated_until_its_answer_can_be_used(stand, bad):
    stand.on("GET /thing", bad, bad, THING)
    assert api(stand).read("/thing", Thing).name == "one"
    assert stand.times("GET /thing") == 3


def test_a_read_gives_up_after_five_attempts_and_says_what_was_seen(stand):
    stand.on("GET /thing", Answer(500, {"error": {"code": "oops", "message": "broken", "hint": "wait"}}))
    with pytest.raises(SlipwayError, match="500 broken; wait"):
        api(stand).read("/thing", Thing)
    assert stand.times("GET /thing") == 5


def test_retry_after_is_honoured_and_never_waited_for_past_the_deadline(stand):
    stand.on("GET /thing", Answer(429, headers={"Retry-After": "7"}), THING)
    asking = api(stand)
    asking.read("/thing", Thing)
    assert asking.slept == [7.0]
    stand.on("GET /thing", Answer(429, headers={"Retry-After": "3600"}))
    asking = api(stand, read_s=30.0)
    with pytest.raises(SlipwayError, match="429"):
        asking.read("/thing", Thing)
    assert asking.slept == []


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, AuthError), (403, AuthError), (404, VendorRefused), (422, VendorRefused), (410, SlipwayError)],
)
def test_a_refused_read_is_not_repeated(stand, status, error):
    stand.on("GET /thing", Answer(status, {"detail": "no"}))
    with pytest.raises(error, match=f"{status} no"):
        api(stand).read("/thing", Thing)
    assert stand.times("GET /thing") == 1


@pytest.mark.parametrize("how", ["silent", "drip"])
def test_an_attempt_ends_at_its_deadline_however_slowly_bytes_arrive(stand, how):
    stand.on("GET /thing", Answer(200, b" " * 10_000, how=how))
    begun = time.monotonic()
    with pytest.raises(SlipwayError, match="no complete answer in 0.5 s"):
        api(stand, attempt_s=0.5, read_s=0.0).read("/thing", Thing)
    assert time.monotonic() - begun < 30  # all of the bytes would take minutes
    assert stand.times("GET /thing") == 1


def test_the_last_attempt_has_what_is_left_until_the_deadline(stand, monkeypatch):
    stand.on("GET /thing", Answer(how="silent"))
    limits, run = [], json_api._run

    def noted(answer, limit_s):
        limits.append(limit_s)
        return run(answer, limit_s)

    monkeypatch.setattr(json_api, "_run", noted)
    with pytest.raises(SlipwayError, match="no usable answer"):
        api(stand, attempt_s=1.0, read_s=1.6).read("/thing", Thing)
    assert limits[0] == 1.0 and all(limit_s <= 0.6 for limit_s in limits[1:])


def test_an_answer_that_is_too_long_is_not_read_to_its_end(stand):
    stand.on("GET /thing", Answer(200, b" " * 2_000_000))
    with pytest.raises(SlipwayError, match="longer than 1 MiB"):
        api(stand, most_bytes=1 << 20).read("/thing", Thing)


def test_a_key_follows_no_redirect_to_another_host(stand):
    with Stand(KEY, paths=["/thing"]) as other:
        stand.on("GET /thing", Answer(302, headers={"Location": f"{other.url}/thing"}))
        with pytest.raises(SlipwayError, match="must not receive the key"):
            api(stand).read("/thing", Thing)
        assert other.asked == []
    stand.on("GET /thing", Answer(307, headers={"Location": "/other"}))
    stand.on("GET /other", THING)
    assert api(stand).read("/thing", Thing).name == "one"


@pytest.mark.parametrize("status", [400, 402, 403, 404, 422, 429])
def test_an_act_that_was_refused_was_not_done(stand, status):
    stand.on("POST /thing", Answer(status, {"detail": "no"}, {"X-Request-Id": "r-1"}))
    with pytest.raises(VendorRefused, match=r"no \(request r-1\)") as caught:
        api(stand).act("POST", "/thing", {"a": 1})
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times("POST /thing") == 1


@pytest.mark.parametrize(
    "answer",
    [Answer(500), Answer(409), Answer(408), Answer(302), Answer(how="drop"), Answer(how="short", body=b"12345678")],
    ids=lambda answer: f"{answer.status}-{answer.how}",
)
def test_an_act_without_a_clear_answer_may_have_been_done_and_is_not_repeated(stand, answer):
    stand.on("POST /thing", answer)
    with pytest.raises(Ambiguous):
        api(stand).act("POST", "/thing", {"a": 1})
    assert stand.times("POST /thing") == 1


def test_what_was_never_sent_was_not_done():
    with Stand(KEY) as gone:
        pass
    with pytest.raises(RequestNotSent, match="nothing was sent"):
        api(gone).act("POST", "/thing")
    with pytest.raises(SlipwayError, match="no usable answer"):
        api(gone).read("/thing", Thing)


def test_an_empty_body_is_an_answer_to_an_act(stand):
    stand.on("DELETE /thing", Answer(204))
    assert api(stand).act("DELETE", "/thing").status == 204


def test_no_more_requests_go_out_in_a_minute_than_are_allowed(stand):
    stand.on("GET /thing", THING)
    asking = api(stand, pace=Pace.of_minute(2), read_s=30.0)
    asking.read("/thing", Thing)
    asking.read("/thing", Thing)
    with pytest.raises(SlipwayError, match="2 in 1 min"):
        asking.read("/thing", Thing)
    assert stand.times("GET /thing") == 2


def test_time_is_the_vendor_s(stand):
    stand.on("GET /thing", Answer(200, {"name": "one"}, {"Date": formatdate(time.time() + 7200, usegmt=True)}))
    asking = api(stand)
    asking.read("/thing", Thing)
    assert 7195 < asking.now() - time.time() < 7205


def test_what_a_vendor_says_cannot_steer_a_terminal(stand):
    stand.on("GET /thing", Answer(404, {"detail": "a\x1b[2Jb\u202ec"}))
    with pytest.raises(VendorRefused) as caught:
        api(stand).read("/thing", Thing)
    assert str(caught.value).isprintable()


def test_a_key_that_a_server_repeats_is_in_no_message(stand):
    stand.on("GET /thing", Answer(404, {"detail": "no such thing for Bearer secret"}))
    with pytest.raises(VendorRefused, match=r"for Bearer \*\*\*"):
        api(stand).read("/thing", Thing)


def test_a_key_goes_out_encrypted_or_stays_on_this_machine():
    with pytest.raises(UsageError, match="https"):
        JsonApi("vendor", "http://example.com", {})
    with pytest.raises(UsageError, match="that no key has") as caught:
        JsonApi("vendor", "https://example.com", {"X-API-KEY": "secret\nX-Other: 1"})
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="this machine"):
        endpoint("https://api.example.com", "https://elsewhere.example.com", "SLIPWAY_X_URL")
    assert endpoint("https://api.example.com", "http://127.0.0.1:1", "X") == "http://127.0.0.1:1"
    assert endpoint("https://api.example.com", "", "X") == "https://api.example.com"


def test_a_web_firewall_is_named_and_is_no_refusal_of_the_key(stand):
    stand.on("GET /thing", Answer(403, b"error code: 1010"))
    with pytest.raises(SlipwayError, match="web firewall .* User-Agent, independent of the key") as raised:
        api(stand).read("/thing", Thing)
    assert not isinstance(raised.value, AuthError)
