"""The pack `adapters`: training of LoRA adapters beside a frozen model, stored in the format of PEFT."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="adapters",
    about="Train LoRA adapters instead of whole models: --adapter lora",
    commands={
        "serve.adapters": CommandEntry(
            where="packs.adapters.commands.served:adapters",
            summary="List, load or unload the adapters of a running service.",
        ),
    },
    command_flags={
        "launch": "packs.adapters.control.flags:AdapterFlags",
        "rehearse": "packs.adapters.control.flags:AdapterFlags",
        "train": "packs.adapters.control.flags:AdapterFlags",
        "pod.run": "packs.adapters.control.flags:AdapterFlags",
        "fit": "packs.adapters.control.flags:AdapterFlags",
        "serve.up": "packs.adapters.control.serving:ServedAdapterFlags",
    },
    phase_settings={"adapter": "packs.adapters.records.lora_config:AdapterPhaseConfig"},
    model_changes={"adapter_config.json": "packs.adapters.trainer.imported_adapter:StoredLora"},
    variant_routes={"vllm": "packs.adapters.serve.vllm_route:VariantRoute"},
    served_models={"model_change": "packs.adapters.serve.engines:ADAPTED"},
)
