"""The dead-man timer of a rented container: a shell script in the container's start command that ends the pod.

In: the deadline that was fixed when the pod was rented, and the vendor's calls by which the pod deletes itself. Out: a
start command that starts the timer in a session of its own and then runs the image's own start script, whose sshd and
keys are needed. The timer works before SSH does and without the guard. The deadline stands in the command, so that a
container that is started again on an empty disk keeps the deadline; a file on the disk may move it. No secret is in
the command: the key is a variable that the vendor gives to the container's first process.
"""

import base64
import math
import re
import shlex
from collections.abc import Sequence

from infra.agent.job import Call
from infra.agent.lifecycle.start_timer import ALIVE, ENDS_AT, FOLDER, LIMIT, MARGIN_S, whole

START_SCRIPT = "/start.sh"  # of RunPod's images: starts sshd with PUBLIC_KEY
LOOK_S = 15  # seconds between two looks at the deadline
AGAIN_S = 60  # seconds between two rounds of calls
CALL_S = 20  # seconds for one call
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
# `curl` reads the request from its stdin, so that no process list shows the key; `wget` cannot. Each prints the status.
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
    """Return when the timer of a pod that begins to bill at `begins_at` is due: at its limit, and the guard's margin.

    `scale`: how much faster than the container's clock the vendor's runs, 1 except in a rehearsal.
    """
    return math.ceil(begins_at + (limit_s + MARGIN_S) / scale)


def start_command(ends_at: int, limit_s: float, calls: Sequence[Call], start_script: str = START_SCRIPT) -> str:
    """Return the start command of a container, in one line of words that no quoting can change.

    `ends_at`: UTC epoch seconds by the container's clock; `limit_s`: the limit that it stands for, by the vendor's
    clock. `calls`: of the pod's self-termination, tried in turn.
    """
    timer = timer_script(ends_at, limit_s, calls)
    # The second one takes the place of the first where there is no setsid, and once where the first is killed.
    script = (
        f"(setsid sh -c {shlex.quote(timer)} </dev/null >/dev/null 2>&1 || "
        f"sh -c {shlex.quote(timer)} </dev/null >/dev/null 2>&1) &\nexec {shlex.quote(start_script)}\n"
    )
    encoded = base64.b64encode(script.encode()).decode()
    return f'sh -c "echo {encoded} | base64 -d > /tmp/.slipway-start; exec sh /tmp/.slipway-start"'


def timer_script(ends_at: int, limit_s: float, calls: Sequence[Call]) -> str:
    """Return the shell script of the timer."""
    lines = "\n".join(f"    {_line(call)}" for call in calls)
    return TIMER.format(
        folder=FOLDER, ends_at=ENDS_AT, limit=LIMIT, alive=ALIVE, deadline=ends_at, limit_s=whole(limit_s),
        look_s=LOOK_S, again_s=AGAIN_S, ask=ASK, calls=lines,
    )  # fmt: skip


def _line(call: Call) -> str:
    headers = [f"{name}: {value}" for name, value in call.headers.items()]
    return " ".join(["ask", *(_word(part) for part in (call.method, call.url, call.body, *headers))])


def _word(template: str) -> str:
    """Return a shell word in which the variables of a template are those of the shell."""
    parts = _NAME.split(template)  # text, name, text, name, ...
    return "".join(
        f'"${{{part}}}"' if number % 2 else shlex.quote(part) for number, part in enumerate(parts) if part or not number
    )
