"""The words of a job about kernels, light to import: commands that end runs read the key, too."""

KIND = "kernels"  # kind of the artifacts in the store
MODE = "SLIPWAY_KERNELS"  # variable of a job
OWN, RENTED, COLD = "own", "rented", "cold"  # values of MODE: kind of machine, or no kernels of other runs
JOB_KEY = "SLIPWAY_KERNELS_JOB_KEY"  # secret of a job on a rented machine
