"""The pack `bits`: training of 1.58-bit models, from conversion of a trained model to export."""

from store.packs import Pack

PACK = Pack(
    name="bits",
    about="Train models with 1.58-bit weights: phases bits1 to bits3",
    phases={
        "bits1": "packs.bits.records.phases:BITS1",
        "bits1.9": "packs.bits.records.phases:BITS1_9",
        "bits2": "packs.bits.records.phases:BITS2",
        "bits3": "packs.bits.records.phases:BITS3",
    },
    profiles={"smoke_bits": "packs.bits.records.recipes:smoke_bits"},
    profile_phases={
        "smollm2_135m": "packs.bits.records.recipes:published_stages",
        "qwen3_0_6b": "packs.bits.records.recipes:published_stages",
        "qwen3_4b": "packs.bits.records.recipes:published_stages",
    },
    model_features={"ternary": "packs.bits.records.feature:TernaryFeature"},
    model_layouts={
        "bitnet": "packs.bits.records.bitnet_layouts:in_our_layout",
        "BitnetForCausalLM": "packs.bits.records.bitnet_layouts:in_our_layout",
    },
    served_models={
        "quant_method=bitnet": "packs.bits.serve.engines:TERNARY",
        "ternary": "packs.bits.serve.engines:TERNARY",
    },
    exports={"hf": "packs.bits.trainer.packed:write"},
)
