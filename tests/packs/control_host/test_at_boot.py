"""The start of a control host's processes after a boot: by the user's systemd, else by cron, else not at all.

The programs are stand-ins that record their input: a test cannot boot the machine.
"""

import subprocess

import pytest

from packs.control_host.control import at_boot
from packs.control_host.control.host_paths import HostPaths

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
    return HostPaths(root)


def have(folder, **programs):
    for name in ("systemctl", "loginctl", "crontab"):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{programs.get(name, NO)}\n")
        path.chmod(0o755)


def test_user_systemd_starts_the_processes_also_without_a_login(places, tmp_path):
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


# Otherwise the user may not linger, and the service ends with the session.
@pytest.mark.parametrize("programs", [{}, {"systemctl": SYSTEMCTL}])
def test_cron_starts_the_processes_without_systemd_and_keeps_foreign_lines(places, tmp_path, programs):
    have(tmp_path, crontab=CRONTAB, **programs)
    (tmp_path / "cron").write_text("5 4 * * * somebody else's\n")
    assert at_boot.arm(places) == at_boot.arm(places) == "cron"
    theirs, ours = (tmp_path / "cron").read_text().splitlines()
    assert theirs == "5 4 * * * somebody else's" and ours.startswith(f"@reboot '{places.start}' #")
    at_boot.disarm(places)
    assert (tmp_path / "cron").read_text() == "5 4 * * * somebody else's\n"


def test_processes_are_not_started_without_systemd_and_cron(places, tmp_path):
    have(tmp_path)
    assert at_boot.arm(places) == "whoever connects"
    at_boot.disarm(places)
    assert not places.start.exists()
