"""The Debian packages that the tests want: which programs each gives, which are missing here, how they come.

Standard library only: `./inv` asks for one of them before there is an environment.
"""

import glob
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

SBIN = "/usr/sbin:/sbin"  # folders that a user who is not root does not search
VENV = "python3-venv"  # without it Debian's Python makes no environments
PACKAGES = {  # needs of each package: programs, or files by a pattern
    "git": ("git",),
    "openssh-client": ("ssh", "ssh-keygen", "ssh-agent", "ssh-add"),
    "openssh-server": ("sshd",),
    "rsync": ("rsync",),
    "iproute2": ("ip", "tc"),
    "bubblewrap": ("bwrap",),
    "iptables": ("iptables",),
    "curl": ("curl",),
    "procps": ("ps",),
    "e2fsprogs": ("mkfs.ext4",),
    "zsh": ("zsh",),
    "fish": ("fish",),
    "tcsh": ("tcsh",),
    "libfaketime": ("/usr/lib/*/faketime/libfaketime.so.1",),
}


def find(wanted: str) -> str:
    """Return the path of that program or file, "" when it is not here."""
    if "/" in wanted:
        return min(glob.glob(wanted), default="")
    return shutil.which(wanted, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}") or ""


def missing() -> list[str]:
    """Return the packages of which something is not here."""
    return [name for name, gives in PACKAGES.items() if not all(map(find, gives))]


def is_ci() -> bool:
    """Return whether nobody is there to be asked, and nothing may be left out."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def command(packages: Sequence[str]) -> list[str]:
    """Return the command that installs them, as root or by sudo; [] on a system without Debian's tools."""
    if not shutil.which("apt-get"):
        return []
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    return [*sudo, "apt-get", "install", "-y", "--no-install-recommends", *packages]


def is_allowed() -> bool:
    """Return whether this user may install without being asked for a password."""
    if os.geteuid() == 0:
        return bool(command(()))
    if not (command(()) and shutil.which("sudo")):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def install(packages: Sequence[str], say: Callable[[str], None]) -> bool:
    """Fetch what Debian has now, then install; its words go to our stderr. Whether it worked."""
    words = command(packages)
    root = words[: words.index("apt-get")]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    keep = ["--preserve-env=DEBIAN_FRONTEND"] if root else []
    say(f"installing {', '.join(packages)}")
    for line in ([*root, "apt-get", "update", "-qq"], [*root, *keep, *words[len(root) :], "-qq"]):
        if subprocess.run(line, stdin=subprocess.DEVNULL, stdout=2, env=quiet).returncode:
            say(f"failed: {' '.join(line)}")
            return False
    return True
