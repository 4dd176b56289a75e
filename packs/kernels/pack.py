"""The pack `kernels`: compiled kernels of a training, kept in the store of the user for later starts."""

from store.packs import Pack

PACK = Pack(
    name="kernels",
    about="Keep compiled kernels, so that later starts compile nothing",
    command_flags={
        "launch": "packs.kernels.control.flags:KernelFlags",
        "rehearse": "packs.kernels.control.flags:KernelFlags",
        "train": "packs.kernels.control.flags:KernelFlags",
        "pod.run": "packs.kernels.control.flags:KernelFlags",
    },
    settings="packs.kernels.control.signing_key:KernelSettings",
    plan_parts={"kernels": "packs.kernels.control.flags:with_kernels"},
    store_secrets={"kernels": "packs.kernels.control.signing_key:secrets_of"},
    kernel_keepers={"store": "packs.kernels.trainer.stored_kernels:StoredKernels"},
)
