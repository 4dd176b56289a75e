"""The recipes of dpo and opd of every profile. Light to import."""

import math
from collections.abc import Mapping
from dataclasses import replace

from packs.preferences.records.dpo_config import DpoConfig
from packs.preferences.records.opd_config import OpdConfig
from trainer.config import OptimizerConfig, PhaseConfig, Profile, ScheduleConfig, as_phase

BUILT_IN = {"pydocs": 0.5, "other": 0.5}
SMALL = ("smoke", "smoke_bits", "tiny")


def phases(profile: Profile) -> Mapping[str, PhaseConfig]:
    """Return dpo and opd after sft."""
    return {"dpo": on_pairs(profile), **on_policy(profile)}


def on_policy(profile: Profile) -> Mapping[str, PhaseConfig]:
    """Return opd with the tasks, answers and rates of rl; {} for a profile without rl."""
    before = profile.phases.get("rl")
    if before is None or before.rl is None:
        return {}
    answers = replace(before.rl, loss="dapo", beta=0.0, dynamic_sampling=0, overlong=0, shown=0.0)
    return {"opd": as_phase(OpdConfig, before, phase="opd", rl=answers)}


def on_pairs(profile: Profile) -> DpoConfig:
    """Return dpo: AdamW at a fiftieth of the rate of sft, with fewer rows."""
    sft = profile.phases["sft"]
    is_small = profile.name in SMALL
    rows = math.gcd(32, sft.rows)
    found = as_phase(
        DpoConfig,
        sft,
        phase="dpo",
        optimizer=OptimizerConfig(
            lr=1e-4 if is_small else 0.02 * sft.optimizer.lr, betas=(0.9, 0.999), weight_decay=0.0
        ),
        schedule=ScheduleConfig(warmup_steps=4 if is_small else 20, decay=1.0),
        steps=60 if is_small else 400,
        rows=rows,
        micro_rows=math.gcd(rows, max(1, sft.micro_rows // 2)),
        sequence_len=min(256, sft.sequence_len) if is_small else sft.sequence_len,
        mixture=BUILT_IN,
        turns=1,
    )
    return replace(found, steps=12) if profile.name == "tiny" else found
