"""The pack `preferences`: training on pairs of answers, of which one is preferred, and on a teacher's judgement."""

from store.packs import Pack

PACK = Pack(
    name="preferences",
    about="Train on preferred answers, or by a teacher: phases dpo, opd",
    command_flags={
        "launch": "packs.preferences.control.flags:PreferenceFlags",
        "rehearse": "packs.preferences.control.flags:PreferenceFlags",
        "train": "packs.preferences.control.flags:PreferenceFlags",
        "pod.run": "packs.preferences.control.flags:PreferenceFlags",
        "fit": "packs.preferences.control.flags:PreferenceFlags",
    },
    phases={"dpo": "packs.preferences.records.phases:DPO", "opd": "packs.preferences.records.phases:OPD"},
    profile_phases={"*": "packs.preferences.records.recipes:phases"},
    row_readers={"pairs": "packs.preferences.data.pair_rows:PairReader"},
)
