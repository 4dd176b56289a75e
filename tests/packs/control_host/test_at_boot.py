"""The start of a control host's work after a boot: the user's systemd where it answers, else cron, else nobody.

The programs are stand-ins that keep what they are told: a boot cannot be had here.
"""

import subprocess

import pytest

from packs.control_host.control import at_boot
from packs.control_host.control.places import HostPlaces

pytestmark = pytest.mark.process

SYSTEMCTL = 'echo "systemctl $*" >> "$HOME/calls"'
LOGINCTL = 'echo "loginctl $*" >> "$HOME/calls"'
CRONTAB = """[ "$1" = -l ] || exec cat > "$HOME/cron"
cat "$HOME/cron" 2>/dev/null || { echo "no crontab for you" >&2; exit 1; }"""
NO = "echo 'Failed to connect to bus' >&2; exit 1"


@pytest.fixture
def places(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    root = tmp_path / "with space" / "control"
    root.mkdir(parents=True)
    for name, value in (("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin"), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return HostPlaces(root)


def have(folder, **programs):
    for name in ("systemctl", "loginctl", "crontab"):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{programs.get(name, NO)}\n")
        path.chmod(0o755)


def test_the_users_systemd_starts_it_also_while_nobody_is_logged_in(places, tmp_path):
    have(tmp_path, systemctl=SYSTEMCTL, loginctl=LOGINCTL, crontab=CRONTAB)
    assert at_boot.arm(places) == at_boot.arm(places) == "systemd"
    unit = tmp_path / ".config" / "systemd" / "user" / at_boot.UNIT
    assert f'ExecStart="{places.start}"\n' in unit.read_text() and "WantedBy=default.target" in unit.read_text()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:4] == [
        "systemctl --user show-environment",
        "loginctl enable-linger",
        "systemctl --user daemon-reload",
        f"systemctl --user enable {at_boot.UNIT}",
    ]
    assert places.start.stat().st_mode & 0o777 == 0o700 and not (tmp_path / "cron").exists()
    assert subprocess.run(["sh", "-n", places.start]).returncode == 0
    at_boot.disarm(places)
    assert not unit.exists() and not places.start.exists()
    assert (tmp_path / "calls").read_text().endswith(f"systemctl --user disable {at_boot.UNIT}\n")


@pytest.mark.parametrize("programs", [{}, {"systemctl": SYSTEMCTL}])  # the other: it may not linger, and ends with us
def test_cron_starts_it_where_no_systemd_would_beside_the_lines_of_others(places, tmp_path, programs):
    have(tmp_path, crontab=CRONTAB, **programs)
    (tmp_path / "cron").write_text("5 4 * * * somebody else's\n")
    assert at_boot.arm(places) == at_boot.arm(places) == "cron"
    theirs, ours = (tmp_path / "cron").read_text().splitlines()
    assert theirs == "5 4 * * * somebody else's" and ours.startswith(f"@reboot '{places.start}' #")
    at_boot.disarm(places)
    assert (tmp_path / "cron").read_text() == "5 4 * * * somebody else's\n"


def test_nobody_starts_it_where_there_is_neither(places, tmp_path):
    have(tmp_path)
    assert at_boot.arm(places) == "whoever connects"
    at_boot.disarm(places)
    assert not places.start.exists()
