"""Settings of Slipway: for each the environment variable, default and description, and the source of the current value.

Precedence, highest first: flag, overlay of a rehearsal, `-e KEY=V`, shell, `.env`, `slipway.yaml`, default.
"""

import difflib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar, get_type_hints

from infra.agent.environments import cache_folder
from infra.errors import UsageError
from infra.journal_file import default_path
from store import extensions, packs

OVERLAY = "overlay.json"
POOLS = "ssh_node_pools.yaml"
NAMED_SOURCES = ("pydocs", "fineweb")
WEIGHTED = re.compile(r"[^,]+=[\d.]+(,[^,]+=[\d.]+)+")  # weighted sources, which are mixed
MARKET = "market"  # provider name for all vendors with a key
HELD = "held"  # provider name for held pods: rented pods that stay, each shared by several runs
LEAST_KEY = 16  # characters: no vendor's key is shorter
VENDORS = {"runpod": "runpod_api_key", "lium": "lium_api_key", "shadeform": "shadeform_api_key"}
LOCAL = "local"  # provider name for this machine
NO_KEY = "default: no vendor key is set"  # source of the provider if the work runs on this machine for want of a key
OWN_MACHINES = (LOCAL, "ssh")


# Variables that programs read straight from the environment; `lend_environment` sets the ones of `.env` and `-e`.
ENVIRONMENT = {
    "HF_ENDPOINT": "Hugging Face: address of a different hub",
    "AWS_ENDPOINT_URL": "S3: address of a service other than AWS",
    "AWS_ENDPOINT_URL_S3": "S3: the same, for S3 alone",
    "AWS_REGION": "S3: region of the bucket",
    "AWS_DEFAULT_REGION": "S3: region of the bucket without AWS_REGION",
    "STORAGE_EMULATOR_HOST": "gs://: address of a service other than Google",
    "GOOGLE_CLOUD_PROJECT": "gs://: project for the buckets of inv ckpt.init",
    "SLIPWAY_ENDPOINT_KEY": "inv chat --endpoint and inv serve.bench: the API key of the service",
}
SHELL_ONLY = {  # variables of a guard and of a trainer, which read them from the environment on the pod
    "SLIPWAY_GRACE_S": "seconds between a step's SIGTERM and its SIGKILL; 60",
    "SLIPWAY_NODE_SILENT_S": "seconds of silence of a node after which a round of training ends; 10",
    "SLIPWAY_NODE_RETURN_S": "seconds of silence after which a run restarts without the node; 60",
    "SLIPWAY_GROUP_TIMEOUT_S": "time limit of exchanges between training processes; 600 in the first step, then 100",
}


class SettingsWarning(UserWarning):
    """A settings file is odd but usable. Issued once per process and message."""


HOOK = "SLIPWAY_HOOK_"  # prefix of a hook's variable
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|^SLIPWAY_HOOK_")
_warned: set[str] = set()  # a change of warning filters clears Python's own record


def row(variable: str, about: str, default: str = "", secret: bool = False) -> Any:
    return field(repr=not secret, metadata={"variable": variable, "about": about, "default": default, "secret": secret})


@dataclass(frozen=True)
class ShownSetting:
    """A line of `inv config`. A secret is shown as "set" or "not set"."""

    name: str
    variable: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """Base class of a pack's settings: a field per setting, as in `Settings`. `sources`: the source of each value."""

    sources: Mapping[str, str] = field(repr=False, default_factory=dict)


PackRecord = TypeVar("PackRecord", bound=PackSettings)


@dataclass(frozen=True)
class SettingLayers:
    """All sources of settings, by precedence. An instance without arguments yields the defaults."""

    root: Path = Path()
    typed: Mapping[str, str] = field(default_factory=dict)
    """Flags, by setting name."""
    by_variable: Sequence[tuple[str, Mapping[str, str]]] = ()
    """`-e`, the shell and .env: name and variables of each."""
    written: Mapping[str, str] = field(default_factory=dict)
    """slipway.yaml, by setting name."""
    environ: Mapping[str, str] = field(default_factory=dict)

    def read(self, record: type) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values and sources of a settings record, both by field name. Raises UsageError."""
        hints = get_type_hints(record)
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for one in table(record):
            variable = one.metadata["variable"]
            found = [("--" + one.name.replace("_", "-"), self.typed.get(one.name, ""))]
            found += [(where, layer.get(variable) or "") for where, layer in self.by_variable]
            default = _default(one, self.environ, self.root)
            found += [("slipway.yaml", self.written.get(one.name, "")), ("default", default)]
            source, text = next(((where, text) for where, text in found if text), ("default", ""))
            base = self.root if source in (".env", "slipway.yaml", "default") else Path.cwd()
            own = extensions.names(values.get("extensions", ""))
            values[one.name], sources[one.name] = _convert(text, hints[one.name], one, base, source, own), source
        return values, sources


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings: a field per setting, with variable, description and default."""

    provider: str = row("SLIPWAY_PROVIDER", "provider of pods; default: market if a key is set, else local")
    profile: str = row("SLIPWAY_PROFILE", "recipe of model and training", "smoke")
    extensions: str = row("SLIPWAY_EXTENSIONS", "your own files and modules that add providers, sources, phases, ...")
    source: str = row("SLIPWAY_SOURCE", "text to train on: pydocs, fineweb or paths", "pydocs")
    shard_lines: int = row("SHARD_LINES", "documents per text shard", "250000")
    store: str = row("SLIPWAY_STORE", "store of artifacts: a folder, hf://, s3:// or gs://", "var/artifacts")
    pods: Path = row("SLIPWAY_PODS", "folder of the pods of this machine", "var/pods")
    pools: Path = row("SLIPWAY_POOLS", "inventory of own machines; if missing: ~/.sky/ssh_node_pools.yaml", POOLS)
    environments: Path = row("SLIPWAY_ENVIRONMENTS", "folder of the environments, shared by all checkouts")
    installer: str = row("SLIPWAY_INSTALLER", "installer of environments, uv or pip; empty: uv if it can be had")
    state_file: Path = row("SLIPWAY_STATE_FILE", "the journal of rented machines, one per installation")
    reserve_bytes: int = row("SLIPWAY_RESERVE_BYTES", "work stops when less disk is free than this", str(1 << 30))
    accept_url: str = row("SLIPWAY_ACCEPT_URL", "URL that a new pod downloads for some seconds as a test; empty: none")
    accept_download_mb_s: int = row("SLIPWAY_ACCEPT_DOWNLOAD_MB_S", "minimum download speed of a new pod", "2")
    accept_disk_mb_s: int = row("SLIPWAY_ACCEPT_DISK_MB_S", "minimum write speed of a new pod's disk", "50")
    accept_free_gb: int = row("SLIPWAY_ACCEPT_FREE_GB", "minimum free disk of a new pod", "10")
    accept_clock_s: int = row("SLIPWAY_ACCEPT_CLOCK_S", "maximum error of a new pod's clock", "30")
    accept_cuda: str = row("SLIPWAY_ACCEPT_CUDA", "minimum CUDA version of a new pod's driver", "13.0")
    runpod_api_key: str = row("RUNPOD_API_KEY", "RunPod: the account's key", secret=True)
    lium_api_key: str = row("LIUM_API_KEY", "Lium: the account's key", secret=True)
    lium_self_end_key: str = row(
        "LIUM_SELF_END_KEY", "Lium, with --self-end: a key with only the scope manage, for a pod's guard", secret=True
    )
    shadeform_api_key: str = row("SHADEFORM_API_KEY", "Shadeform: the account's key", secret=True)
    runpod_url: str = row("SLIPWAY_RUNPOD_URL", "RunPod: address of a simulated server; empty: RunPod itself")
    lium_url: str = row("SLIPWAY_LIUM_URL", "Lium: address of a simulated server; empty: Lium itself")
    shadeform_url: str = row(
        "SLIPWAY_SHADEFORM_URL", "Shadeform: address of a simulated server; empty: Shadeform itself"
    )
    boot_s: int = row("SLIPWAY_BOOT_S", "a rented pod that cannot be reached for this long is given back", "900")
    spend_cap_usd: float = row("SLIPWAY_SPEND_CAP_USD", "maximum cost of all rented pods together; 0: no cap", "0")
    hooks: str = row("SLIPWAY_HOOKS", "hooks to notify of every run, service and audit; see --notify")
    notify: str = row("SLIPWAY_NOTIFY", "notified when runs end: a shell command, or an https:// address to post to")
    rehearsal: str = row("SLIPWAY_REHEARSAL", "folder of the rehearsal to use; empty: the real markets")
    clock_scale: float = row("SLIPWAY_CLOCK_SCALE", "speed of a rehearsal's clock", "1")
    huggingfacehub_api_token: str = row("HUGGINGFACEHUB_API_TOKEN", "Hugging Face: preferred token", secret=True)
    hf_token: str = row("HF_TOKEN", "Hugging Face: token used when the one above is not set", secret=True)
    aws_access_key_id: str = row(
        "AWS_ACCESS_KEY_ID", "S3: key of an s3:// store; else AWS's own files are used", secret=True
    )
    aws_secret_access_key: str = row("AWS_SECRET_ACCESS_KEY", "S3: secret of AWS_ACCESS_KEY_ID", secret=True)
    aws_session_token: str = row("AWS_SESSION_TOKEN", "S3: session token of a temporary key", secret=True)
    google_credentials: str = row(
        "GOOGLE_CREDENTIALS", "gs://: key file of a service account, as path or content", secret=True
    )
    track: str = row("SLIPWAY_TRACK", "trackers of metrics: the names of --track, or none")
    hook_lines: Mapping[str, str] = field(repr=False, default_factory=dict)
    """The SLIPWAY_HOOK_NAME variables: each holds the kind and the target of a hook."""
    sources: Mapping[str, str] = field(repr=False, default_factory=dict)
    given: Mapping[str, str] = field(repr=False, default_factory=dict)
    """The variables of `--env`, including settings."""
    layers: SettingLayers = field(repr=False, compare=False, default_factory=SettingLayers)

    @staticmethod
    def load(
        root: Path,
        flags: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> "Settings":
        """Load the settings of the checkout `root`.

        `flags`: values by setting name, None or "" if not given. `overrides`: the `KEY=V` words of `-e`; a bare KEY
        takes the shell's value. Relative paths start at the current folder when typed or exported, else at `root`.
        Raises UsageError.
        """
        typed = {name: str(value) for name, value in (flags or {}).items() if value not in (None, "")}
        given = read_overrides(overrides, environ)
        layers: list[tuple[str, Mapping[str, str]]] = [  # slipway.yaml is read by setting name, these by variable
            ("-e", given),
            ("shell", environ),
            (".env", {**read_dotenv(root / "credentials" / ".env"), **read_dotenv(root / ".env")}),
        ]
        folder = next((named for _, layer in layers if (named := layer.get("SLIPWAY_REHEARSAL"))), "")
        if folder:
            layers.insert(0, ("rehearsal", _read_overlay(Path(folder))))
        _refuse_lacking(environ, "shell")
        written = _read_yaml(root / "slipway.yaml")
        found = SettingLayers(root, typed, layers, written, environ)
        values, sources = found.read(Settings)
        if not folder:  # a rehearsal has separate keys
            _warn_of_short_keys(values)
        if not values["provider"]:
            values["provider"], sources["provider"] = _default_provider(values)
        lines: dict[str, str] = {}
        for _, layer in reversed(layers):
            lines |= {name: text for name, text in layer.items() if name.startswith(HOOK) and text}
        return Settings(**values, sources=sources, given=given, hook_lines=lines, layers=found)

    def for_pack(self, record: type[PackRecord]) -> PackRecord:
        """Return the settings of a pack as the given record. Raises UsageError."""
        values, sources = self.layers.read(record)
        return record(**values, sources=sources)

    def records(self) -> "Iterator[Settings | PackSettings]":
        """Yield this record and the records of the installed packs."""
        yield self
        yield from (self.for_pack(packs.load(one.settings)) for one in packs.installed().values() if one.settings)

    def lend_environment(self, secrets: bool = False) -> None:
        """Set the variables of ENVIRONMENT, by precedence, for the client libraries and children of this process.

        secrets: also set the secret ones; jobs on this machine inherit the environment of the command that starts them.
        """
        for name in (*ENVIRONMENT, "SLIPWAY_INSTALLER"):
            if is_secret(name) and not secrets:
                continue
            if value := next((layer[name] for _, layer in self.layers.by_variable if layer.get(name)), ""):
                os.environ[name] = value

    @property
    def homes(self) -> Path:
        """Return the folder with the home of each run (`infra.runs.run_home`), by the run's name."""
        return self.pods.parent / "runs"

    def list_settings(self) -> list[ShownSetting]:
        """Return every setting with secrets hidden, in table order, followed by the settings of packs."""
        lines = []
        for record in self.records():
            for one in table(type(record)):
                value = getattr(record, one.name)
                text = ("set" if value else "not set") if one.metadata["secret"] else str(value)
                source = record.sources[one.name] if value else ""
                lines.append(ShownSetting(one.name, one.metadata["variable"], text, source))
        return lines


def is_rented(provider: str) -> bool:
    """Return whether Slipway rents a provider's pods, with limits enforced by the ledger.

    False for own machines, which are free; for held pods, which are paid with the rented pod; and for packs, since a
    pack's engine ends the paid machines.
    """
    return provider not in (*OWN_MACHINES, HELD, *packs.words("providers"))


def pack_settings(kind: str, name: str, settings: Settings) -> PackSettings | None:
    """Return the settings of the installed pack with the entry `name`, or None.

    `kind`: a field of `store.packs.Pack`, such as `providers`; `name`: name of the entry.
    """
    record = next((one.settings for one in packs.installed().values() if name in getattr(one, kind)), "")
    return settings.for_pack(packs.load(record)) if record else None


def inventory(provider: str, settings: Settings) -> Path | None:
    """Return the path of a pack provider's inventory, or None without an inventory file."""
    entry = packs.providers().get(provider)
    if not entry or not entry.inventory:
        return None
    path: Path = getattr(pack_settings("providers", provider, settings), entry.inventory)
    return path if path.exists() else None


def is_secret(variable: str) -> bool:
    """Return whether a variable's name marks a secret value."""
    return variable != "TOKENS" and bool(_SECRET.search(variable.upper()))  # TOKENS is a count, also in SkyPilot


def table(record: type = Settings) -> list[Field]:
    """Return the settings among the fields of a record."""
    return [one for one in fields(record) if one.metadata]


def variables() -> set[str]:
    """Return the variables of all settings, including packs not installed."""
    return {row["variable"] for row in (*(one.metadata for one in table()), *(row for _, row in of_packs()))}


def of_packs() -> list[tuple[str, dict[str, str]]]:
    """Return the settings of all packs, installed or not: name, and the metadata given to `row`."""
    own = [one for pack in packs.unlisted() if pack.settings for one in table(packs.load(pack.settings))]
    found = [(name, row) for pack in packs.known().values() for name, row in pack["settings"].items()]
    return found + [(one.name, dict(one.metadata)) for one in own]


def example() -> str:
    """Return the text of `.env.example`."""
    lines = ["# Copy to .env, which git ignores, and remove the # of your settings. `inv config` shows all values."]
    for row in (*(one.metadata for one in table()), *(row for _, row in of_packs())):
        lines += ["", f"# {row['about']}", f"# {row['variable']}={row['default']}"]
    lines += [
        "",
        "# A hook for --notify NAME: desktop, command, slack, discord, ntfy or post, then the address or command",
    ]
    lines += [f"# {HOOK}NAME=slack https://hooks.slack.com/services/..."]
    for variable, about in ENVIRONMENT.items():
        lines += ["", f"# {about}", f"# {variable}="]
    return "\n".join(lines) + "\n"


def read_overrides(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Parse the words `KEY=V`, or `KEY` with the shell's value, into a dict. Raises UsageError for other words."""
    read = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name.isidentifier():
            raise UsageError(f"-e {word}: expected KEY=VALUE")
        if not equals and name not in environ:
            raise UsageError(f"-e {name}: {name} is not set in the shell; write -e {name}=VALUE")
        read[name] = value if equals else environ[name]
    _refuse_unknown(read, "-e")
    return read


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables in a dotenv file, or {} without the file. Raises UsageError."""
    if not path.exists():
        return {}
    read, notes = packs.load("infra.dotenv_file:read")(path)
    for note in notes:
        _warn(f"{path}: {note}")
    _refuse_unknown(read, ".env")
    if path.stat().st_mode & 0o077 and (keys := [name for name in read if is_secret(name)]):
        _warn(f"{path} holds {', '.join(keys)}, and other users can read the file; run: chmod 600 {quote(str(path))}")
    return dict(read)


def unlikely(key: str) -> str:
    """Return why a key is too short for a vendor's whole key; "" = the length is plausible."""
    letters = "1 letter" if len(key) == 1 else f"{len(key)} letters"
    return f"the value has {letters}, and keys have at least {LEAST_KEY}" if 0 < len(key) < LEAST_KEY else ""


def _warn_of_short_keys(values: Mapping[str, Any]) -> None:
    for vendor, name in VENDORS.items():
        if why := unlikely(values[name]):
            _warn(f"{name.upper()} is unlikely to be a key of {vendor}: {why}; enter the key again: inv init {vendor}")


def _warn(said: str) -> None:
    """Warn without a source line, which Python would print and which may contain a key."""
    if said not in _warned:
        _warned.add(said)
        warnings.warn_explicit(said, SettingsWarning, "settings", 0)


def _read_overlay(folder: Path) -> dict[str, str]:
    """Return the settings overlay of the rehearsal in `folder`.

    `infra.rehearsal.attach` writes the overlay, which overrides all sources but flags.
    """
    try:
        return dict(json.loads((folder / OVERLAY).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"SLIPWAY_REHEARSAL is {folder}, but no rehearsal was found there: {error}") from None


def _refuse_unknown(read: Mapping[str, str], where: str) -> None:
    """Refuse an unknown SLIPWAY_ variable; other programs' variables are allowed."""
    _refuse_lacking(read, where)
    known = [one.metadata["variable"] for one in table()]
    own = [row["variable"] for _, row in of_packs()]
    for name in read:
        if name.startswith("SLIPWAY_") and name not in (*known, *own, *ENVIRONMENT) and not name.startswith(HOOK):
            near = difflib.get_close_matches(name, known, 1) or ["inv config lists all"]
            raise UsageError(f"{where}: unknown setting {name}; did you mean {near[0]}?")


def _refuse_lacking(read: Mapping[str, str], where: str) -> None:
    """Refuse a SLIPWAY_ variable of a missing pack, since the variable may select the machine of the work."""
    for setting, row in of_packs():
        variable = row["variable"]
        if (
            variable.startswith("SLIPWAY_")
            and read.get(variable)
            and (why := packs.missing_pack_message("settings", setting))
        ):
            raise UsageError(f"{where}: {variable}: {why}")


def _read_yaml(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    from infra import strict_yaml

    try:
        read = strict_yaml.parse(Path(path.name), path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError as error:
        raise UsageError(f"slipway.yaml: {error}") from error
    if not isinstance(read, dict):
        raise UsageError("slipway.yaml: expected lines of the form `name: value`")
    known = [one.name for one in table() if not one.metadata["secret"]]
    secret = {one.name for one in table()} - {*known}
    known += [name for name, row in of_packs() if not row["secret"]]
    for name, value in read.items():
        if why := packs.missing_pack_message("settings", str(name)):
            raise UsageError(f"slipway.yaml: {why}")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1) if name not in secret else []
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)} (keys belong into .env)"
            raise UsageError(f"slipway.yaml: unknown setting {name!r}; {hint}")
        if not isinstance(value, (str, int)):
            raise UsageError(f"slipway.yaml: {name}: expected one word or number")
    return {name: str(value) for name, value in read.items()}


def _default(one: Field, environ: Mapping[str, str], root: Path) -> str:
    if one.name == "environments":
        return str(cache_folder.default_cache(environ))
    if one.name == "state_file":
        return str(default_path(environ))
    if one.name == "pools" and not (root / POOLS).exists():
        shared = Path(environ.get("HOME") or Path.home()) / ".sky" / POOLS  # SkyPilot's own inventory
        return str(shared if shared.exists() else root / POOLS)
    return one.metadata["default"]


def _default_provider(values: Mapping[str, Any]) -> tuple[str, str]:
    keys = [key.upper() for key in VENDORS.values() if values[key]]
    if keys:
        return MARKET, f"default: {', '.join(keys)} {'is' if len(keys) == 1 else 'are'} set"
    return "local", NO_KEY


def _convert(text: str, kind: type, one: Field, base: Path, source: str, own: Sequence[str]) -> Any:
    """Convert the text of a setting to its value; `own` are names of extensions, which may be sources."""
    if kind is int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) >= 1 << 63:
            raise UsageError(f"{source}: {one.metadata['variable']} is {text!r}, which is not a whole number")
        return int(text)
    if kind is float:
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
            raise UsageError(f"{source}: {one.metadata['variable']} is {text!r}, which is not a number of at least 0")
        return float(text)
    if one.name == "source":
        return ",".join(_located(part, base, own) for part in sources_of(text))
    if one.name == "extensions":
        found = extensions.words_of(text)
        return ",".join(str(base / Path(word).expanduser()) if extensions.is_file(word) else word for word in found)
    if kind is Path or one.name == "store" and "://" not in text:
        return kind(base / Path(text).expanduser())
    return text


def sources_of(source: str) -> list[str]:
    """Return the weighted sources of a mixture, or the single source."""
    return source.split(",") if WEIGHTED.fullmatch(source) else [source]


def _located(source: str, base: Path, own: Sequence[str]) -> str:
    """Return a source with an absolute path; names and URLs stay unchanged."""
    is_name = source.partition("=")[0] in (*NAMED_SOURCES, *own)
    return source if is_name or "://" in source else str(base / Path(source).expanduser())
