"""Runs: launch them, watch them, read them, stop them, go on with them."""

from scripts.cli.command import APART, BEGIN, command

DOWN, FLAGS = "scripts.runs.down", "scripts.runs.flags"


@command(
    "scripts.runs.launch", f"{FLAGS}:LaunchFlags", world=BEGIN, env=True, flag_file="file",
    example="inv launch --phase sft --gpu H100 --num-gpus 8 --spend-limit 100",
    rents=True,
)  # fmt: skip
def launch(c, spec):
    """Train one or more phases, with all they need, to the end.

    Artifacts that exist are reused. Ctrl-C leaves the run working; the same launch follows it again.
    """


@command(
    "scripts.runs.rehearse", f"{FLAGS}:RehearseFlags", world=APART, env=True, flag_file="file",
    example="inv rehearse --phase sft --profile tiny --gpu H100 --use-spot --preempt 1",
)  # fmt: skip
def rehearse(c, spec):
    """Launch in a simulated market that costs nothing.

    Its servers and pods are real processes on this machine. At the end it shows what the market saw.
    """


@command("scripts.runs.status", f"{FLAGS}:StatusFlags", example="inv status --watch")
def status(c, spec):
    """Show every run: its state, its step, its cost.

    Each figure shows its age.
    """


@command("scripts.runs.why", f"{FLAGS}:WhyFlags", example="inv why brave-otter-3")
def why(c, spec):
    """Explain in ten lines what happened to a run, and what to do.

    A pod or a service can be named as well. The first line names the cause: a preemption, a limit, a bad host, no
    memory, a full disk, a killed engine.
    """


@command("scripts.runs.logs", f"{FLAGS}:LogsFlags", example="inv logs brave-otter-3 --follow")
def logs(c, spec):
    """Print what a run has written, step by step."""


@command("scripts.runs.report", f"{FLAGS}:ReportFlags", example="inv report brave-otter-3")
def report(c, spec):
    """Write a page about a run: curves, cost, what the model said.

    The page is one HTML file, with each curve beside it as a PNG. Two runs are compared: their curves in one chart,
    and the differences between their recipes.
    """


@command("scripts.runs.keep", f"{FLAGS}:KeepFlags", name="keep", example="inv keep brave-otter-3 --detach", rents=True)
def keep_(c, spec):
    """Follow a run, and bring it back when its pod dies.

    Artifacts and logs are copied here meanwhile. Only one process at a time follows a run.
    """


@command(DOWN, f"{FLAGS}:DownFlags", example="inv down brave-otter-3")
def down(c, spec):
    """End a run; return when nothing of it is left or bills.

    Its work is saved first. A pod is reported as gone only when that is proven.
    """


@command(
    "scripts.runs.resume",
    f"{FLAGS}:ResumeFlags",
    env=True,
    example="inv resume brave-otter-3 --spend-limit 300",
    rents=True,
)
def resume(c, spec):
    """Go on with a run from its newest whole checkpoint.

    It may have been stopped, killed or failed. Before it rents, it shows machines, prices, limit and ends, and asks.
    """


@command(DOWN, f"{FLAGS}:StopFlags", example="inv down brave-otter-3")
def stop(c, spec):
    """Refuse: a stopped pod goes on billing. See `down`.

    Such a pod may also find no free GPU when it starts again. The message says what to type instead.
    """


@command("scripts.runs.supervisor", "scripts.cli.flags:Output", example="inv supervisor")
def supervisor(c, spec):
    """Show the process that looks after runs and services.

    It looks after services, and after runs on other machines that no terminal follows. If it is needed and not
    running, it is started.
    """
