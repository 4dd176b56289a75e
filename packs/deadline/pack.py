"""The pack `deadline`: a training that ends in time for a limit of money or time, with a finished schedule."""

from store.packs import Pack

PACK = Pack(
    name="deadline",
    about="End a training in time for a limit, with a finished schedule",
    command_flags={
        "launch": "packs.deadline.control.flags:FinishFlags",
        "rehearse": "packs.deadline.control.flags:FinishFlags",
    },
    launch_changes={"deadline": "packs.deadline.control.flags:with_limits"},
    plan_parts={"deadline": "packs.deadline.control.flags:with_later_work"},
    schedule_ends={"limit": "packs.deadline.trainer.limit_end:LimitEnd"},
)
