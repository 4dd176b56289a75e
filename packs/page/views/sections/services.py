"""View of services: replicas, requests per second, latency percentiles and queue over the last 15 minutes."""

import time
from typing import Any

from flows.services import service_view
from infra.ledger import service_rows
from packs.page.views.page_context import PageContext
from packs.page.views.sections.ask import View, ViewQuery
from serve.processes import controller_process

SPAN_S, EACH_S = 900.0, 10.0


def listed(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return each service in the controller's last observed state, with request statistics."""
    with context.journal() as journal:
        names = [one.name for one in service_rows.list_services(journal)]
        found = service_view.look(names, context.settings, journal, True)
    for one in found:
        one["history"] = history(context, one["service"], time.time())
    return {"services": found, "command": "inv serve.status --metrics --watch"}


VIEW = View(listed)


def history(context: PageContext, name: str, now: float) -> dict[str, list[float | None]]:
    """Return request statistics in buckets of ten seconds.

    `x` is in hours relative to now, `qps` in requests per second, and `p50` and `p95` are latencies in seconds.
    """
    places = controller_process.ServicePaths.for_service(context.settings, name)
    count = int(SPAN_S / EACH_S)
    first = (now // EACH_S - count) * EACH_S
    stretches: list[list[float]] = [[] for _ in range(count)]
    for one in service_view.lines_of(places.access):
        at = int((one["at"] - first) // EACH_S)
        if 0 <= at < count and one["route"] not in ("other", ""):
            stretches[at].append(one.get("total_s") or 0.0)
    ends = [service_view.percentiles(one) for one in stretches]
    return {
        "x": [round((at + 1 - count) * EACH_S / 3600, 5) for at in range(count)],
        "qps": [len(one) / EACH_S for one in stretches],
        **{name: [one[name] or 0.0 for one in ends] for name in ("p50", "p95")},
    }
