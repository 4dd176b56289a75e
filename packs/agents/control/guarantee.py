"""Guarantee of an allowance: the keys of the owner are out of reach for a shell of the agent, or only for the tools.

Allowance, files of the owner -> `Guarantee`: holds or not, and each file that the user of the agent can read
"""

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.checkout import ROOT
from infra.providers.pod_keys import PodKeys
from infra.settings import Settings
from packs.agents.control.place import folder
from packs.agents.records.allowance import Allowance
from store import packs

KEYS = (".env", ".netrc", ".aws/credentials", ".ssh", ".cache/huggingface/token", ".config/gcloud", ".config/slipway")
ROOT_LIKE = ("docker", "sudo", "wheel", "lxd", "disk", "adm")  # groups that can read files of other users
NO_CODE = ("var",)  # folders of the checkout without code
GIT = ("", "config", "hooks")  # git runs the commands in these files


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Reach of a shell of the agent into files of the owner."""

    about: str
    leaks: tuple[str, ...] = ()
    """Files of the owner that the user of the agent can read or change."""


def of(one: Allowance, settings: Settings) -> Guarantee:
    """Return the guarantee of an allowance on this machine."""
    host = next((name for kind in packs.always_on_machines() if (name := kind.this_machine_name(settings))), "")
    if not one.user and host:
        return Guarantee(
            about=f"broker and keys are on {host}, and a shell that can log in to {host} by SSH can read the keys: an "
            "agent that runs as your user on the laptop is bounded by the tools only. For a stronger guarantee, run "
            "the agent as a user without your SSH keys, or in a container, and run for that agent, as yourself: inv "
            f"mcp --allowance {one.name} --port 8123"
        )
    if not one.user:
        return Guarantee(
            about="the agent runs as your user: a shell of the agent can read your keys, and only the tools are "
            "bounded. For a stronger guarantee: --user NAME (Linux)"
        )
    user = pwd.getpwnam(one.user)
    gids = {user.pw_gid, *os.getgrouplist(one.user, user.pw_gid)}
    leaks = [*reachable(user.pw_uid, gids, settings)]
    if user.pw_uid == 0:
        leaks.append("the user is root, who reads every file")
    leaks += root_like(gids)
    if leaks:
        return Guarantee(
            about=f"the user {one.user} can reach files of yours; until they are closed:", leaks=tuple(leaks)
        )
    return Guarantee(about=f"the user {one.user} can read none of your keys, and reach the broker only by its socket")


def reachable(uid: int, gids: set[int], settings: Settings) -> Iterator[str]:
    """Yield the files with keys, and the folders of code that runs with keys, that a user can read or change."""
    home = Path.home()
    secret = [ROOT / ".env", ROOT / "credentials" / ".env", settings.state_file, *(home / name for name in KEYS)]
    # A folder that lists no names still lets a user read a file by a guessed name.
    secret += [path for name in KEYS if (home / name).is_dir() for path in sorted((home / name).rglob("*"))]
    secret += [
        Path(one).expanduser() for one in [settings.google_credentials] if one and not one.lstrip().startswith("{")
    ]
    secret += [PodKeys.for_journal(settings.state_file).folder]
    secret += [path for path in folder(settings).glob("*") if path.suffix != ".socket"]
    for path in secret:
        if path.exists() and may(path, uid, gids, stat.S_IROTH):
            yield f"{path} can be read; run: chmod go-rwx {path}"
    for paths in code(ROOT):
        if found := next((path for path in paths if may(path, uid, gids, stat.S_IWOTH)), None):
            yield f"{found} can be changed; run: chmod -R go-w {paths[0]}"


def code(root: Path) -> Iterator[list[Path]]:
    """Yield the checkout, then each part with its files and folders: the code runs with keys."""
    yield [root]
    yield [path for name in GIT if (path := root / ".git" / name).exists()]
    for top in sorted(root.iterdir()):
        if not (top.is_symlink() or top.name in NO_CODE or top.name.startswith(".")):
            yield [top, *(path for path in sorted(top.rglob("*")) if path.exists() and not path.is_symlink())]


def root_like(gids: set[int]) -> Iterator[str]:
    """Yield the groups that give a user the rights of other users."""
    for name in ROOT_LIKE:
        with contextlib.suppress(KeyError):
            if grp.getgrnam(name).gr_gid in gids:
                yield f"the user is in the group {name}, which can read files of yours; run: gpasswd -d USER {name}"


def may(path: Path, uid: int, gids: set[int], right: int) -> bool:
    """Return whether a user has a right (S_IROTH, S_IWOTH) on a path, and may enter all folders above."""
    return _has(path, uid, gids, right) and all(_has(one, uid, gids, stat.S_IXOTH) for one in path.resolve().parents)


def _has(path: Path, uid: int, gids: set[int], right: int) -> bool:
    seen = path.stat()
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid in gids else 0
    return bool(seen.st_mode & (right << shift))
