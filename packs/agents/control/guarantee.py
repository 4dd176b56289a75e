"""Guarantee of an allowance: the keys of the owner are out of reach for a shell of the agent, or only for the tools.

Allowance, files of the owner -> `Guarantee`: holds or not, and each file that the user of the agent can read
"""

import contextlib
import grp
import itertools
import os
import pwd
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.checkout import ROOT
from infra.providers.pod_keys import PodKeys
from infra.settings import Settings
from packs.agents.control.place import folder
from packs.agents.records.allowance import Allowance
from store import packs

KEYS = (
    *(".env", ".netrc", ".aws/credentials", ".aws/config", ".ssh"),
    *(".cache/huggingface/token", ".config/gcloud", ".config/slipway"),
)
ROOT_LIKE = ("docker", "sudo", "wheel", "lxd", "disk", "adm")  # groups that can read files of other users
KEY_FILES = (  # variables that name files or folders with keys
    *("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
    *("HF_TOKEN_PATH", "NETRC"),
)
NO_CODE = ("var",)  # folders of the checkout without code
HIDDEN_CODE = (".venv", ".ci")  # the Python of `inv`, and hooks of git
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
    secret = [ROOT / ".env", ROOT / "credentials" / ".env", settings.state_file]
    # A folder that lists no names still lets a user read a file by a guessed name.
    secret += [path for top in keys(settings) for path in (top, *below(top))]
    secret += [PodKeys.for_journal(settings.state_file).folder]
    secret += [path for path in folder(settings).glob("*") if path.suffix != ".socket"]
    for path in dict.fromkeys(secret):
        if may(path, uid, gids, stat.S_IROTH):
            yield f"{path} can be read; run: chmod go-rwx {path}"
    for top, paths in code(ROOT, settings.environments):
        is_closed = os.path.isdir(top) and not may(top, uid, gids, stat.S_IXOTH)
        if found := next((path for path in paths if not is_closed and may(path, uid, gids, stat.S_IWOTH)), None):
            yield f"{found} can be changed; run: chmod -R go-w {top}"


def keys(settings: Settings) -> Iterator[Path]:
    """Yield the usual files and folders with keys, and those that settings and the environment name."""
    yield from (Path.home() / name for name in KEYS)
    named = [settings.google_credentials, *(os.environ.get(name, "") for name in KEY_FILES)]
    named += [f"{home}/token"] if (home := os.environ.get("HF_HOME")) else []
    yield from (Path(one).expanduser() for one in named if one and not one.lstrip().startswith("{"))


def code(root: Path, environments: Path) -> Iterator[tuple[Path, Iterable[Path]]]:
    """Yield each part of the code that runs with keys, with its files and folders."""
    yield root, [root]
    yield root / ".git", [path for name in GIT if (path := root / ".git" / name).exists()]
    tops = {one for one in root.iterdir() if one.name in HIDDEN_CODE or one.name[0] != "." and one.name not in NO_CODE}
    made = {environments.resolve()}  # perhaps on another disk, behind a link
    made |= {Path(sys.prefix).resolve()} if sys.prefix != sys.base_prefix else set()  # of `inv` and of the broker
    for top in sorted(tops | made):
        if not top.is_symlink():
            yield top, itertools.chain([top], below(top))


def below(top: Path) -> Iterator[Path]:
    """Yield all files and folders in a folder, without links; nothing for a file, or where the owner may not look."""
    for here, folders, names in os.walk(top):
        yield from (path for name in sorted((*folders, *names)) if not (path := Path(here, name)).is_symlink())


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
    """Return whether a user has a right, or may have the right on a path that the owner cannot examine."""
    try:
        seen = path.stat()
    except PermissionError:
        return True  # a folder above is closed for the owner; `may` asks whether the user can enter the folder
    except OSError:
        return False  # the file does not exist, or was removed meanwhile
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid in gids else 0
    return bool(seen.st_mode & (right << shift))
