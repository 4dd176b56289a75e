"""Debian packages required by the tests: their programs, detection of missing packages, and installation.

Standard library only: `./inv` checks for the package `VENV` before an environment exists.
"""

import glob
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

SBIN = "/usr/sbin:/sbin"  # folders missing from the PATH of a non-root user
VENV = "python3-venv"  # required by Debian's Python to create environments
PACKAGES = {  # required programs of each package, or a glob of required files
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
NIGHTLY = {  # further packages of `inv test --nightly`
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("sbatch",),
    "munge": ("munged",),
    "chromium": ("chromium",),
    "podman": ("podman",),
    "runc": ("runc",),
    "rclone": ("rclone",),
    "fuse3": ("fusermount3",),
}


def find(wanted: str) -> str:
    """Return the path of a program or of a file matching the glob `wanted`, or "" if missing."""
    if "/" in wanted:
        return min(glob.glob(wanted), default="")
    return shutil.which(wanted, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}") or ""


def missing(is_nightly: bool = False) -> list[str]:
    """Return the packages with at least one missing program or file."""
    packages = {**PACKAGES, **NIGHTLY} if is_nightly else PACKAGES
    return [name for name, gives in packages.items() if not all(map(find, gives))]


def is_ci() -> bool:
    """Return whether the CI variable is set: no prompts are possible, and no test may be skipped."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def command(packages: Sequence[str]) -> list[str]:
    """Return the install command, with sudo for a non-root user; [] on a system without apt-get."""
    if not shutil.which("apt-get"):
        return []
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    return [*sudo, "apt-get", "install", "-y", "--no-install-recommends", *packages]


def is_allowed() -> bool:
    """Return whether this user may install packages without a password prompt; False without apt-get."""
    if os.geteuid() == 0:
        return bool(command(()))
    if not (command(()) and shutil.which("sudo")):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def install(packages: Sequence[str], say: Callable[[str], None]) -> bool:
    """Update the package lists and install the packages; return whether both succeeded.

    The output of apt-get goes to stderr.
    """
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
