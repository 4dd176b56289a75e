"""The errors of the trainer, and the exit code of each.

TrainerError             1  something failed
├── Refused              2  an input, a flag or a configuration that cannot work
├── CheckpointError      1  checkpoints exist and none is whole, or one cannot be used
├── SandboxError         1  the sandbox of code does not start on this machine
├── OutOfMemory          1  the GPU's memory is full; the words say what would fit
├── Diverged             1  the loss stayed non-finite after a roll-back
├── Preempted           75  stopped in good order after a save: start again to go on
└── PeerLost            75  another process of the run is gone: all start again together
"""


class TrainerError(Exception):
    exit_code = 1


class Refused(TrainerError):
    exit_code = 2


class CheckpointError(TrainerError):
    pass


class SandboxError(TrainerError):
    pass


class OutOfMemory(TrainerError):
    pass


class Diverged(TrainerError):
    pass


class Preempted(TrainerError):
    exit_code = 75


class PeerLost(TrainerError):
    exit_code = 75
