"""Access control of the page and of the actions."""

import pytest

from packs.page.views.access import Gate

HOST = "127.0.0.1:7331"
OURS = {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}


def opened(**options):
    """Return an access gate with an exchanged token, and the cookies of the browser."""
    gate = Gate(hosts=(HOST, "localhost:7331"), **options)
    return gate, {gate.cookie: gate.exchange(gate.token)}


def test_token_is_valid_once_and_never_when_empty_or_wrong():
    gate = Gate(hosts=(HOST,))
    token = gate.token
    assert gate.exchange("") is None and gate.exchange(token + "x") is None
    session = gate.exchange(token)
    assert session and session != token
    assert gate.exchange(token) is None and gate.exchange("") is None
    assert gate.renew() and gate.exchange(gate.token) == session


def test_renewed_link_does_not_void_the_last_printed_link():
    gate = Gate(hosts=(HOST,))
    printed = gate.token
    for _ in range(3):  # Any program of this machine sends a wrong token.
        assert gate.exchange("guessed") is None and not gate.renew()
    assert gate.exchange(printed) and gate.exchange(printed) is None
    assert gate.renew() and gate.token != printed


def test_browser_with_the_cookie_sees_views_and_others_see_an_empty_page():
    gate, cookies = opened()
    assert gate.refuse("GET", "/api/runs", OURS, cookies) is None
    for stranger in ({}, {gate.cookie: ""}, {gate.cookie: "guessed"}, {"slipway_ui_1": cookies[gate.cookie]}):
        assert gate.refuse("GET", "/api/runs", OURS, stranger).status == 401
        assert gate.refuse("GET", "/report", OURS, stranger).status == 401
        assert gate.refuse("GET", "/", OURS, stranger) is None
        assert gate.refuse("GET", "/static/app.js", OURS, stranger) is None


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:7331", "127.0.0.1", "127.0.0.1:7332", "[::1]:7331"])
def test_foreign_host_name_is_refused(host):
    gate, cookies = opened()
    assert gate.refuse("GET", "/api/runs", {**OURS, "host": host}, cookies).status == 421


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "https://127.0.0.1:7331", "http://127.0.0.1:8000", ""]
)
def test_request_of_a_foreign_page_is_refused_even_with_the_cookie(origin):
    gate, cookies = opened()
    for method, path in (("GET", "/api/runs"), ("POST", "/api/session"), ("POST", "/api/chat")):
        assert gate.refuse(method, path, {**OURS, "origin": origin}, cookies).status == 403


def test_state_changing_request_must_declare_its_origin():
    gate, cookies = opened()
    assert gate.refuse("POST", "/api/chat", {"host": HOST}, cookies).status == 403
    assert gate.refuse("GET", "/api/runs", {"host": HOST, "sec-fetch-site": "cross-site"}, cookies).status == 403
    link = {"host": HOST, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert gate.refuse("GET", "/", link, {}) is None  # A user clicks on the link in a terminal's web page.
    assert gate.refuse("GET", "/api/runs", link, cookies).status == 403


def test_actions_are_off_by_default_and_need_their_header():
    gate, cookies = opened()
    assert "--allow-acts" in gate.refuse("POST", "/api/acts", {**OURS, "slipway-act": "1"}, cookies).why
    gate, cookies = opened(acts_allowed=True)
    assert "header" in gate.refuse("POST", "/api/acts", OURS, cookies).why
    assert gate.refuse("POST", "/api/acts", {**OURS, "slipway-act": "1"}, cookies) is None
    assert gate.refuse("POST", "/api/acts", {**OURS, "slipway-act": "1"}, {}).status == 401
