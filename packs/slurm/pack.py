"""Pack `slurm`: runs on Slurm clusters reached by SSH."""

from store.packs import Pack, PackProvider

PACK = Pack(
    name="slurm",
    about="Run on Slurm clusters that you reach by SSH",
    settings="packs.slurm.control.settings:SlurmSettings",
    providers={
        "slurm": PackProvider(
            where="packs.slurm.control.clusters:SlurmClusters",
            pool="only this CLUSTER, or CLUSTER/PARTITION",
            host="only this partition",
            inventory="clusters",
            doctor="packs.slurm.control.doctor:clusters",
        ),
    },
    doctor_checks={"slurm": "packs.slurm.control.doctor:inventory_line"},
)
