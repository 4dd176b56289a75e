"""Pods: the stages of a launch one by one , sets of pods, being on the machine of a run.

They chain: inv pod.create --gpu H100 pod.sync pod.setup pod.run --phase sft pod.down
"""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.pods.create",
    "scripts.pods.flags:CreateFlags",
    world=BEGIN,
    env=True,
    example="inv pod.create --gpu H100 --ttl 4h",
    rents=True,
)
def create(c, spec):
    """Create a pod that has no work yet.

    Its guard ends it at its limits, whatever else happens. `inv launch --deploy-only` does the same.
    """


@command("scripts.pods.setup", "scripts.pods.flags:OnPodFlags", env=True, example="inv pod.setup")
def setup(c, spec):
    """Make the train environment on a pod.

    The first run then starts at once. It is safe to repeat.
    """


@command("scripts.pods.run", "scripts.pods.flags:RunFlags", env=True, example="inv pod.run --phase sft")
def run(c, spec):
    """Train on an existing pod, to the end; the pod stays.

    Its limits stay in force. For several runs at once, each on GPUs of its own, see inv launch --no-deploy.
    """


@command("scripts.pods.down", "scripts.pods.flags:OnPodFlags", example="inv pod.down")
def down(c, spec):
    """End a pod; return when it is proven to be gone.

    It is ended even if it is working.
    """


@command("scripts.pods.list", "scripts.cli.flags:Output", name="list", example="inv pod.list")
def list_(c, spec):
    """List every pod, those of launches too: price, age, purpose."""


@command("scripts.pods.ssh", "scripts.pods.flags:SshFlags", example="inv ssh brave-otter-3 -- nvidia-smi")
def ssh(c, spec):
    """Open a shell in a run's folder, on its machine.

    `inv ssh RUN -- COMMAND` runs a command there and exits with its code. With --config, plain `ssh RUN` works
    too, with the pod's own key and host key.
    """


@command("scripts.pods.on", "scripts.pods.flags:OnFlags", example="inv on --all -- nvidia-smi")
def on(c, spec):
    """Run a command on many machines at once.

    `inv on PODS -- COMMAND` runs it in each pod's folder, or in the home folder of an own machine. Each line of output
    starts with the name of its machine. The exit code is the worst one: 124 after a timeout, 255 where a machine did
    not answer. Ctrl-C ends it everywhere.
    """


@command("scripts.pods.forward", "scripts.pods.flags:ForwardFlags", example="inv forward brave-otter-3 8000:8000")
def forward(c, spec):
    """Bring a port of a run's machine to this one, on loopback.

    It runs until Ctrl-C. `inv forward RUN TRACKER` shows the page of a tracker that has one.
    """


@command("scripts.pods.sync", "scripts.pods.flags:SyncFlags", example="inv pod.sync --plan")
def sync(c, spec):
    """Send the code to a run's machine again.

    `--plan` shows files and sizes: new, refused and ignored ones.
    """


@command("scripts.pods.pull", "scripts.pods.flags:PullFlags", example="inv pull brave-otter-3")
def pull(c, spec):
    """Copy here what a run has made so far.

    That is its artifacts, logs and verdict.
    """


@command(
    "scripts.pods.apply",
    "scripts.market.flags:ApplyFlags",
    world=BEGIN,
    env=True,
    example="inv apply examples/fleet.yaml --dry-run",
    rents=True,
)
def apply(c, spec):
    """Create and end pods until they match a file.

    Missing pods are created, existing ones are kept, extra ones are ended.
    """
