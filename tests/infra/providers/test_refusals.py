"""The version in requests, and the kinds of refusals."""

import re

import pytest

from infra.providers.json_api import USER_AGENT, Reply
from infra.providers.lium import REFUSALS as LIUM
from infra.providers.refusals import RefusalKind
from infra.providers.runpod.rest import REFUSALS as RUNPOD
from infra.providers.shadeform import REFUSALS as SHADEFORM
from tests.world import ROOT


def test_requests_carry_the_version_of_this_checkout():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"slipway/{version}" == USER_AGENT


@pytest.mark.parametrize("table", [RUNPOD, LIUM, SHADEFORM], ids=lambda table: table.vendor)
def test_every_message_names_its_source_and_the_status_decides_money_and_throttling(table):
    assert all(sentence.source and sentence.part == sentence.part.lower() for sentence in table.sentences)
    assert table.kind_of(Reply(402, {}, b"out of stock")) is RefusalKind.NO_MONEY
    assert table.kind_of(Reply(429, {}, b"your balance")) is RefusalKind.THROTTLED
    for status in (408, 500, 502, 503, 504):
        assert table.kind_of(Reply(status, {}, b"?")) is RefusalKind.UNKNOWN


@pytest.mark.parametrize("table", [RUNPOD, LIUM, SHADEFORM], ids=lambda table: table.vendor)
def test_a_web_firewall_is_named_and_does_not_count_as_a_refused_key(table):
    blocked = Reply(403, {}, b"error code: 1010")
    assert table.kind_of(blocked) is RefusalKind.BAD_REQUEST
    error = table.error_for_reply(blocked, "POST /pods: 403")
    assert "refuses this client because of the User-Agent" in str(error) and "nothing was rented" in str(error)
