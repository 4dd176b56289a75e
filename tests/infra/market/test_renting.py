"""The vendors' clients with the journal: rented, lost and ended pods, with real servers and a real journal."""

import subprocess

import pytest

from infra.agent.job import Job
from infra.errors import Ambiguous, NoOffer, SlipwayError
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.providers.pod_keys import PodKeys
from infra.runs import pods
from tests.infra.market import test_shadeform as shadeform_facts
from tests.infra.market.stand import Answer, Stand
from tests.infra.market.test_shadeform import DOCUMENT, KEY, LIMITS, REQUEST, SSH_KEYS, TYPE, client

pytestmark = pytest.mark.process

JOB = Job(run="", token="", steps=(), limits=LIMITS)


@pytest.fixture
def journal(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with Journal.open(environ=environ) as opened:
        yield opened


@pytest.fixture
def stand():
    with Stand(KEY, document=DOCUMENT) as stand:
        stand.on("GET /instances/types", Answer(200, {"instance_types": [TYPE]}))
        stand.on("GET /sshkeys", Answer(200, SSH_KEYS))
        stand.on("POST /sshkeys/add", Answer(200, {"id": "key-1"}))
        stand.on("GET /instances", lambda _: Answer(200, {"instances": machines(stand)}))
        yield stand
    assert stand.wrong == []


def machines(stand):
    """Return a machine per create request."""
    return [shadeform_facts.instance(body["name"]) for body in stand.bodies("POST /instances/create")]


def rent(vendor, journal):
    return pods.rent(vendor, REQUEST, vendor.offers(REQUEST)[0], JOB, journal)


@pytest.mark.parametrize("answer", [Answer(how="drop"), Answer(500), Answer(200, b"{"), Answer(504)], ids=str)
def test_a_pod_without_confirmed_creation_is_found_by_its_token(stand, keys, journal, answer):
    stand.on("POST /instances/create", answer)
    op = rent(client(stand, keys), journal)
    assert (op.state, op.remote_id, op.rate) == ("BOOTING", "1dc915dd-8899-4b4f-862a-f63fb2b3dc3d", 570_000)
    assert stand.times("POST /instances/create") == 1


def test_an_invisible_pod_is_unknown_and_not_requested_again(stand, keys, journal):
    stand.on("POST /instances/create", Answer(how="drop"))
    stand.on("GET /instances", Answer(200, {"instances": []}))
    with pytest.raises(Ambiguous):
        rent(client(stand, keys, clock_scale=100), journal)  # the search takes a minute of the vendor's clock
    (op,) = journal.ops()
    assert op.state == "UNKNOWN" and stand.times("POST /instances/create") == 1
    with pytest.raises(SlipwayError, match="may still appear in the listing"):
        pods.end(client(stand, keys), op, journal)


def test_a_refusal_leaves_a_failed_row(stand, keys, journal):
    stand.on("POST /instances/create", Answer(409, {"error_code": "OUT_OF_STOCK", "error": "none left"}))
    with pytest.raises(NoOffer, match="none left"):
        rent(client(stand, keys), journal)
    assert [op.state for op in journal.ops()] == ["FAILED"]


def test_a_pod_has_ended_once_the_vendor_denies_it(stand, keys, journal):
    vendor = client(stand, keys)
    stand.on("POST /instances/create", Answer(200, {"id": "1dc915dd"}))
    op = rent(vendor, journal)
    deleting = shadeform_facts.instance(op.token, status="deleting")
    stand.on("POST /instances/{id}/delete", Answer(200))
    stand.on("GET /instances/{id}/info", Answer(200, deleting))
    with pytest.raises(SlipwayError, match="still has the pod.*0.57 USD/h"):
        pods.end(vendor, op, journal, patience_s=0)
    stand.on("GET /instances/{id}/info", Answer(404))
    with pytest.raises(pods.StillBills, match="still has the pod"):  # the listing contains the pod
        pods.end(vendor, journal.op(op.token), journal, patience_s=0)
    stand.on("GET /instances", Answer(200, {"instances": []}))
    assert pods.end(vendor, journal.op(op.token), journal).state == "TERMINATED"


@pytest.mark.needs("ssh-keygen")
def test_a_pods_key_is_readable_by_openssh_and_removed_with_the_pod(tmp_path):
    keys, token = PodKeys(tmp_path / "keys"), new_token("0a1b2c3d")
    public = keys.ensure_public_key(token)
    assert keys.ensure_public_key(token) == public and public.endswith(token)
    words = ["ssh-keygen", "-y", "-f", keys.private_key_path(token)]
    read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert read.split()[:2] == public.split()[:2]
    assert [path.name for path in keys.folder.iterdir()] == [token]
    keys.delete(token)
    keys.delete(token)
    assert list(keys.folder.iterdir()) == []
    with pytest.raises(SlipwayError, match="is not a valid token of a pod"):
        keys.private_key_path("../../etc/passwd")
