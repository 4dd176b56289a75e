"""The pack `preferences`: training on pairs of answers, of which one is preferred."""

from store.packs import Pack

PACK = Pack(
    name="preferences",
    about="Train on preferred and rejected answers: phase dpo",
    command_flags={
        "launch": "packs.preferences.control.flags:PairFlags",
        "rehearse": "packs.preferences.control.flags:PairFlags",
        "train": "packs.preferences.control.flags:PairFlags",
        "pod.run": "packs.preferences.control.flags:PairFlags",
    },
    phases={"dpo": "packs.preferences.records.phases:DPO"},
    profile_phases={"*": "packs.preferences.records.recipes:phases"},
    row_readers={"pairs": "packs.preferences.data.pair_rows:PairReader"},
)
