"""The command `pod.create`: a pod without work."""

from infra.names import check_name
from infra.selection import preflight, registry
from infra.selection.request import refuse_open, request_on
from scripts.cli import context, render
from scripts.pods.flags import CreateFlags
from scripts.runs.deploy import deploy


def create(spec: CreateFlags) -> None:
    settings = context.settings_of(spec)
    name = check_name(spec.run_name) if spec.run_name else ""
    candidates = registry.candidates(settings)
    is_rented = candidates[0].is_rented
    limits = preflight.with_most(preflight.limits_for(settings, is_rented, spec), is_rented, render.say)
    request = request_on(candidates, spec, name or "new", pool=spec.pool, host=spec.host)
    if is_rented:
        refuse_open(request)
    deploy((request,), False, limits, spec, settings)
