"""Words between the plan and the trainer. Standard library only."""

LIMIT = "limit"
"""Value of `schedule.end`: the number of steps fits the limit of the machine."""
VARIABLE = "SLIPWAY_LATER_WORK"
"""Variable of a job: JSON object from a phase to the operations of later phases, relative to the phase, and to seconds.

Each value is a list: phases whose number of steps may shrink, phases with a fixed number, the number of phases, and the
seconds after the last step, of the phase and of all later phases.
"""
FEW = 0.05
"""Share of the planned work below which a limit deserves a warning."""
