"""The HTTP client: retries, requests without retries, and the proof in an answer."""

import time
from email.utils import formatdate

import pytest
from msgspec import Struct

from infra.errors import Ambiguous, AuthError, SlipwayError, UsageError
from infra.providers import json_api
from infra.providers.json_api import JsonApi, RequestNotSent, VendorRefused, endpoint
from infra.providers.rate_limit import Pace
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
def test_a_read_is_retried_until_a_usable_answer(stand, bad):
    stand.on("GET /thing", bad, bad, THING)
    assert api(stand).read("/thing", Thing).name == "one"
    assert stand.times("GET /thing") == 3


def test_a_read_gives_up_after_five_attempts_and_reports_the_failures(stand):
    stand.on("GET /thing", Answer(500, {"error": {"code": "oops", "message": "broken", "hint": "wait"}}))
    with pytest.raises(SlipwayError, match="500 broken; wait"):
        api(stand).read("/thing", Thing)
    assert stand.times("GET /thing") == 5


def test_retry_after_is_honored_up_to_the_deadline(stand):
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
def test_a_refused_read_is_not_retried(stand, status, error):
    stand.on("GET /thing", Answer(status, {"detail": "no"}))
    with pytest.raises(error, match=f"{status} no"):
        api(stand).read("/thing", Thing)
    assert stand.times("GET /thing") == 1


@pytest.mark.parametrize("how", ["silent", "drip"])
def test_an_attempt_ends_at_its_deadline_despite_slow_bytes(stand, how):
    stand.on("GET /thing", Answer(200, b" " * 10_000, how=how))
    begun = time.monotonic()
    with pytest.raises(SlipwayError, match="no complete answer in 0.5 s"):
        api(stand, attempt_s=0.5, read_s=0.0).read("/thing", Thing)
    assert time.monotonic() - begun < 30  # all bytes would take minutes
    assert stand.times("GET /thing") == 1


def test_the_last_attempt_gets_the_remaining_time_until_the_deadline(stand, monkeypatch):
    stand.on("GET /thing", Answer(how="silent"))
    limits, run = [], json_api._run

    def noted(answer, limit_s):
        limits.append(limit_s)
        return run(answer, limit_s)

    monkeypatch.setattr(json_api, "_run", noted)
    with pytest.raises(SlipwayError, match="no usable answer"):
        api(stand, attempt_s=1.0, read_s=1.6).read("/thing", Thing)
    assert limits[0] == 1.0 and all(limit_s <= 0.6 for limit_s in limits[1:])


def test_a_too_long_answer_is_not_read_to_the_end(stand):
    stand.on("GET /thing", Answer(200, b" " * 2_000_000))
    with pytest.raises(SlipwayError, match="longer than 1 MiB"):
        api(stand, most_bytes=1 << 20).read("/thing", Thing)


def test_a_key_follows_no_redirect_to_a_different_host(stand):
    with Stand(KEY, paths=["/thing"]) as other:
        stand.on("GET /thing", Answer(302, headers={"Location": f"{other.url}/thing"}))
        with pytest.raises(SlipwayError, match="must not receive the key"):
            api(stand).read("/thing", Thing)
        assert other.asked == []
    stand.on("GET /thing", Answer(307, headers={"Location": "/other"}))
    stand.on("GET /other", THING)
    assert api(stand).read("/thing", Thing).name == "one"


@pytest.mark.parametrize("status", [400, 402, 403, 404, 422, 429])
def test_a_refused_action_was_not_done(stand, status):
    stand.on("POST /thing", Answer(status, {"detail": "no"}, {"X-Request-Id": "r-1"}))
    with pytest.raises(VendorRefused, match=r"no \(request r-1\)") as caught:
        api(stand).send_change("POST", "/thing", {"a": 1})
    assert not isinstance(caught.value, Ambiguous)
    assert stand.times("POST /thing") == 1


@pytest.mark.parametrize(
    "answer",
    [Answer(500), Answer(409), Answer(408), Answer(302), Answer(how="drop"), Answer(how="short", body=b"12345678")],
    ids=lambda answer: f"{answer.status}-{answer.how}",
)
def test_an_action_without_a_clear_answer_is_ambiguous_and_not_retried(stand, answer):
    stand.on("POST /thing", answer)
    with pytest.raises(Ambiguous):
        api(stand).send_change("POST", "/thing", {"a": 1})
    assert stand.times("POST /thing") == 1


def test_an_unsent_action_was_not_done():
    with Stand(KEY) as gone:
        pass
    with pytest.raises(RequestNotSent, match="nothing was sent"):
        api(gone).send_change("POST", "/thing")
    with pytest.raises(SlipwayError, match="no usable answer"):
        api(gone).read("/thing", Thing)


def test_an_empty_body_is_a_valid_answer_to_an_action(stand):
    stand.on("DELETE /thing", Answer(204))
    assert api(stand).send_change("DELETE", "/thing").status == 204


def test_requests_per_minute_stay_within_the_limit(stand):
    stand.on("GET /thing", THING)
    asking = api(stand, pace=Pace.per_minute(2), read_s=30.0)
    asking.read("/thing", Thing)
    asking.read("/thing", Thing)
    with pytest.raises(SlipwayError, match="2 in 1 min"):
        asking.read("/thing", Thing)
    assert stand.times("GET /thing") == 2


def test_time_comes_from_the_vendors_clock(stand):
    stand.on("GET /thing", Answer(200, {"name": "one"}, {"Date": formatdate(time.time() + 7200, usegmt=True)}))
    asking = api(stand)
    asking.read("/thing", Thing)
    assert 7195 < asking.now() - time.time() < 7205


def test_latest_time_includes_the_travel_time_of_a_slow_answer(stand):
    slow = Answer(200, {"name": "one"}, {"Date": formatdate(1e9, usegmt=True)}, how="drip")
    stand.on("GET /thing", slow)
    asking = api(stand, clock_scale=60.0)
    asking.read("/thing", Thing)
    travel_s = 0.05 * len(slow.content)  # a byte each 0.05 s, after the Date
    assert asking.latest_now() - asking.now() >= 60 * travel_s


def test_vendor_text_has_no_terminal_control_codes(stand):
    stand.on("GET /thing", Answer(404, {"detail": "a\x1b[2Jb\u202ec"}))
    with pytest.raises(VendorRefused) as caught:
        api(stand).read("/thing", Thing)
    assert str(caught.value).isprintable()


def test_a_key_repeated_by_a_server_is_in_no_message(stand):
    stand.on("GET /thing", Answer(404, {"detail": "no such thing for Bearer secret"}))
    with pytest.raises(VendorRefused, match=r"for Bearer \*\*\*"):
        api(stand).read("/thing", Thing)


def test_a_key_is_sent_encrypted_or_to_this_machine_only():
    with pytest.raises(UsageError, match="https"):
        JsonApi("vendor", "http://example.com", {})
    with pytest.raises(UsageError, match="that no key has") as caught:
        JsonApi("vendor", "https://example.com", {"X-API-KEY": "secret\nX-Other: 1"})
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="this machine"):
        endpoint("https://api.example.com", "https://elsewhere.example.com", "SLIPWAY_X_URL")
    assert endpoint("https://api.example.com", "http://127.0.0.1:1", "X") == "http://127.0.0.1:1"
    assert endpoint("https://api.example.com", "", "X") == "https://api.example.com"


def test_a_web_firewall_is_named_and_does_not_count_as_a_refused_key(stand):
    stand.on("GET /thing", Answer(403, b"error code: 1010"))
    with pytest.raises(SlipwayError, match="web firewall .* User-Agent, independent of the key") as raised:
        api(stand).read("/thing", Thing)
    assert not isinstance(raised.value, AuthError)
