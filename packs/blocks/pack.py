"""The pack `blocks`: training and decoding of models that answer in blocks, by block diffusion."""

from store.packs import Pack

PACK = Pack(
    name="blocks",
    about="Train models that answer in blocks: phase dlm",
    command_flags={
        "launch": "packs.blocks.control.sizes:DlmFlags",
        "rehearse": "packs.blocks.control.sizes:DlmFlags",
        "train": "packs.blocks.control.sizes:DlmFlags",
        "pod.run": "packs.blocks.control.sizes:DlmFlags",
    },
    settings="packs.blocks.control.sizes:DlmSettings",
    phases={"dlm": "packs.blocks.records.phases:DLM"},
    profile_phases={"*": "packs.blocks.records.recipes:phases"},
    model_features={"blocks": "packs.blocks.records.feature:BlocksFeature"},
    served_models={"model_type=block_diffusion": "packs.blocks.serve.engines:IN_BLOCKS"},
)
