"""Commands of the core: each typed name with the function and the first line of the help.

    COMMANDS  ->  tasks.py: `scripts.cli.command.add`

The file of a command holds the flags, the help and the function; `inv --list` imports none of these files. The records
of packs list the pack commands.
"""

from collections.abc import Mapping

from store.packs import CommandEntry

COMMANDS: Mapping[str, CommandEntry] = {
    "launch": CommandEntry("scripts.runs.launch:launch", "Train one or more phases, with all they need, to the end."),
    "status": CommandEntry("scripts.runs.status:status", "Show every run: its state, its step, its cost."),
    "why": CommandEntry("scripts.runs.why:why", "Explain in ten lines what happened to a run, and what to do."),
    "logs": CommandEntry("scripts.runs.logs:logs", "Print what a run has written, step by step."),
    "report": CommandEntry(
        "scripts.runs.report:report", "Write a page about a run: curves, cost, what the model said."
    ),
    "down": CommandEntry("scripts.runs.down:down", "End a run; return when nothing of it is left or bills."),
    "stop": CommandEntry("scripts.runs.down:stop", "Refuse: a stopped pod goes on billing. See `down`."),
    "resume": CommandEntry("scripts.runs.resume:resume", "Go on with a run from its newest whole checkpoint."),
    "keep": CommandEntry("scripts.runs.keep:keep", "Follow a run, and bring it back when its pod dies."),
    "rehearse": CommandEntry("scripts.runs.rehearse:rehearse", "Launch in a simulated market that costs nothing."),
    "supervisor": CommandEntry(
        "scripts.runs.supervisor:supervisor", "Show the process that looks after runs and services."
    ),
    "shard": CommandEntry("scripts.data.shard:shard", "Write FineWeb, or other text, as shards with a manifest."),
    "train": CommandEntry("scripts.models.train:train", "Train in this terminal, without a pod."),
    "fit": CommandEntry("scripts.models.fit:fit", "Show which GPUs a recipe fits on, and with which batch."),
    "eval": CommandEntry("scripts.models.eval:eval", "Measure models; each figure has an interval."),
    "chat": CommandEntry("scripts.models.chat:chat", "Talk to a model."),
    "export": CommandEntry(
        "scripts.models.export:export", "Write a model as a Hugging Face folder, or as a GGUF file."
    ),
    "ssh": CommandEntry("scripts.pods.ssh:ssh", "Open a shell in a run's folder, on its machine."),
    "on": CommandEntry("scripts.pods.on:on", "Run a command on many machines at once."),
    "forward": CommandEntry(
        "scripts.pods.forward:forward", "Bring a port of a run's machine to this one, on loopback."
    ),
    "pull": CommandEntry("scripts.pods.pull:pull", "Copy here what a run has made so far."),
    "hosts": CommandEntry("scripts.pools.hosts:hosts", "List machines that failed and are no longer offered."),
    "offers": CommandEntry("scripts.market.offers:offers", "List what can be rented now, by price."),
    "audit": CommandEntry("scripts.market.audit:audit", "List every machine in every account, and whose it is."),
    "reap": CommandEntry("scripts.market.reap:reap", "Clean up now: adopt lost pods, end those that are due."),
    "cost": CommandEntry("scripts.market.cost:cost", "Show what was spent, or estimate what work would cost."),
    "apply": CommandEntry("scripts.pods.apply:apply", "Create and end pods until they match a file."),
    "init": CommandEntry("scripts.project.init:init", "Ask for keys and a store, check them, and write .env."),
    "config": CommandEntry("scripts.project.config:config", "Show every setting, its value and where it came from."),
    "doctor": CommandEntry("scripts.project.doctor:doctor", "Show what this machine, own machines or an account lack."),
    "test": CommandEntry("scripts.project.test:test", "Run the tests, in an environment of their own."),
    "check": CommandEntry("scripts.project.check:check", "Run format, lint, types, import floors and tests."),
    "ckpt.list": CommandEntry("scripts.checkpoints.list:list_", "List every checkpoint, published or of a live run."),
    "ckpt.show": CommandEntry("scripts.checkpoints.show:show", "Show what a checkpoint holds."),
    "ckpt.status": CommandEntry(
        "scripts.checkpoints.status:status", "Show what of runs is in their store, and what is pending."
    ),
    "ckpt.push": CommandEntry(
        "scripts.checkpoints.push:push", "Copy artifacts into another store; read each back there."
    ),
    "ckpt.pull": CommandEntry("scripts.checkpoints.pull:pull", "Bring a checkpoint here from a store, verified."),
    "ckpt.verify": CommandEntry("scripts.checkpoints.verify:verify", "Read every byte of checkpoints, and compare."),
    "ckpt.init": CommandEntry("scripts.checkpoints.init:init", "Make the bucket, repository or folder of a store."),
    "pod.create": CommandEntry("scripts.pods.create:create", "Create a pod that has no work yet."),
    "pod.sync": CommandEntry("scripts.pods.sync:sync", "Send the code to a run's machine again."),
    "pod.setup": CommandEntry("scripts.pods.setup:setup", "Make the train environment on a pod."),
    "pod.run": CommandEntry("scripts.pods.run:run", "Train on an existing pod, to the end; the pod stays."),
    "pod.down": CommandEntry("scripts.pods.down:down", "End a pod; return when it is proven to be gone."),
    "pod.list": CommandEntry("scripts.pods.list:list_", "List every pod, those of launches too: price, age, purpose."),
    "tokenizer.train": CommandEntry(
        "scripts.data.tokenizer_train:train", "Train a byte-level BPE tokenizer on text shards.", is_default=True
    ),
    "tokenizer.eval": CommandEntry(
        "scripts.data.tokenizer_eval:eval", "Measure how few tokens a tokenizer makes of text."
    ),
    "pool.list": CommandEntry("scripts.pools.list:list_", "List own machines: GPUs, price, and which run has each."),
    "pool.up": CommandEntry("scripts.pools.up:up", "Look at every own machine, and remember what it has."),
    "pool.check": CommandEntry("scripts.pools.check:check", "Check that own machines can be reached."),
    "pool.import": CommandEntry(
        "scripts.pools.import_hosts:import_", "Add machines that Terraform made to the inventory."
    ),
    "serve.up": CommandEntry("scripts.services.up:up", "Serve a model behind one address, or update a service."),
    "serve.status": CommandEntry(
        "scripts.services.status:status", "Show services: address, ready replicas, state of each."
    ),
    "serve.scale": CommandEntry("scripts.services.scale:scale", "Change how many replicas a service has."),
    "serve.down": CommandEntry("scripts.services.down:down", "End a service; return when nothing of it runs."),
    "serve.key": CommandEntry("scripts.services.key:key", "Make an API key, or list whose keys there are."),
    "serve.logs": CommandEntry(
        "scripts.services.logs:logs", "Print the requests, or an engine's or the controller's log."
    ),
    "serve.ssh": CommandEntry("scripts.services.ssh:ssh", "Open a shell in a replica's folder, on its machine."),
    "serve.doctor": CommandEntry("scripts.services.doctor:doctor", "Say what is wrong with a service, and what to do."),
    "serve.bench": CommandEntry("scripts.services.bench:bench", "Put load on a service at a given rate, and measure."),
    "serve.export": CommandEntry("scripts.services.export:export", "Write a service file for `sky serve up`."),
    "store.gc": CommandEntry("scripts.store.gc:gc", "Remove old artifacts that nothing refers to."),
}
