"""Parser for a file of launch flags: `inv launch big.yaml` is `inv launch` with the flags of the file.

    gpu: H100                 # as --gpu H100
    num-gpus: 8
    spend-limit: 100
    use-spot: true
    phases: {sft: {optimizer: {lr: 1e-3}}}    # as --set sft.optimizer.lr=1e-3

The input is YAML with flag names, or RunPod's names for some flags, as keys; the output is a list of values by flag.
The values count as typed before the command line, so command-line flags override the file.
"""

import difflib
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flows.runs import work_kinds
from flows.specs import work
from infra import strict_yaml
from infra.errors import UsageError
from scripts.cli import render
from store import packs

FOREIGN = "flows.specs.foreign_files:about"  # loaded by path: only a launch with a file needs the module
RUNPOD = {
    **{"gpuType": "gpu", "gpuTypeId": "gpu", "gpuCount": "num-gpus", "cpu": "cpus", "minVcpus": "cpus"},
    **{"minVcpuCount": "cpus", "minMemory": "memory", "minMemoryInGb": "memory", "containerDiskInGb": "disk-size"},
    **{"volumeMounts": "volume", "networkVolumeId": "volume", "dataCenterId": "region", "interruptible": "use-spot"},
    **{"dockerArgs": "cmd"},
}
OF_A_MANIFEST = {"name": "run-name"}  # for a file with a key of RunPod; in a file of flags the key may be a mistake
WITHOUT_EFFECT = {
    "kind": "a launch makes pods only",
    "imageName": "pods boot the image that Slipway has checked; install missing packages in the command",
    "ports": "Slipway opens no port to the internet; reach a port with: inv forward RUN PORT",
    "volumeInGb": "the disk of a pod has one size: containerDiskInGb",
    "volumeMountPath": "a volume is at /workspace, and $SLIPWAY_VOLUME names the place",
    "startSsh": "every pod has SSH",
    "supportPublicIp": "every pod has an address",
}
VOLUME = "/workspace"
SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")


def read(path: Path, known: Collection[str], typed: Collection[str] = ()) -> dict[str, list[str | bool]]:
    """Return the values of each flag in a file. Raises UsageError with the file and key.

    `known`: all flags, without dashes; `typed`: flags on the command line, which override the file. Returns {} for the
    file of a kind of work, which the kind itself parses.
    """
    try:
        if path.is_file() and (foreign := packs.load(FOREIGN)(path)):
            raise UsageError(f"{path}: {foreign}")
        if work_kinds.kind_of_file(path):
            return {}
        document = strict_yaml.read(path)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist. Expected a file of flags, such as `gpu: H100`") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder. Expected a file of flags, such as `gpu: H100`") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected lines of the form `flag: value`, such as `gpu: H100`")
    found: dict[str, list[str | bool]] = {}
    refused: list[str] = []
    is_manifest = bool({*RUNPOD, "imageName"} & {*map(str, document)})
    for key, value in document.items():
        if is_manifest and str(key) in WITHOUT_EFFECT:
            render.tell(f"{path}: {key}: no effect: {WITHOUT_EFFECT[str(key)]}")
            continue
        try:
            _read_key(path, key, value, is_manifest, known, typed, found)
        except UsageError as error:
            refused.append(str(error).removeprefix(f"{path}: "))
    if refused:
        raise UsageError(f"{path}: {refused[0]}" if not refused[1:] else "\n  ".join([f"{path}:", *refused]))
    return found


def _read_key(
    path: Path,
    key: Any,
    value: Any,
    is_manifest: bool,
    known: Collection[str],
    typed: Collection[str],
    found: dict[str, list[str | bool]],
) -> None:
    """Add the values of a key to `found`. Raises UsageError."""
    key = "yes" if key is True else key  # YAML parses the key `yes` as the boolean True
    if key == "phases" and "set" in known:
        found.setdefault("set", []).extend(work.flatten_options(f"{path}: phases", value))
        return
    if key in ("command", "dockerArgs"):
        key, value = "cmd", _command(path, value)
    if key == "env":
        value = _variables(path, value)
    theirs = {**RUNPOD, **(OF_A_MANIFEST if is_manifest else {})}
    flag = theirs.get(str(key), str(key).replace("_", "-"))
    if flag not in known:
        near = difflib.get_close_matches(flag, known, 1)
        hint = f"did you mean {near[0]}?" if near else "see: inv --help launch"
        hint = (
            packs.missing_pack_message("command_flags", f"launch --{flag}")
            or work_kinds.about_file_key(str(key))
            or hint
        )
        raise UsageError(f"{path}: {key}: no such flag; {hint}")
    if flag in found and flag != "set":
        raise UsageError(f"{path}: {key}: --{flag} is given twice")
    if key == "volumeMounts":
        value = None if "volume" in typed else _volume(path, value)
    if value is not None:
        found.setdefault(flag, []).extend(
            _word(path, key, one) for one in (value if isinstance(value, list) else [value])
        )


def _word(path: Path, key: Any, value: Any) -> str | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"{path}: {key}: expected one word or number, not {value!r}")


def _command(path: Path, said: Any) -> str:
    """Return the shell text of `command`, given as a string or as a container's argument list. Raises UsageError."""
    words = [said] if isinstance(said, str) else said
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        raise UsageError(f"{path}: command: expected a string, or a list of words such as [bash, -c, TEXT]")
    if len(words) == 3 and words[0] in SHELLS and re.fullmatch("-[a-z]*c", words[1]):
        return words[2]
    return words[0] if isinstance(said, str) else shlex.join(words)


def _variables(path: Path, said: Any) -> list[str]:
    """Return `KEY=VALUE` words for an `env` block: a mapping, a list of name/value entries, or a list of words.

    Raises UsageError.
    """
    if isinstance(said, dict):
        said = [{"name": name, "value": value} for name, value in said.items()]
    try:
        pairs = [
            one if isinstance(one, str) else f"{one['name']}={one['value']}"
            for one in (said if isinstance(said, list) else [said])
        ]
    except (TypeError, KeyError):
        raise UsageError(
            f"{path}: env: expected lines of the form `KEY: VALUE`, or a list of entries with name and value"
        ) from None
    return pairs


def _volume(path: Path, mounts: Any) -> str:
    """Return the volume id from RunPod's `volumeMounts`, a list with a single entry. Raises UsageError."""
    try:
        (mount,) = mounts
        name, at = mount["volumeName"], str(mount.get("mountPath") or VOLUME)
    except (TypeError, KeyError, ValueError):
        raise UsageError(
            f"{path}: volumeMounts: expected one entry with volumeName: the id of the network volume"
        ) from None
    if not name:
        raise UsageError(
            f"{path}: volumeMounts: volumeName is empty. Write the id of your network volume (shown on "
            "the vendor's page of volumes) into the file, or type --volume ID. Nothing was rented"
        )
    if at != VOLUME:
        render.tell(f"{path}: volumeMounts: mountPath has no effect: {WITHOUT_EFFECT['volumeMountPath']}")
    return str(name)
