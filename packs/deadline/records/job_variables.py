"""Words between the plan and the trainer. Standard library only."""

LIMIT = "limit"
"""Value of `schedule.end`: the number of steps fits the limit of the machine."""
VARIABLE = "SLIPWAY_LATER_WORK"
"""Variable of a job: JSON object from a phase to the operations of later phases, relative to the phase.

Each value is a list: phases whose number of steps may shrink, phases with a fixed number, and the number of phases.
"""
FEW = 0.05
"""Share of the planned work below which a limit deserves a warning."""
