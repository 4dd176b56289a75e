"""Boot of a rented pod: wait for an address and sshd, and create a folder marked as ours on the pod.

`boot` takes a BOOTING row and returns the row with the address. Vendors report "running" long before a pod can be
reached, and some pods never become reachable, so the wait has a limit on the vendor's clock.
"""

import json
import math
import time
from dataclasses import replace
from typing import Any

from infra.agent.limits import read_clocks
from infra.errors import AuthError, NoOffer, SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.names import check_name
from infra.providers import Market, find_pod
from infra.records import Address, Pod
from infra.runs import observation, pods
from infra.transport.protocol import ConnectionLost, TimedOut, Unreachable
from infra.units import duration, in_usd, per_hour

POLL_S, LEAST_POLL_S = 5.0, 0.2
COMMAND_S = 30.0
NOT_LISTED_S = 120.0  # A vendor may not know a fresh id for a while.
KEY_LATE_S = 60.0  # At some vendors sshd starts before our key is written.
OVERPRICED = 1.05
ROUNDED = 10_000  # Micro-USD: a vendor may report amounts in whole cents.
LATE_S = 5.0  # Local clock: possible delay of a vendor's answer.
NO_VOLUME = 44
# Steps write to the volume, if any; a rehearsal's machine can mount a volume only below the home folder.
MARK = f"""folder="$HOME/.slipway/pods/$1" && umask 077 && mkdir -p -- "$folder" || exit
if [ -n "$3" ] && ! [ -L "$folder/work" ]; then
    for place in "$HOME"/mnt/* $3; do
        [ -d "$place" ] || continue
        [ -L "$place" ] || [ "$(stat -c %d -- "$place")" != "$(stat -c %d /)" ] || continue
        work="$place/slipway/$1/work" && mkdir -p -- "$work" && ln -s -- "$work" "$folder/work" && break
    done
    [ -L "$folder/work" ] || exit {NO_VOLUME}
fi
printf '%s\\n' "$2" > "$folder/POD.json" && printf %s "$folder" """


class BootFailed(NoOffer):
    """The machine is unusable; the next offer may work."""


def boot(op: Op, provider: Market, journal: Journal, limit_s: float) -> Op:
    """Return the row with the pod's address, within `limit_s` seconds of the vendor's clock.

    Raises BootFailed; the pod still exists in this case.
    """
    scale = provider.clock_scale
    deadline = time.monotonic() + limit_s / scale
    pod = _armed_again(op, _address(op, provider, deadline, scale), provider)
    problem = _broken_promise(op, pod, provider)
    if problem:
        raise BootFailed(problem)
    folder = _mark(replace(pod, run=op.run), provider, op, deadline, scale)
    address = replace(Address.parse(pod.address), folder=folder)
    shown = {"last_seen_at": int(time.time())}  # The vendor has listed the pod, so a later absence is proof.
    return journal.note(op, address=str(address), **shown, **price(op, pod, provider))


def _armed_again(op: Op, pod: Pod, provider: Market) -> Pod:
    """Arm the vendor's timer again where a boot resets the timer, and return the pod. Raises BootFailed."""
    limit_s = spend.limit_s(op)
    if not provider.can.resets_timer or limit_s is None:
        return pod
    left_s = limit_s - spend.since_request_s(op, read_clocks(), provider.clock_scale)
    try:
        provider.arm_timer(pod.pod_id, provider.now() + left_s)
        return provider.find(pod.pod_id) or pod
    except SlipwayError as error:
        raise BootFailed(f"{provider.name}'s timer could not be set after the boot: {error}") from None


def price(op: Op, pod: Pod, provider: Market) -> dict[str, Any]:
    """Return the vendor's price of a running pod as row fields: the rate and the start of billing.

    The start is on the wall clock as of the sending of the request. Rounding makes the start too early, never too late.
    """
    rate = pod.rate(op.rate)
    if not pod.billed_at:
        return {"rate": rate}
    ago_s = max(0.0, provider.latest_now() - pod.billed_at) / provider.clock_scale
    sent_at = float(op.intent_at if op.sent_at is None else op.sent_at)
    now = read_clocks()
    since_s = now.wall_s - sent_at
    if op.boot_s is not None and op.boot_id == now.boot_id:
        since_s = min(since_s, now.boot_s - op.boot_s)
    return {"rate": rate, "billed_at": max(sent_at, sent_at + since_s - ago_s)}


def _address(op: Op, provider: Market, deadline: float, scale: float) -> Pod:
    began, said, odd_since = time.monotonic(), "nothing", 0.0
    while time.monotonic() < deadline:
        try:
            pod = find_pod(provider, op.remote_id or op.token, op.is_spot)
        except SlipwayError as error:  # An API error says nothing about the pod.
            said = str(error)
        else:
            if pod and pod.address:
                return pod
            if pod and pod.state in observation.STOPPED:
                raise BootFailed(
                    f"{provider.name} says that the pod is {pod.state}{f': {pod.note}' if pod.note else ''}"
                )
            is_odd = pod is not None and pod.state == "running" and bool(pod.odd)
            odd_since = (odd_since or time.monotonic()) if is_odd else 0.0
            if pod and is_odd and time.monotonic() - odd_since > NOT_LISTED_S / scale:
                why = _broken_promise(op, pod, provider)
                raise BootFailed(why or f"{provider.name} reports no usable address: {pod.odd}")
            if pod is None and time.monotonic() - began > NOT_LISTED_S / scale and pods.is_absent(provider, op):
                raise BootFailed(f"{provider.name} no longer lists the pod")
            said = "not listed yet" if pod is None else " ".join(filter(None, (pod.state, pod.note, pod.odd)))
        time.sleep(max(LEAST_POLL_S, POLL_S / scale))
    raise BootFailed(f"no address in time; last answer of {provider.name}: {said}")


def _mark(pod: Pod, provider: Market, op: Op, deadline: float, scale: float) -> str:
    """Return the path of the pod's folder, after marking the folder with the pod's token.

    Only the rented pod admits the key of this installation. Raises BootFailed.
    """
    said, marker = "nothing", json.dumps({"token": op.token, "run": op.run})
    volume = json.loads(op.request).get("volume", "") if op.request else ""
    places = " ".join(provider.can.volumes) if volume else ""
    refused_since, is_tried = 0.0, False
    while not is_tried or time.monotonic() < deadline:  # At least once: the address may have come at the deadline.
        is_tried = True
        try:
            words = ["sh", "-c", MARK, "sh", check_name(op.run), marker, places]
            done = provider.reach(pod).run(words, timeout_s=COMMAND_S)
            if done.exited == 0 and done.stdout.startswith("/"):
                return done.stdout
            if done.exited == NO_VOLUME:
                said = f"the volume {volume} is not mounted at any of {places}"
                time.sleep(max(LEAST_POLL_S, POLL_S / scale))
                continue
            said = (done.stderr or done.stdout).strip() or f"exit code {done.exited}"
        except (Unreachable, ConnectionLost, TimedOut) as error:  # Sshd starts late.
            said = str(error)
        except AuthError as error:  # Sshd reads keys even later.
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > KEY_LATE_S / scale:
                raise BootFailed(str(error)) from None
            said = str(error)
        time.sleep(max(LEAST_POLL_S, POLL_S / scale))
    raise BootFailed(f"the pod could not be reached in time; last error: {said}")


def _broken_promise(op: Op, pod: Pod, provider: Market) -> str:
    """Return the violation of the agreed price or limits in the vendor's report, or ""."""
    if provider.skew_problem:
        return f"{provider.name}: {provider.skew_problem}"
    if pod.micro_usd_per_hour <= 0:
        return f"{provider.name} does not report the price{f': {pod.odd}' if pod.odd else ''}"
    # The row's rate may be a later report of the vendor. The job holds the agreed rate, which includes the disk. The
    # vendor may report the price with or without the disk.
    agreed = op.read_job().limits.micro_usd_per_hour
    if pod.micro_usd_per_hour > agreed * OVERPRICED:
        return f"the pod costs {per_hour(pod.micro_usd_per_hour)}; the agreed price was {per_hour(agreed)}"
    return _unkept(op, pod, provider) if provider.can.tells_limits else ""


def _unkept(op: Op, pod: Pod, provider: Market) -> str:
    """Return the difference between the agreed limits and the limits armed by the vendor, or ""."""
    can, scale = provider.can, provider.clock_scale
    limit_s = op.ttl_s if can.spend_limit else spend.limit_s(op)  # Without spend limits, the vendor gets money as time.
    if can.time_limit and limit_s is not None:
        if pod.ends_at is None:
            return f"{provider.name} did not arm the time limit"
        slack_s = max(spend.VENDOR_LATE_S, LATE_S * scale)
        left_s = pod.ends_at - provider.now()
        least_s = limit_s - spend.since_request_s(op, read_clocks(), scale)
        most_s = math.ceil(limit_s / can.time_grain_s) * can.time_grain_s  # The vendor may count from the pod's start.
        if not least_s - slack_s <= left_s <= most_s + slack_s:
            return (
                f"{provider.name} would end the pod in {duration(left_s)}; the requested limit was {duration(limit_s)}"
            )
    if can.spend_limit and op.cap is not None:
        if not pod.spend_limit_micro_usd:
            return f"{provider.name} did not arm the spend limit"
        if pod.spend_limit_micro_usd > op.cap + ROUNDED:
            armed, cap = (in_usd(amount) for amount in (pod.spend_limit_micro_usd, op.cap))
            return f"{provider.name} has armed a spend limit of {armed}; the requested limit was {cap}"
    return ""
