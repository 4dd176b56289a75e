"""The command `export`: a model as a Hugging Face folder, or as a GGUF file."""

from dataclasses import dataclass
from pathlib import Path

from flows.models.changed_model import copy_change, is_change
from flows.models.find_model import GGUF_TYPES, files_of, find_model
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import Typed, flag
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.models.gguf_files import LLAMA, refuse_gguf
from store import packs
from trainer.config import phases_for
from trainer.records.phase_registry import phase_names


@dataclass(frozen=True, kw_only=True)
class ExportFlags(Typed):
    model: str = flag(
        "", f"{phase_names()}, the name or tag of an artifact, or a folder (default: the last trained phase)", word=True
    )
    tag: str = flag("", "name of the checkpoints in the store")
    out: str = flag(
        "",
        "output folder; for --bits gguf an output file (default: var/exports/MODEL.TYPE.gguf)",
        unit="FOLDER",
    )
    dtype: str = flag("float32", "float32 or bfloat16")
    bits: str = flag("", "for a ternary model: gguf (llama.cpp), or hf (transformers, 2 bits per weight)")
    merge: bool = flag(False, "for an adapter: write the whole model, with the adapter added to the weights")
    gguf_type: str = flag("tq2_0", "type of the matrices in a GGUF file: tq2_0, q8_0, f16, bf16, f32")


@command(record=ExportFlags, env=True, example="inv export sft --out model")
def export(spec: ExportFlags) -> None:
    """Write a model as a Hugging Face folder, or as a GGUF file."""
    check_export(spec)
    settings = context.settings()
    is_ternary = spec.bits in packs.entries("exports") or spec.bits == "gguf" and spec.gguf_type == "tq2_0"
    found, folder = find_model(settings, spec.model, spec.tag, render.say, phases_for(LLAMA) if is_ternary else ())
    kind, _, tag = found.name.partition("/") if found else (folder.name, "", "")
    files = files_of(folder)
    if spec.merge and not is_change(files):
        raise UsageError(f"--merge: {found.name if found else folder} is a whole model; leave out --merge")
    if spec.bits == "gguf":
        refuse_gguf(folder, found.name if found else folder.name, spec.gguf_type)
    if is_change(files) and not spec.merge:
        refuse_conversion(spec, found.name if found else str(folder))
    named = f"{tag}-{kind.removesuffix('_checkpoints')}" if tag else kind
    to = Path(spec.out).absolute() if spec.out else ROOT / "var" / "exports" / f"{named}.{spec.gguf_type}.gguf"
    to.parent.mkdir(parents=True, exist_ok=True)
    if is_change(files) and not spec.merge:
        copy_change(files, to)
        print(to)
        return
    group, said = "train", ["-m", "trainer", "export", "--dtype", spec.dtype]
    if spec.bits == "gguf":
        group, said = "llama-cpp", ["-m", "trainer.engines", "export", "--type", spec.gguf_type]
    elif spec.bits:
        said += ["--layout", spec.bits]
    from infra import train_env

    said += ["--model", str(folder), "--out", str(to)]
    for _ in train_env.run(said, None, root=ROOT, python=local_step.python(settings, group)):
        pass
    print(to)


def refuse_conversion(spec: ExportFlags, name: str) -> None:
    """Raise UsageError for flags that convert weights: an adapter is copied as it is."""
    if spec.bits or spec.dtype != "float32" or "dtype" in spec.typed:
        idle, more = ("bits", "") if spec.bits else ("dtype", f" --dtype {spec.dtype}")
        raise UsageError(
            f"--{idle}: {name} is an adapter, and only the weights of a whole model are converted. Write the whole "
            f"model{' first' if spec.bits else ''}: inv export {name} --merge --out FOLDER{more}"
        )


def check_export(spec: ExportFlags) -> None:
    """Raise UsageError for unknown or contradictory export flags."""
    if said := packs.missing_pack_message("exports", spec.bits):
        raise UsageError(f"--bits {said}")
    if spec.merge and spec.bits:
        raise UsageError(f"--merge --bits {spec.bits}: write the whole model first, then convert the folder")
    if spec.bits not in ("", "gguf", *packs.entries("exports")):
        raise UsageError(f"--bits is {spec.bits!r}; known: {', '.join(('gguf', *packs.entries('exports')))}")
    if spec.dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype is {spec.dtype!r}; known: float32, bfloat16")
    if spec.bits == "gguf" and spec.gguf_type not in GGUF_TYPES:
        raise UsageError(f"--gguf-type is {spec.gguf_type!r}; known: {', '.join(GGUF_TYPES)}")
    if spec.bits == "gguf" and (spec.dtype != "float32" or "dtype" in spec.typed):
        raise UsageError("--dtype applies to folders only; for a GGUF file use --gguf-type bf16")
    if spec.bits != "gguf" and (spec.gguf_type != "tq2_0" or "gguf_type" in spec.typed):
        raise UsageError(f"--gguf-type {spec.gguf_type} needs --bits gguf")
    if not spec.out and spec.bits != "gguf":
        raise UsageError("--out is missing; give the folder for the model")
