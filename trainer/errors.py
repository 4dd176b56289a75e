"""The errors of the trainer, and the exit code of each.

TrainerError             1  base class: training failed
├── Refused              2  an input, flag or configuration is invalid
├── CheckpointError      1  no existing checkpoint is whole, or a checkpoint does not match the run
├── SandboxError         1  the code sandbox does not start on this machine
├── OutOfMemory          1  GPU memory is full; the message lists settings that fit
├── Diverged             1  the loss stayed non-finite after a rollback
├── Preempted           75  stopped after a save; restart to resume
└── PeerLost            75  a peer process is lost; restart all processes together
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
