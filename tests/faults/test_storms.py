"""Vendors that refuse every request for a while, answer byte by byte, or stay silent: few calls, and an end in time."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec import Struct

from infra.errors import Ambiguous, SlipwayError
from infra.ledger.reconcile import reconcile
from infra.providers import json_api
from infra.providers.json_api import JsonApi, RequestNotSent
from infra.runs import pods
from tests import seeds
from tests.faults.crash import Desk, Renting
from tests.faults.rented import VENDORS, order
from tests.faults.trial import rounds

pytestmark = pytest.mark.process

ATTEMPT_S, READ_S, PER_MINUTE = 0.4, 1.0, 50
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"


class Thing(Struct):
    name: str


@dataclass
class Hole:
    """A server with open connections and no useful answer."""

    how: str
    taken: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        with socket.socket() as server, contextlib.ExitStack() as waiting:
            server.bind(("127.0.0.1", 0))
            server.listen(0 if self.how == "deaf" else 16)
            where = server.getsockname()
            if self.how == "deaf":  # a full queue: a new client gets no answer at all
                for _ in range(4):
                    one = waiting.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(where)
            else:
                server.settimeout(0.02)
                threads = [threading.Thread(target=self._take, args=(server,))]
                threads[0].start()
                waiting.callback(threads[0].join)
                waiting.callback(self._over.set)
            yield f"http://127.0.0.1:{where[1]}"

    def _take(self, server: socket.socket) -> None:
        with contextlib.ExitStack() as open_now:
            threads = []
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    one = open_now.enter_context(server.accept()[0])
                    self.taken += 1
                    threads.append(threading.Thread(target=self._answer, args=(one,)))
                    threads[-1].start()
            for thread in threads:
                thread.join()

    def _answer(self, one: socket.socket) -> None:
        said = {"drip head": HEAD, "drip body": HEAD + b" " * 1000, "endless": HEAD}.get(self.how, b"")
        one.settimeout(1)
        with contextlib.suppress(OSError):  # the client has left
            if self.how == "endless":
                one.sendall(HEAD)
                while not self._over.is_set():
                    one.sendall(b" " * 65536)
            if self.how == "drip body":
                one.sendall(HEAD)
            for byte in said:
                if self._over.wait(0.02):
                    return
                one.sendall(bytes([byte]))
        self._over.wait(60)


@pytest.fixture
def planned(monkeypatch):
    """Yield the latest end of each attempt, as decided at its start, in seconds of the monotonic clock."""
    ends, run = [], json_api._run

    def noted(answer, limit_s):
        ends.append(time.monotonic() + limit_s)
        return run(answer, limit_s)

    monkeypatch.setattr(json_api, "_run", noted)
    return ends


HOLES = ("deaf", "silent", "drip head", "drip body", "endless")


def read_from(hole: Hole, planned: list[float], kind=JsonApi) -> None:
    with hole.open() as url:
        begun = time.monotonic()
        asking = kind("vendor", url, {}, attempt_s=ATTEMPT_S, read_s=READ_S, most_bytes=1 << 20)
        with pytest.raises(SlipwayError, match="no usable answer"):
            asking.read("/thing", Thing)
    assert 1 <= len(planned) <= json_api.MOST_ATTEMPTS and hole.taken <= len(planned)
    assert max(planned) <= begun + READ_S + 1


@pytest.mark.parametrize("how", HOLES)
def test_a_read_ends_at_its_deadline_for_every_server(how, planned):
    read_from(Hole(how), planned)


@pytest.mark.parametrize("how", HOLES)
def test_a_rent_request_is_sent_once_and_given_up_in_time(how, planned):
    hole = Hole(how)
    with hole.open() as url:
        begun = time.monotonic()
        asking = JsonApi("vendor", url, {}, attempt_s=ATTEMPT_S, most_bytes=1 << 20)
        # The deaf server received nothing; with one limit for connect and read, the client cannot always know.
        with pytest.raises((RequestNotSent, Ambiguous) if how == "deaf" else Ambiguous):
            asking.send_change("POST", "/thing", {"a": 1})
    assert len(planned) == 1 and planned[0] <= begun + ATTEMPT_S + 1 and hole.taken <= 1


class WaitsForEachByte(JsonApi):
    """Limits the time per byte, but not the time per answer."""

    def _once(self, method, path, limit_s, **options):
        return super()._once(method, path, READ_S + 1.5, **options)


def test_storm_rig_rejects_a_client_without_a_total_deadline(planned):
    with pytest.raises(AssertionError):
        read_from(Hole("drip body"), planned, WaitsForEachByte)


@rounds(1, 30)
def test_a_storm_of_429_costs_only_few_calls(here, tmp_path, rounds):
    """Sweep and launch for some minutes, as often as a program can; each minute is a vendor's minute."""
    seed = seeds.seed()
    chance = random.Random(seed)
    for number in range(rounds):
        name = VENDORS[number % len(VENDORS)]
        desk = Desk(here, Renting(), tmp_path / str(number), name, [])
        vendor = here.vendor(name, desk.path, per_minute=PER_MINUTE)
        offer = vendor.offers(order(name, "r")[0])[0]
        desk.folder.mkdir()
        before = len(here.calls())
        retry_after_s = 0 if number < len(VENDORS) else chance.randint(0, 5)
        here.fault({"kind": "throttle", "count": None, "retry_after_s": retry_after_s})
        with desk.journal() as journal:
            prefix, until, tries = f"sw1-{journal.installation}-", here.now() + 150, 0
            while here.now() < until:
                tries += 1
                calls = len(here.calls())
                assert reconcile(vendor, journal).problems
                assert len(here.calls()) - calls <= json_api.MOST_ATTEMPTS
                request, job = order(name, f"run-{tries}")
                with pytest.raises(SlipwayError, match="429|rate limit"):
                    pods.rent(vendor, request, offer, job, journal)
                here.sleep(chance.choice([0.01, 1]))
            assert {op.state for op in journal.ops()} == {"FAILED"} and here.machines(prefix) == []
            times = [one["at"] for one in here.calls()[before:]]
            busiest = max(sum(at <= other < at + 59 for other in times) for at in times)
            print(f"{name}: {tries} rounds, {len(times)} calls, {busiest} in the busiest minute")
            assert busiest <= PER_MINUTE and (retry_after_s or len(times) > 2 * PER_MINUTE)
            here.fault()
            here.move(60)
            request, job = order(name, "after-the-storm")
            assert pods.rent(vendor, request, offer, job, journal).state == "BOOTING"
