"""Estimates of the operations, the fixed time, the GPU memory and the data size of steps.

The functions take a phase, or the program of a step without training, and the requested GPUs. They return operations
(FLOP), seconds independent of the machine's speed, and bytes; `infra.market.step_times.estimate` converts these to
times. `smallest_fitting_options` searches the smallest change with which a phase fits into a given GPU memory.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from data import references
from data.config import HELDOUT_BYTES, HELDOUT_TOKENS, TextSpec, TokenizerSpec, TokensSpec, form_of, source_files
from data.errors import ConfigError
from infra.records import Request
from trainer import memory
from trainer.config import ImportSpec, PhaseConfig
from trainer.fingerprints import digest
from trainer.plan.phase_needs import needs_of
from trainer.records.fields import fingerprint_fields
from trainer.records.phase_registry import KINDS


def min_gpu_bytes(phase: PhaseConfig, num_gpus: int, nodes: int = 1) -> int:
    """Return the least GPU memory in bytes for a phase on machines of `num_gpus` GPUs, as `inv fit` counts.

    A training reduces the micro-batch down to one row, and recomputes activations, before failing
    (`trainer.parallel.placement`); rl, and a phase with `fit: false`, are estimated as written.
    """
    if phase.rl is None and phase.fit:
        tried = [replace(phase, micro_rows=1, recompute=one) for one in {phase.recompute, True}]
    else:
        tried = [phase]
    training = needs_of(phase).training_gpus(phase, num_gpus)
    spreads = memory.ways(phase, max(1, training), nodes).values()
    least = min(memory.estimate(one, **spread).total for one in tried for spread in spreads)
    return math.ceil(least / memory.USABLE)


def gpu_layouts(phase: PhaseConfig, request: Request) -> dict[str, int]:
    """Return the possible layouts of a model over the requested GPUs, with the estimated bytes per GPU."""
    training = needs_of(phase).training_gpus(phase, request.num_gpus)
    found = memory.ways(phase, max(1, training), request.nodes)
    return {way: memory.estimate(phase, **spread).total for way, spread in found.items()}


def layouts_text(found: Mapping[str, int]) -> str:
    """Return the layouts of `gpu_layouts` in words; "" if plain data parallelism (ddp) is the only layout."""
    if list(found) == ["ddp"]:
        return ""
    sizes = [f"{way} with {size / 1e9:.0f} GB on each GPU" for way, size in found.items()]
    return f"several GPUs: {', else '.join(sizes)} (to choose, set parallel in a profile file)"


STATE_BYTES = 12  # bytes per parameter in a checkpoint: the parameter and AdamW's two moments, float32
# Seconds per data step, without network time.
DATA_STEP_S = dict(text=3.0, tokenizer=2.0, tokens=3.0, identity=1.0, questions=1.0, problems=1.0, talk=5.0)
# Bytes of text per second beyond PYDOCS_BYTES: a disk of 100 MB/s, and two cores of `python -m bench.tokenizer`.
DATA_BYTES_PER_S = {"text": 1e8, "tokenizer": 8e6, "tokens": 6e7}
IMPORT_STEP_S, IMPORT_PARAMS_PER_S = 4.0, 1e8  # torch import; then reading and writing, without network time
PHASE_START_S = 4.0  # torch import, loading the inputs, the first step
COMPILE_S = 60.0  # compilation of a phase, as of `smoke` on two cores
SAVE_BYTES_PER_S = 3e8  # the last checkpoint, written, hashed and read back (`python -m bench.saving`)
XZ_BYTES_PER_S, EAGER = 2e6, 1.5  # xz -9e; time of an eager pass over that of a compiled pass
FLOAT8_GAIN = 1.29  # speed of a float8 training relative to bfloat16, measured with 1B parameters on an H200
CHAT_TOKENS, TURN_TOKENS = 64, 34  # tokens of a usual padded conversation; of a conversation in a shared row
# Settings of a phase without effect on the time of a step: length, data and numeric hyperparameters.
TIMELESS = set("phase steps seed schedule optimizer adopted mixture fit".split())


def constant_s(words: Sequence[str], params: int = 0, text_bytes: int = 0) -> float:
    """Return the seconds of a step without training; the last word of `words` is the step's program.

    params: number of parameters of the imported model. text_bytes: size of the text of the plan; 0 = unknown.
    """
    if words[-1] not in DATA_STEP_S:
        return IMPORT_STEP_S + params / IMPORT_PARAMS_PER_S
    read = min(text_bytes, TokenizerSpec.max_chars) if words[-1] == "tokenizer" else text_bytes
    more_s = max(0, read - PYDOCS_BYTES) / DATA_BYTES_PER_S.get(words[-1], math.inf)
    return DATA_STEP_S[words[-1]] + more_s


def operations(config: PhaseConfig) -> float:
    """Return the approximate operations (FLOP) of a phase.

    For float8, the result is the number of operations in bfloat16 that take the same time.
    Each view of the trained model counts forward and backward, and each frozen model forward only, a third.
    """
    model, row = config.model, tokens_of_row(config)
    each = model.flops_per_token(math.ceil(row))
    saved = 2.0 * model.num_matrix_params - 6.0 * config.num_learning if config.change else 0.0
    per_token = config.views * (each - saved) + config.num_frozen * each / 3
    return per_token * config.steps * tokens_of_step(config) / (FLOAT8_GAIN if config.dtype == "float8" else 1.0)


def seconds_beside_steps(config: PhaseConfig, flops_per_s: float | None, text_bytes: int = 0) -> dict[str, float]:
    """Return the seconds of a phase beside the steps on GPUs, by part of a bill; a conversion only has an evaluation.

    flops_per_s: useful speed of one GPU; None = CPUs, whose speed includes these parts. text_bytes: as of `constant_s`.
    """
    if not flops_per_s:
        return {}
    text_bytes = text_bytes or round(TOKEN_CHARS * config.steps * tokens_of_step(config)) or UNKNOWN_BYTES
    tokens = min(HELDOUT_TOKENS, TextSpec.val_ratio * text_bytes / TOKEN_CHARS) * config.reads_text
    passes = EAGER * tokens * config.model.flops_per_token(config.sequence_len) / 3  # forward only, on the first GPU
    return {
        "compile": COMPILE_S * config.should_compile("cuda") * config.trains,
        "saves": STATE_BYTES * config.num_learning / SAVE_BYTES_PER_S * config.trains,
        "evaluation": passes / flops_per_s + min(HELDOUT_BYTES, TOKEN_CHARS * tokens) / XZ_BYTES_PER_S,
    }


def tokens_of_step(config: PhaseConfig) -> float:
    """Return the approximate tokens of a step."""
    is_full = config.reads_text or config.rl is not None
    rows = math.ceil(config.rows / config.turns) if not is_full and _is_foreign(config) else config.rows
    return rows * tokens_of_row(config)


def tokens_of_row(config: PhaseConfig) -> float:
    """Return the approximate tokens of a row of a phase, or of a conversation in a shared row.

    The project's own conversations are short; foreign conversations have unknown lengths and count as full rows. For
    rl, the tokens are answers of full length with a share of the prompt.
    """
    if config.reads_text or config.rl is not None or _is_foreign(config):
        return config.row_len
    return min(config.row_len, CHAT_TOKENS if config.turns == 1 else TURN_TOKENS)


def _is_foreign(config: PhaseConfig) -> bool:
    return bool(set(config.mixture or ()) - KINDS.keys())


def shape(config: PhaseConfig) -> str:
    """Return a digest of the settings that determine the pace of a phase; settings at the default are left out."""
    found: dict[str, Any] = {"muon": config.optimizer.muon_lr > 0}
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name not in TIMELESS and value != one.default:
            found[one.name] = fingerprint_fields(value)
    return digest(found)


GB = 10**9
DOCUMENT_BYTES = 5_000  # a FineWeb document has 3 to 5 kB
# FineWeb's sample of ten billion GPT-2 tokens has 4.6 bytes per token.
FINEWEB_BYTES = {"sample-10BT": 46 * GB, "sample-100BT": 460 * GB, "sample-350BT": 1_610 * GB}
PYDOCS_BYTES = GB // 5  # docstrings of the standard library and of some packages
UNKNOWN_BYTES = 10 * GB
UNPACKED = 4  # bytes of text per compressed byte
TOKEN_CHARS = 4  # bytes of text per token
NARROW_VOCAB = 65_536  # ids of a larger vocabulary take four bytes instead of two
IMPORT_COPIES = 2  # float32 copies: the download and the converted model


def passes_over(text_bytes: int, phase: PhaseConfig) -> float:
    """Return how many times a phase reads a text of `text_bytes` bytes; 0 if the size is 0, unknown."""
    tokens = text_bytes * (1 - TextSpec.val_ratio) / TOKEN_CHARS
    return phase.steps * tokens_of_step(phase) / tokens if phase.reads_text and tokens else 0.0


def written_bytes(specs: Sequence[Any], fetched_bytes: int) -> int:
    """Return the bytes written by steps with these specs.

    fetched_bytes: size of the inputs made elsewhere, which stands in for the text if no step makes text.
    """
    text = sum(known_text_bytes(one) or UNKNOWN_BYTES for one in specs if isinstance(one, TextSpec))
    vocabs = [one.vocab_size for one in specs if isinstance(one, TokenizerSpec)]
    vocabs += [one.model.vocab_size for one in specs if isinstance(one, PhaseConfig | ImportSpec)]
    width = 2 if max(vocabs, default=NARROW_VOCAB) <= NARROW_VOCAB else 4
    tokens = (text or fetched_bytes) * width // TOKEN_CHARS if any(isinstance(one, TokensSpec) for one in specs) else 0
    imported = sum(4 * IMPORT_COPIES * one.model.num_params for one in specs if isinstance(one, ImportSpec))
    return text + tokens + imported


def known_text_bytes(spec: TextSpec) -> int:
    """Return the estimated bytes of text shards; 0 if the size is unknown before the run.

    The size is unknown for a mixture or a remote data set other than fineweb, unless `take` or a split such as
    `train[:1000]` limits the documents.
    """
    if spec.take:
        return spec.take * DOCUMENT_BYTES
    if spec.source == "fineweb":
        return FINEWEB_BYTES.get(spec.config, 0)
    if spec.source == "pydocs":
        return PYDOCS_BYTES
    try:
        if rows := references.parse(spec.source).first_rows:
            return rows * DOCUMENT_BYTES
        files = source_files(spec.source)
    except (ConfigError, OSError, ValueError):
        return 0
    forms = [(one, form_of(one.name)) for one in files]
    return sum(one.stat().st_size * (UNPACKED if packed or form == ".parquet" else 1) for one, (form, packed) in forms)


SHORTEST = 128  # minimum sequence length in tokens: below, a phase learns something different


def smallest_fitting_options(phase: PhaseConfig, memory_bytes: int, num_gpus: int, nodes: int = 1) -> str:
    """Return the options of the smallest change that fits; "" if no change suffices."""
    for change in _smaller_changes(phase):
        try:
            changed = replace(phase, **change)
        except ConfigError:  # invalid sequence length for the phase
            continue
        if min_gpu_bytes(changed, num_gpus, nodes) <= memory_bytes:
            return " ".join(f"--set {phase.phase}.{name}={_as_typed(value)}" for name, value in change.items())
    return ""


def _smaller_changes(phase: PhaseConfig) -> Iterator[dict[str, Any]]:
    """Yield possible changes: first changes without effect on the result, then shorter sequences."""
    if phase.rl is not None or not phase.fit:  # otherwise the trainer reduces the micro-batch itself
        fewer = [rows for rows in range(phase.micro_rows - 1, 0, -1) if phase.rows % rows == 0]
        yield from ({"micro_rows": rows} for rows in fewer)
        if not phase.recompute:
            yield from ({"recompute": True, "micro_rows": rows} for rows in (phase.micro_rows, *fewer))
    length = phase.sequence_len // 2
    while length >= SHORTEST:
        yield {"sequence_len": length}
        length //= 2


def _as_typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
