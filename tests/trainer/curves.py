"""Losses of each phase with fixed seeds, sized for one CPU: a change of the trainer must not change them unnoticed.

    python -m tests.trainer.curves        compare with tests/curves/, and print the differences
    python -m tests.trainer.curves write  write tests/curves/ again: for an intended change; give the reason in dev/log

In float32 with one thread. A different CPU adds the same numbers in a different order, and a few steps of training
amplify the difference; TOLERANCE covers the difference: 30 times the effect of other vector units and libraries (3e-6).
"""

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from data.config import Input, StepContext
from store import packs
from tests.trainer.conftest import make_inputs, tiny
from trainer.__main__ import main
from trainer.config import CheckpointOptions, PhaseConfig, as_phase
from trainer.records.model_config import BlocksConfig, Ternary
from trainer.records.phase_registry import TEACHER
from trainer.records.rl_config import RlConfig
from trainer.reporting.jsonl_log import read

FOLDER = Path(__file__).parents[1] / "curves"
TOLERANCE = 1e-4  # Relative, of each loss.
ROUNDED = 3e-3  # Of ternary models: the last bit of a number may round it to the neighboring value.
STEEP = 4e-2  # Of the loss of relations, which such a rounding changes most.
LEAST = 0.01  # The loss of rl is close to zero, with either sign.
STEPS = 24
RL = RlConfig(group=8, max_new=12, overlong=10, eval_every=0, test_problems=2, samples_each=2)
MIXTURE = {"identity": 0.5, "pydocs": 0.3, "other": 0.2}


@dataclass(frozen=True)
class Curve:
    """One recorded phase."""

    config: PhaseConfig
    before: str = ""
    """The curve of the initial model."""
    teacher: str = ""
    """The curve of the frozen model."""
    tolerance: float = TOLERANCE


def curves() -> dict[str, Curve]:
    plain = tiny(steps=STEPS, dtype="float32")
    slow = replace(plain.optimizer, lr=0.001, muon_lr=0.002)  # The model soon memorises eight conversations.
    talk = replace(plain, phase="mid", mixture=MIXTURE, sequence_len=96, optimizer=slow)
    adamw = replace(plain.optimizer, muon_lr=0.0, z_loss=1e-4)
    cosine = replace(plain.schedule, decay=1.0, kind="cosine", final=0.1)
    found = {
        "base": Curve(plain),
        "base-adamw-cosine": Curve(replace(plain, optimizer=adamw, schedule=cosine)),
        "base-best-fit-documents": Curve(replace(plain, packing="best-fit", document_masks=True)),
        "mid": Curve(talk, "base"),
        "sft": Curve(replace(talk, phase="sft"), "mid"),
        "rl": Curve(replace(talk, phase="rl", mixture={"sort": 1.0}, rl=RL, rows=16, micro_rows=8, steps=8), "sft"),
    }
    of_packs = {"blocks": in_blocks, "bits": stages, "preferences": on_pairs}
    return found | {
        name: one
        for pack, make in of_packs.items()
        if pack in packs.installed()
        for name, one in make(plain, talk).items()
    }


def in_blocks(plain: PhaseConfig, talk: PhaseConfig) -> dict[str, Curve]:
    """Return the curve of the pack `blocks`."""
    from packs.blocks.records.dlm_config import DlmConfig

    blocks = BlocksConfig(block_size=8, sub_block_size=4)
    return {"dlm": Curve(as_phase(DlmConfig, talk, phase="dlm", blocks=blocks), "sft")}


def on_pairs(plain: PhaseConfig, talk: PhaseConfig) -> dict[str, Curve]:
    """Return the curves of the pack `preferences`; the teacher of opd is the model before mid."""
    from packs.preferences.records.dpo_config import DpoConfig
    from packs.preferences.records.opd_config import OpdConfig, Teacher

    mixture = {"pydocs": 0.5, "other": 0.5}
    answers, teacher = replace(RL, overlong=0), Teacher(source="store://curves/base", revision="base", params=0)
    told = {"mixture": {"sort": 1.0}, "rows": 16, "micro_rows": 8, "steps": 4, "rl": answers, "teacher": teacher}
    return {
        "dpo": Curve(as_phase(DpoConfig, talk, phase="dpo", mixture=mixture, turns=1), "sft"),
        "opd": Curve(as_phase(OpdConfig, talk, phase="opd", **told), "sft"),
    }


def stages(plain: PhaseConfig, talk: PhaseConfig) -> dict[str, Curve]:
    """Return the curves of the pack `bits`.

    Each curve starts from a fresh conversion, and is short: when the last bit of a number rounds it to the neighboring
    value, the losses of two CPUs are 1e-3 apart after 4 steps and 5e-2 after 12. The loss of the relations is steeper:
    1.5e-3 after one step and 1.7e-2 after two.
    """
    from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig

    def stage(before: PhaseConfig, phase: str, steps: int, bits: BitsConfig | None = None) -> PhaseConfig:
        return as_phase(BitsPhaseConfig, before, phase=phase, model=ternary, steps=steps, bits=bits)

    ternary = replace(plain.model, sub_norm=True, ternary=Ternary())
    layerwise = BitsConfig(nats=0.5, divergence=0.5, temperature=2.0, layers=0.5, warmup_steps=4, saliency=0.1)
    related = BitsConfig(relations=1e5, relation_heads=8)
    return {
        "bits1": Curve(stage(plain, "bits1", 0), "base"),
        "bits1.9": Curve(stage(plain, "bits1.9", 3, layerwise), "bits1", "base", ROUNDED),
        "bits2": Curve(stage(plain, "bits2", 3, BitsConfig(warmup_steps=4)), "bits1", tolerance=ROUNDED),
        "bits3": Curve(stage(talk, "bits3", 3, related), "bits1", "sft", STEEP),
    }


def record(store: Path, inputs: dict[str, Input], root: Path) -> dict[str, dict[str, Any]]:
    """Return the losses by name, and the inputs behind the losses."""
    found = {}
    for name, curve in curves().items():
        phase, before = curve.config.phase, curve.before
        roles = dict(inputs)
        if before:
            entry = Input(name=f"curves/{before}", fingerprint=before)
            roles[curves()[before].config.phase] = entry
        if curve.teacher:
            roles[TEACHER] = Input(name=f"curves/{curve.teacher}", fingerprint=curve.teacher)
        making = StepContext(store=str(store), name=f"curves/{name}", fingerprint=name, inputs=roles)
        keeping = CheckpointOptions(save_every=STEPS, reserve_bytes=0, samples=0)
        file = root / f"{name}.json"
        spec = {"making": asdict(making), "spec": asdict(curve.config), "keeping": asdict(keeping)}
        file.write_text(json.dumps(spec))
        environ = {"SLIPWAY_WORK": str(root / name), "OMP_NUM_THREADS": "1", "SLIPWAY_RECORDS": ""}
        with mock.patch.dict(os.environ, environ), contextlib.redirect_stdout(io.StringIO()):
            code = main([phase, "--config", str(file)])
        assert code == 0, name
        losses = [one["loss"] for one in read(root / name / "runs" / phase / "metrics.jsonl")]
        found[name] = {"config": asdict(curve.config), "before": before, "losses": losses}
    return json.loads(json.dumps(found))


def recorded() -> dict[str, dict[str, Any]]:
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
    return {name: one for name, one in read.items() if not packs.missing_pack_message("phases", one["config"]["phase"])}


def furthest(ours: list[float], theirs: list[float]) -> float:
    """Return the largest relative difference."""
    return max((abs(a - b) / max(abs(b), LEAST) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def run() -> int:
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
        found = record(*make_inputs(Path(scratch)), Path(scratch))
    if sys.argv[1:] == ["write"]:
        FOLDER.mkdir(exist_ok=True)
        for name, one in found.items():
            losses = ",\n  ".join(f"{loss:.7g}" for loss in one["losses"])
            rest = json.dumps({key: one[key] for key in ("config", "before")})[1:-1]
            (FOLDER / f"{name}.json").write_text(f'{{{rest},\n "losses": [\n  {losses}\n ]}}\n')
        return 0
    apart = {name: furthest(one["losses"], recorded()[name]["losses"]) for name, one in found.items()}
    for name, far in apart.items():
        print(f"{name}: {far:.1e} apart, {curves()[name].tolerance:.0e} allowed")
    return int(any(far > curves()[name].tolerance for name, far in apart.items()))


if __name__ == "__main__":
    sys.exit(run())
