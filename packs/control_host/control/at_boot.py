"""Boot service of a control host: a systemd user service, else cron's @reboot.

Without systemd and cron, the next connecting laptop starts the checks
(`packs.control_host.control.host_side.prepare_checkout`).
"""

import os
import shlex
import subprocess
from pathlib import Path

from infra.transport.protocol import ThisMachine
from packs.control_host.control.host_paths import BOOT_LINE, CRON, NOBODY, SYSTEMD, HostPaths
from packs.control_host.control.settings import HERE

UNIT = "slipway-control.service"
ANSWER_S = 30.0
# Keepers and controllers start from the service and outlive the service.
UNIT_TEXT = """\
[Unit]
Description=Slipway: start again what must go on
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=process
ExecStart="{start}"

[Install]
WantedBy=default.target
"""
START_TEXT = """\
#!/bin/sh
# Starts again what must go on; written by: inv control.up
{exports}
cd {code} && exec {python} -m packs.control_host.agent.begin invoke --search-root . control.start >> {log} 2>&1
"""


def arm(places: HostPaths) -> str:
    """Register `places.start` to run at every boot; return the name of the service."""
    exports = [f"export SLIPWAY_CONTROL={HERE}"]
    if found := os.environ.get("SLIPWAY_ENVIRONMENTS"):
        exports.append(f"export SLIPWAY_ENVIRONMENTS={shlex.quote(found)}")
    text = START_TEXT.format(
        exports="\n".join(exports),
        code=shlex.quote(f"{places.current}/code"),
        log=shlex.quote(str(places.log)),
        python=shlex.quote(ThisMachine.python),
    )
    places.start.write_text(text)
    places.start.chmod(0o700)
    return SYSTEMD if _arm_systemd(places) else CRON if _arm_cron(places) else NOBODY


def disarm(places: HostPaths) -> None:
    """Remove the boot entry and the start script."""
    places.start.unlink(missing_ok=True)
    if _unit().exists():
        _said("systemctl", "--user", "disable", UNIT)
        _unit().unlink()
    table = _said("crontab", "-l")
    if table and BOOT_LINE in table:
        _write_cron([line for line in table.splitlines() if BOOT_LINE not in line])


def _arm_systemd(places: HostPaths) -> bool:
    """Return whether the user's systemd runs the start script at boot, even without a login session."""
    if _said("systemctl", "--user", "show-environment") is None or _said("loginctl", "enable-linger") is None:
        return False
    _unit().parent.mkdir(parents=True, exist_ok=True)
    _unit().write_text(UNIT_TEXT.format(start=places.start))
    return (
        _said("systemctl", "--user", "daemon-reload") is not None
        and _said("systemctl", "--user", "enable", UNIT) is not None
    )


def _arm_cron(places: HostPaths) -> bool:
    table = _said("crontab", "-l", none="no crontab")
    if table is None:
        return False
    others = [line for line in table.splitlines() if BOOT_LINE not in line]
    return _write_cron([*others, f"@reboot {shlex.quote(str(places.start))} {BOOT_LINE}"])


def _write_cron(lines: list[str]) -> bool:
    return _said("crontab", "-", stdin="".join(f"{line}\n" for line in lines)) is not None


def _unit() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / UNIT


def _said(*words: str, stdin: str = "", none: str = "") -> str | None:
    """Return the stdout of a program, or None if the program is missing, fails or times out.

    With a failing program, `none` is the text on stderr that means an empty result, returned as "".
    """
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if none and done.returncode and none in done.stderr:
        return ""
    return done.stdout if done.returncode == 0 else None
