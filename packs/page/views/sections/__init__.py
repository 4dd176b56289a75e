"""The views of the page by API name."""

import shlex
from typing import Any

from packs.page.views.page_context import PageContext
from packs.page.views.sections import artifacts, logs, pods, runs, services
from packs.page.views.sections.ask import View, ViewQuery


def about(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return global facts for the page: whether actions are allowed, rehearsal state and store."""
    return {
        "acts_allowed": context.acts_allowed,
        "is_rehearsal": bool(context.settings.rehearsal),
        "store": shlex.quote(context.settings.store),
    }


VIEWS: dict[str, View] = {
    "about": View(about),
    "runs": runs.LIST,
    "curves": runs.CURVES,
    "pods": pods.PODS,
    "logs": logs.VIEW,
    "services": services.VIEW,
    "cost": pods.COST,
    "offers": pods.OFFERS,
    "sweeps": artifacts.SWEEPS,
    "data": artifacts.DATA,
    "data_report": artifacts.DATA_REPORT,
}
