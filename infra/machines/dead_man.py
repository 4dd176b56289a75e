"""Dead-man timer of a rented container: a shell script in the start command to delete the pod at a deadline.

The start command contains the deadline fixed at renting and the vendor's API calls for self-deletion. The command
starts the timer in a separate session and then runs the image's start script, which provides sshd and the keys. The
timer needs neither SSH nor the guard. A container restarted on an empty disk keeps the deadline of the start command; a
file on the disk may move the deadline. The command contains no secret: the vendor passes the key as a variable to the
container's first process.
"""

import base64
import math
import re
import shlex
from collections.abc import Sequence

from infra.agent.job import Call
from infra.agent.lifecycle.start_timer import ALIVE, ENDS_AT, FOLDER, LIMIT, MARGIN_S, format_limit

START_SCRIPT = "/start.sh"  # in RunPod's images: starts sshd with PUBLIC_KEY
LOOK_S = 15  # seconds between two checks of the deadline
AGAIN_S = 60  # seconds between two rounds of API calls
CALL_S = 20  # timeout of a call in seconds
_NAME = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")

TIMER = """\
folder=${{HOME:-/root}}/{folder}
mkdir -p "$folder"
ends_at() {{
    at=$(cat "$folder/{ends_at}" 2>/dev/null)
    case $at in '' | *[!0-9]*) at={deadline} ;; esac
    echo "$at"
}}
[ -s "$folder/{limit}" ] || echo {limit_s} > "$folder/{limit}"
[ -s "$folder/{ends_at}" ] || echo {deadline} > "$folder/{ends_at}"
{ask}
while [ "$(date +%s)" -lt "$(ends_at)" ]; do
    echo "$$ $(date +%s)" > "$folder/{alive}"
    left=$(($(ends_at) - $(date +%s)))
    [ "$left" -lt {look_s} ] || left={look_s}
    sleep "$left" 2>/dev/null || sleep 1
done
while :; do
    echo "$$ $(date +%s)" > "$folder/{alive}"
{calls}
    sleep {again_s}
done
"""
# `curl` reads the request from stdin to keep the key out of the process list; `wget` cannot do so. Each branch prints
# the HTTP status.
ASK = """\
ask() { # METHOD URL BODY HEADER...
    method=$1 url=$2 body=$3
    shift 3
    if command -v curl >/dev/null 2>&1; then
        {
            printf 'request = "%s"\\nurl = "%s"\\n' "$method" "$url"
            for header in "$@"; do printf 'header = "%s"\\n' "$header"; done
            [ -z "$body" ] || printf 'data = "%s"\\n' "$(printf %s "$body" | sed 's/["\\\\]/\\\\&/g')"
        } | curl -sS -m CALL_S -o /dev/null -w '%{http_code}\\n' -K -
    elif command -v python3 >/dev/null 2>&1; then
        METHOD=$method URL=$url BODY=$body HEADERS=$(printf '%s\\n' "$@") python3 -c '
import os, urllib.request
pairs = [one.split(": ", 1) for one in os.environ["HEADERS"].splitlines()]
body = os.environ["BODY"].encode() or None
request = urllib.request.Request(os.environ["URL"], body, dict(pairs), method=os.environ["METHOD"])
print(urllib.request.urlopen(request, timeout=CALL_S).status)'
    else
        for header in "$@"; do set -- "$@" "--header=$header"; shift; done
        if [ "$method" = POST ]; then
            wget -q -O /dev/null -T CALL_S "$@" --post-data="$body" "$url"
        else
            wget -q -O /dev/null -T CALL_S "$@" --method="$method" "$url"
        fi
    fi
}""".replace("CALL_S", str(CALL_S))


def deadline(begins_at: float, limit_s: float, scale: float) -> int:
    """Return the UTC epoch second at which the timer of a pod fires: spend or time limit plus the guard's margin.

    `begins_at` is the start of billing. `scale` is the speed of the vendor's clock relative to the container's clock, 1
    except in a rehearsal.
    """
    return math.ceil(begins_at + (limit_s + MARGIN_S) / scale)


def start_command(
    ends_at: int, limit_s: float, calls: Sequence[Call], start_script: str = START_SCRIPT, begin: str = ""
) -> str:
    """Return a container's start command as a single line; base64 protects the script from quoting.

    `ends_at` is in UTC epoch seconds of the container's clock; `limit_s` is the underlying limit by the vendor's clock.
    `calls` are the API calls for self-termination, tried in turn. `begin` is a shell script in place of the
    `start_script` of the image.
    """
    timer = timer_script(ends_at, limit_s, calls)
    # The second copy of the timer replaces the first copy without setsid, and starts once after a kill of the first.
    script = (
        f"(setsid sh -c {shlex.quote(timer)} </dev/null >/dev/null 2>&1 || "
        f"sh -c {shlex.quote(timer)} </dev/null >/dev/null 2>&1) &\n{begin or f'exec {shlex.quote(start_script)}'}\n"
    )
    return one_line(script)


def one_line(script: str) -> str:
    """Return a shell script as the single line of a start command."""
    encoded = base64.b64encode(script.encode()).decode()
    return f'sh -c "echo {encoded} | base64 -d > /tmp/.slipway-start; exec sh /tmp/.slipway-start"'


def timer_script(ends_at: int, limit_s: float, calls: Sequence[Call]) -> str:
    """Return the shell script of the timer."""
    lines = "\n".join(f"    {_line(call)}" for call in calls)
    return TIMER.format(
        folder=FOLDER,
        ends_at=ENDS_AT,
        limit=LIMIT,
        alive=ALIVE,
        deadline=ends_at,
        limit_s=format_limit(limit_s),
        look_s=LOOK_S,
        again_s=AGAIN_S,
        ask=ASK,
        calls=lines,
    )


def _line(call: Call) -> str:
    headers = [f"{name}: {value}" for name, value in call.headers.items()]
    return " ".join(["ask", *(_word(part) for part in (call.method, call.url, call.body, *headers))])


def _word(template: str) -> str:
    """Return a shell word with the template's `{NAME}` placeholders as shell variables."""
    parts = _NAME.split(template)  # text, name, text, name, ...
    return "".join(
        f'"${{{part}}}"' if number % 2 else shlex.quote(part) for number, part in enumerate(parts) if part or not number
    )
