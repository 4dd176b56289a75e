"""A laptop with a manipulated wall clock: rents a pod, reports the cost, and ends the pod at the limit.

    LD_PRELOAD=libfaketime.so.1 ... python -m tests.faults.laptop < orders

Runs as a separate process, because libfaketime fakes the clock of the process. Input: a line of JSON about the world,
then an order per line. Output: a line of JSON per order.
"""

import json
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Python sleeps until a time of the monotonic clock; libfaketime takes the monotonic clock for the faked clock.
time.sleep = lambda seconds: select.select([], [], [], seconds) and None  # type: ignore[assignment]

from infra.agent.job import Job, Limits  # noqa: E402
from infra.agent.limits import read_clocks  # noqa: E402
from infra.ledger import reap, spend  # noqa: E402
from infra.ledger.journal import Journal  # noqa: E402
from infra.ledger.op import Op  # noqa: E402
from infra.providers.json_api import JsonApi  # noqa: E402
from infra.providers.lium import Lium  # noqa: E402
from infra.providers.pod_keys import PodKeys  # noqa: E402
from infra.providers.runpod import RunPod  # noqa: E402
from infra.providers.shadeform import Shadeform  # noqa: E402
from infra.runs import boot, pods  # noqa: E402
from tests.faults.rented import environ, order  # noqa: E402

RUN = "brave-otter-1"


def by_both(op: Op, scale: float) -> int:
    return spend.spent(op, read_clocks(), scale)


def by_the_wall(op: Op, scale: float) -> int:
    """Known to be bad: a clock that is set back gives free time."""
    return spend.spent(op, time.time(), scale)


def by_a_ratchet_of_the_wall(op: Op, scale: float) -> int:
    """Known to be bad: the same, but the amount never decreases."""
    _most[0] = max(_most[0], by_the_wall(op, scale))
    return _most[0]


_most = [0]
COUNTS: dict[str, Callable[[Op, float], int]] = {
    one.__name__: one for one in (by_both, by_the_wall, by_a_ratchet_of_the_wall)
}


def main() -> None:
    about = json.loads(sys.stdin.readline())
    folder, name, scale = Path(about["folder"]), about["vendor"], about["scale"]
    there = about["world"]
    header = {"Authorization": f"Bearer {there['key']}"} if name == "runpod" else {"X-API-KEY": there["key"]}
    api = JsonApi(name, there["url"], header, clock_scale=scale)
    keys = PodKeys.for_journal(folder / "journal.db")
    vendor = {"shadeform": Shadeform, "runpod": RunPod, "lium": Lium}[name](api, keys)
    count = COUNTS[about["count"]]
    with Journal.open(folder / "journal.db", environ(folder)) as journal:

        def do(what: str) -> Any:
            if what == "rent":
                request, _ = order(name, RUN)
                job = Job(run="", token="", steps=(), limits=Limits(**about["limits"]))
                offer, began = vendor.offers(request)[0], time.monotonic()
                op = pods.rent(vendor, request, offer, job, journal)
                rent_s = time.monotonic() - began
                deadline = time.monotonic() + 60
                while not (pod := vendor.find(op.remote_id or op.token)) or not pod.address:
                    assert time.monotonic() < deadline, pod
                    time.sleep(0.02)
                op = journal.note(op, **boot.price(op, pod, vendor))
                return {"token": journal.advance(op, "armed").token, "rent_s": rent_s}
            (op,) = journal.ops(run=RUN)
            if what == "look":
                return {"spent": count(op, scale), "wall": time.time(), "state": op.state}
            assert what == "reap", what
            return {"due": [why for _, why in reap.reap(vendor, journal).due], "state": journal.op(op.token).state}

        for line in sys.stdin:
            print(json.dumps(do(line.strip())), flush=True)


if __name__ == "__main__":
    main()
