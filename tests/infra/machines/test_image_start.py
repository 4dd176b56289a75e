"""The start script of a container with an image of the user, under sh with programs that note their words."""

import os
import subprocess
from pathlib import Path

import pytest

from infra.machines.dead_man import one_line
from infra.machines.image_start import IN_REHEARSAL, START_SSHD

pytestmark = pytest.mark.process

NOTES = '#!/bin/sh\necho "{name} $*" >> "$HOME/notes"\n{more}'
MAKES = 'for one in sshd python3 curl; do printf "%s" "{program}" > "$BIN/$one"; chmod 755 "$BIN/$one"; done\n'
SYSTEM = ("sh", "env", "mkdir", "chmod", "printf", "cat", "echo", "base64", "sed")


def container(tmp_path: Path, manager: str, has_sshd: bool = False) -> tuple[dict[str, str], Path]:
    """Return the variables and the home of a container with one package manager, in a folder."""
    folder, home = tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for name in SYSTEM:
        found = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
        (folder / name).symlink_to(found)
    installed = "#!/bin/sh\necho sshd \\$* >> \\$HOME/notes\n"
    programs = {"ssh-keygen": "", manager: MAKES.format(program=installed), "bash": ""}
    for name, more in programs.items():
        (folder / name).write_text(NOTES.format(name=name, more=more))
    if has_sshd:
        for name in ("sshd", "python3", "curl"):
            (folder / name).write_text(NOTES.format(name=name, more=""))
    for one in folder.iterdir():
        if not one.is_symlink():
            one.chmod(0o755)
    environ = {"PATH": str(folder), "BIN": str(folder), "HOME": str(home), "PUBLIC_KEY": "ssh-ed25519 AAAA me"}
    return {**environ, "CUDA_HOME": "/usr/local/cuda", "VIRTUAL_ENV": "two words; ls"}, home


def run(environ: dict[str, str]) -> list[str]:
    there = START_SSHD.replace("/usr/sbin", "/nowhere").replace("/run/sshd", "$HOME/run")
    line = one_line(there.replace("/etc/pam.d/sshd", '"$HOME/pam"'))
    line = line.replace("/tmp/.slipway-start", f"{environ['HOME']}/begin")
    subprocess.run(["/bin/sh", "-c", line], env=environ, check=True, timeout=60)
    notes = Path(environ["HOME"], "notes")
    return notes.read_text().splitlines() if notes.exists() else []


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        ("apt-get", "apt-get install -q -y --no-install-recommends openssh-server python3"),
        ("dnf", "dnf install -y openssh-server python3"),
        ("yum", "yum install -y openssh-server python3"),
        ("zypper", "zypper --non-interactive install openssh python3"),
        ("apk", "apk add --no-cache openssh-server python3"),
    ],
)
def test_missing_programs_are_installed_and_sshd_gets_the_paths_of_the_image(tmp_path, manager, words):
    environ, home = container(tmp_path, manager)
    (home / "pam").write_text("session    required     pam_loginuid.so\nsession required pam_limits.so\n")
    notes = run(environ)
    assert [one for one in notes if one.startswith(words)]
    assert (home / "pam").read_text() == "session    optional     pam_loginuid.so\nsession required pam_limits.so\n"
    test, start = (one for one in notes if one.startswith("sshd "))
    assert test.startswith("sshd -t -D") and start.startswith("sshd -D -e -o PermitRootLogin=prohibit-password")
    assert start.endswith(f"SetEnv=PATH={environ['PATH']} CUDA_HOME=/usr/local/cuda")
    assert (home / ".ssh" / "authorized_keys").read_text() == "ssh-ed25519 AAAA me\n"
    assert (home / ".ssh" / "authorized_keys").stat().st_mode & 0o777 == 0o600


def test_image_with_sshd_and_python_installs_nothing(tmp_path):
    environ, _ = container(tmp_path, "apt-get", has_sshd=True)
    assert not [one for one in run(environ) if one.startswith("apt-get")]


def test_rehearsed_pod_is_left_as_it_is(tmp_path):
    environ, home = container(tmp_path, "apt-get")
    assert run({**environ, IN_REHEARSAL: "1"}) == [] and not (home / ".ssh").exists()


def test_script_is_valid_for_sh():
    subprocess.run(["/bin/sh", "-n", "-c", START_SSHD], check=True, env=os.environ)
