"""Inventory of the user's own machines: SkyPilot's `ssh_node_pools.yaml` with additional keys.

    hetzner:
      user: root                        # for every host of the pool, unless the host says otherwise
      identity_file: ~/.ssh/id_ed25519
      usd_per_hour: 0.35                # ours, as are port, gpu, num_gpus, memory, gpu_memory, labels, python
      hosts:
        - 5.6.7.8                       # an address, or an alias of ~/.ssh/config
        - ip: 5.6.7.9
          gpu: RTX 6000 Ada

`load` reads the file into a Host per machine. An alias of the user's ssh config brings the alias's user and key and
overrides the pool's, as in SkyPilot. An invalid entry becomes an error with file, pool and host, and leaves all other
entries usable.
"""

import contextlib
import difflib
import getpass
import logging
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.names import check_name
from infra.records import Address
from infra.transport import ssh_include
from infra.transport.private_keys import why_ignored
from store import packs

OURS = ("port", "gpu", "num_gpus", "memory", "gpu_memory", "usd_per_hour", "labels", "python")
POOL_KEYS = ("hosts", "user", "identity_file", "password", *OURS)
HOST_KEYS = ("ip", "user", "identity_file", "password", *OURS)
WORDS = ("user",)  # text, even if YAML reads 0042 as a number
NO_PASSWORDS = "passwords are not supported: set identity_file to a private key, and remove password"
MOST_QUESTIONS = 32  # processes of ssh at a time
LOAD_S = 30.0  # seconds for the questions about all machines
KEY_NAMES = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")
HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,254}|[0-9A-Fa-f.]{0,4}:[0-9A-Fa-f:.]{1,44}%[A-Za-z0-9._-]{1,64}")
_told: set[str] = set()
_LOGIN = (
    r"(?!-)[^\s\x00-\x1f\x7f'\"`;&<>|(){}]{1,255}(?<!\\)"  # as ssh, which gives the name to shells of other programs
)
_USER = re.compile(_LOGIN)
_REACH = re.compile(
    rf"(?:(?P<user>{_LOGIN})@)?"
    r"(?:(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,254})|\[(?P<ipv6>[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,64})?)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(GB|GiB)?")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of the inventory. None: not in the file; observed facts apply instead."""

    pool: str
    name: str  # name in the file, with the port of the file unless 22
    address: Address
    gpu: str = ""
    num_gpus: int | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None  # memory of each GPU
    micro_usd_per_hour: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    python: str = "python3"
    token: str = ""  # token of the rented pod on this machine; the pod's own marker occupies none of the GPUs

    @property
    def place(self) -> str:
        """Return `pool/host`, the machine's name in leases, offers and the memory of hosts."""
        return f"{self.pool}/{self.name}"

    @property
    def without_port(self) -> str:
        return self.name.removesuffix(f":{self.address.port}")


@dataclass(frozen=True)
class InvalidEntry:
    """An inventory entry with an error."""

    pool: str
    name: str  # host name, if known; "" = a whole pool or cluster
    why: str  # with file, pool and host

    @property
    def place(self) -> str:
        return f"{self.pool}/{self.name}" if self.name else self.pool

    def matches(self, word: str) -> bool:
        """Return whether `word` names this entry, or may name a host of this pool."""
        pool, _, _ = word.partition("/")
        return word in (self.place, self.name) or (not self.name and pool == self.pool)


@dataclass(frozen=True)
class OwnMachines:
    """The machines of an inventory file, in file order, and the entries with errors."""

    hosts: tuple[Host, ...] = ()
    unusable: tuple[InvalidEntry, ...] = ()

    def find(self, word: str) -> Host:
        """Return the machine called `pool/host` or `host`, without the port if unambiguous. Raises UsageError."""
        found = [host for host in self.hosts if word in (host.place, host.name)]
        if not found:
            found = [host for host in self.hosts if word in (host.without_port, f"{host.pool}/{host.without_port}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{word!r} names several machines: {', '.join(host.place for host in found)}")
        refuse_unusable(self.unusable, word)
        places = [host.place for host in self.hosts]
        near = difflib.get_close_matches(word, [*places, *(host.name for host in self.hosts)], 3) or places[:10]
        raise UsageError(f"machine {word!r} not found; available: {', '.join(near) or 'none'}")

    def select(self, word: str) -> tuple[Host, ...]:
        """Return the machines of a pool, or a single machine; all machines for "". Raises UsageError."""
        pools = sorted({host.pool for host in self.hosts})
        if not word or word in pools:
            return tuple(host for host in self.hosts if word in ("", host.pool))
        refuse_unusable(self.unusable, word)
        try:
            return (self.find(word),)
        except UsageError as error:
            raise UsageError(f"{error}; pools: {', '.join(pools)}") from None

    def select_unusable(self, word: str) -> tuple[InvalidEntry, ...]:
        """Return the entries with errors in the pool or with the name `word`; all such entries for ""."""
        return tuple(one for one in self.unusable if word in ("", one.pool, one.place, one.name))


def refuse_unusable(unusable: Sequence[InvalidEntry], word: str) -> None:
    """Raise UsageError with the reason if `word` names an entry with an error."""
    for one in unusable:
        if one.matches(word) or word == one.pool:
            raise UsageError(one.why)


def tell_unusable(unusable: Sequence[InvalidEntry]) -> None:
    """Log a warning for each entry with an error, once per process."""
    for one in unusable:
        _warn(f"{one.why}; this entry is ignored")


def _warn(text: str) -> None:
    """Log a warning once per process."""
    if text not in _told:
        _told.add(text)
        logging.getLogger(__name__).warning("%s", text)


def load(path: Path, home: Path | None = None, word: str = "") -> OwnMachines:
    """Load an inventory file; `home` is the parent of `.ssh`. `word`: leave out machines that the word does not name.

    ssh is asked about each machine, which may take seconds. Raises UsageError for a missing file and for a file without
    pools.
    """
    from infra import strict_yaml
    from infra.machines.host_memory import map_parallel

    try:
        document = strict_yaml.read(path, WORDS)
    except FileNotFoundError:
        raise UsageError(
            f"inventory {path} does not exist; copy ssh_node_pools.yaml.example to this path, or run: inv pool.import"
        ) from None
    except UsageError:
        document = packs.load("infra.machines.tolerant_yaml:read")(path, WORDS)
    if not isinstance(document, dict) or not document:
        raise UsageError(f"{path}: expected `POOL:` with `hosts:` below")
    ssh = (home or Path.home()) / ".ssh"
    known = set(ssh_include.aliases(ssh / "config"))
    wanted: list[tuple[Any, Any]] = []
    wrong: dict[Any, str] = {}
    for pool, body in document.items():
        try:
            wanted += [(pool, entry) for entry in _entries(path, pool, body) if _may_name(word, pool, entry)]
        except UsageError as error:
            wrong[pool] = str(error)
            wanted.append((pool, None))
    turns = threading.Semaphore(MOST_QUESTIONS)

    def answer(one: tuple[Any, Any]) -> Host | None:
        pool, entry = one
        if pool in wrong:
            return None
        if not turns.acquire(timeout=LOAD_S):
            raise SlipwayError(f"no answer in {LOAD_S:g} s")
        try:
            return _host(f"{path}: pool {pool}", pool, document[pool], entry, ssh, known)
        finally:
            turns.release()

    hosts: dict[str, Host] = {}
    unusable: list[InvalidEntry] = []
    for (pool, entry), found in zip(wanted, map_parallel(answer, wanted, LOAD_S), strict=True):
        name, where = _name_of(entry), f"{path}: pool {pool}, host {_name_of(entry)}"
        if found is None:
            unusable.append(InvalidEntry(str(pool), "", wrong[pool]))
        elif isinstance(found, SlipwayError):
            why = str(found) if isinstance(found, UsageError) else f"{where}: ssh -G: {found}"
            unusable.append(InvalidEntry(pool, name, why))
        elif found.place in hosts:
            why = f"{where}: this machine is listed twice; the first entry counts"
            unusable.append(InvalidEntry(pool, name, why))
        else:
            hosts[found.place] = found
    return OwnMachines(tuple(hosts.values()), tuple(unusable))


def reach(word: str, pools: Path, home: Path | None = None) -> Host:
    """Return the machine for a word: a name in the inventory, an alias of the ssh config, or [user@]host[:port].

    Write IPv6 addresses in brackets: [2001:db8::7]:22. Raises UsageError.
    """
    with contextlib.suppress(UsageError):  # no inventory, or no such machine in the inventory
        return load(pools, home, word).find(word)
    found = _REACH.fullmatch(word)
    if found is None:
        raise UsageError(f"{word!r} is not a machine; expected an alias of ~/.ssh/config, or [user@]host[:port]")
    user, port, host = found["user"], found["port"], found["host"] or found["ipv6"]
    ssh = (home or Path.home()) / ".ssh"
    said = {"ip": host, "user": user, "port": int(port) if port else None}
    try:
        address = address_of(said, ssh, set(ssh_include.aliases(ssh / "config")), is_typed=True)
    except UsageError as error:
        raise UsageError(f"{word}: {error}") from None
    return Host(pool="", name=word, address=address)


def _entries(path: Path, pool: Any, body: Any) -> list[Any]:
    """Return the entries of a pool. Raises UsageError if the whole pool is unusable."""
    where = f"{path}: pool {pool}"
    if not isinstance(pool, str):
        raise UsageError(f"{where}: the name must be text; put the name in quotes")
    try:
        check_name(pool)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    check_keys(where, body, POOL_KEYS)
    entries = body.get("hosts")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{where}: `hosts` must be a list of at least one machine")
    if body.get("password") is not None:
        raise UsageError(f"{where}: {NO_PASSWORDS}")
    return entries


def _name_of(entry: Any) -> str:
    """Return the printable name of an unusable entry, or "?"."""
    name = entry.get("ip") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) and name.isprintable() else "?"


def _may_name(word: str, pool: str, entry: Any) -> bool:
    """Return whether a word may name an entry, with or without the port and the pool."""
    name = _name_of(entry)
    return word in ("", pool) or name == "?" or word.startswith((name, f"{pool}/{name}"))


def _host(where: str, pool: str, defaults: Mapping[str, Any], entry: Any, ssh: Path, known: Collection[str]) -> Host:
    own = {"ip": entry} if isinstance(entry, str) else entry
    name = "?" if isinstance(own, UsageError) else own.get("ip", "?") if isinstance(own, dict) else own
    where = f"{where}, host {name}"
    check_keys(where, own, HOST_KEYS)
    parts = parts_of(own.get("ip"), "ip")
    if not isinstance(own.get("ip"), str) or not HOST.fullmatch(own["ip"]) or parts:
        advice = f"; write: - {{{parts}}}" if parts else ""
        raise UsageError(f"{where}: `ip` must be an address, or an alias of the ssh config, as text{advice}")
    said = {**{key: defaults[key] for key in defaults if key != "hosts"}, **own}
    if said.get("password") is not None:
        raise UsageError(f"{where}: {NO_PASSWORDS}")
    try:
        address = address_of(said, ssh, known)
        num_gpus = whole_of(said, "num_gpus", 0, 1024)
        gpu = text_of(said, "gpu")
        host = Host(
            pool=pool,
            name=said["ip"] if said.get("port") in (None, 22) else f"{said['ip']}:{address.port}",
            address=address,
            gpu=gpu,
            num_gpus=1 if gpu and num_gpus is None else num_gpus,
            memory_bytes=_size(said, "memory"),
            gpu_memory_bytes=_size(said, "gpu_memory"),
            micro_usd_per_hour=price_of(said.get("usd_per_hour")),
            labels=_labels(said.get("labels")),
            python=text_of(said, "python") or "python3",
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return host


def parts_of(text: Any, key: str) -> str:
    """Return what to write in place of `user@host:port`, with the host under `key`; "" for a text without parts."""
    found = _REACH.fullmatch(text) if isinstance(text, str) else None
    if not found or found["host"] == text:
        return ""
    parts = {key: found["host"] or found["ipv6"], "user": found["user"], "port": found["port"]}
    return ", ".join(f"{name}: {one}" for name, one in parts.items() if one)


def address_of(said: Mapping[str, Any], ssh: Path, known: Collection[str], is_typed: bool = False) -> Address:
    """Return the address for an inventory entry: from the ssh config for an alias, else from the entry.

    A port in the entry overrides both sources; so does a user that a command line names (`is_typed`).
    """
    port, config, more = whole_of(said, "port", 1, 65535), ssh / "config", dict[str, Any]()
    host, user, named = said["ip"], text_of(said, "user"), text_of(said, "identity_file")
    is_alias = host in known
    keys = [Path(os.path.expanduser(named))] if named else []
    _check_place(user or "user", host)
    found = None
    if is_alias or ssh_include.can_ask():
        try:
            found = ssh_include.resolve(host, config, port, "" if is_alias and not is_typed else user)
        except ssh_include.NoConfiguration as error:
            if is_alias:
                raise
            _warn(f"ssh rejects {config}: {error.reason}; addresses are used as written, and aliases cannot be used")
    if found:
        host, user, port = found.host, found.user, found.port
        more = {"proxy": found.proxy, "certificates": found.certificates, "agent": found.agent}
        keys = keys if named and not is_alias else [*found.keys, *keys]
    else:
        user, port = user or getpass.getuser(), port or 22
    fallback = [] if named else [ssh / name for name in KEY_NAMES]
    there = _existing(keys) or _existing(fallback)
    if not there:
        raise UsageError(
            f"private key not found: {' or '.join(dict.fromkeys(map(str, keys or fallback)))}; set identity_file in "
            "the inventory, or IdentityFile in ~/.ssh/config; for a key that only an ssh-agent holds, to a file with "
            "the public key, which this command prints: ssh-add -L"
        )
    if all(map(why_ignored, there)):
        raise UsageError(why_ignored(there[0]))
    _check_place(user, host)
    key, *more_keys = [str(one.absolute()) for one in there]
    return Address(user=user, host=host, port=port, key=key, folder="/", more_keys=tuple(more_keys), **more)


def _existing(keys: Sequence[Path]) -> list[Path]:
    """Return the files of keys; the public key in place of a private key that only an ssh-agent holds."""
    files = [next(filter(os.path.isfile, (one, Path(f"{one}.pub"))), None) for one in keys]
    return list(dict.fromkeys(one for one in files if one is not None))


def _check_place(user: str, host: str) -> None:
    """Raise UsageError for a user or host with a meaning to a shell or to ssh."""
    if not _USER.fullmatch(user) or not user.isprintable() or not HOST.fullmatch(host):
        raise UsageError(f"{user!r} at {host!r} is not a valid user and address")


def check_keys(where: str, body: Any, known: Sequence[str]) -> None:
    """Raise UsageError for a non-mapping and for unknown keys."""
    if isinstance(body, UsageError):  # of `tolerant_yaml`
        raise UsageError(f"{where}: {body}")
    if not isinstance(body, dict):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    for key in body:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"{where}: unknown key {key!r}; {hint}")


def text_of(said: Mapping[str, Any], key: str) -> str:
    """Return the text under a key, or "" without the key. Raises UsageError."""
    value = said.get(key)
    if value is not None and (not isinstance(value, str) or not value.isprintable()):
        raise UsageError(f"{key} is {value!r}; expected text")
    return value or ""


def whole_of(said: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
    """Return the integer under a key, or None without the key. Raises UsageError outside of `least`..`most`."""
    value = said.get(key)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise UsageError(f"{key} is {value!r}; expected a whole number from {least} to {most}")
    return value


def _size(said: Mapping[str, Any], key: str) -> int | None:
    """Return the bytes of `64`, `64GB` or `60GiB`, or None without the key."""
    value = said.get(key)
    if value is None:
        return None
    found = _SIZE.fullmatch(str(value)) if type(value) in (int, float, str) else None
    if not found or not Decimal(found[1]):
        raise UsageError(f"{key} is {value!r}; expected GB, such as 64, 64GB or 60GiB")
    return int(Decimal(found[1]) * (1 << 30 if found[2] == "GiB" else 10**9))


def price_of(value: Any) -> int:
    """Return a price in micro-USD; None counts as 0. Raises UsageError outside of 0 to 10,000 USD."""
    amount = Decimal(str(value or 0)) if value is None or type(value) in (int, float) else Decimal("nan")
    if not amount.is_finite() or not 0 <= amount <= 10_000:
        raise UsageError(f"usd_per_hour is {value!r}; expected a number from 0 to 10000")
    return int(amount * 1_000_000)


def _labels(value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or any(isinstance(one, (dict, list)) for one in value.values()):
        raise UsageError("labels must be lines of the form `name: word`")
    return {str(name): str(word) for name, word in value.items()}
