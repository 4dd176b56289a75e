"""Commands of the core: each typed name with the function and the first line of the help.

    COMMANDS  ->  tasks.py: `scripts.cli.command.add`

The file of a command holds the flags, the help and the function; `inv --list` imports none of these files. The records
of packs list the pack commands.
"""

from collections.abc import Mapping

from store.packs import CommandEntry

COMMANDS: Mapping[str, CommandEntry] = {
    "launch": CommandEntry("scripts.runs.launch:launch", "Train phases or run a job, including all missing steps."),
    "status": CommandEntry("scripts.runs.status:status", "Show every run: state, step and cost."),
    "why": CommandEntry("scripts.runs.why:why", "Explain in ten lines why a run ended, and what to do next."),
    "logs": CommandEntry("scripts.runs.logs:logs", "Print the logs of a run, step by step."),
    "down": CommandEntry("scripts.runs.down:down", "End a run; return when no pod of the run exists or bills."),
    "stop": CommandEntry("scripts.runs.down:stop", "Refuse, because a stopped pod still bills. See `down`."),
    "resume": CommandEntry("scripts.runs.resume:resume", "Continue a run from the newest complete checkpoint."),
    "keep": CommandEntry("scripts.runs.keep:keep", "Follow a run, and recover the run when its pod dies."),
    "rehearse": CommandEntry("scripts.runs.rehearse:rehearse", "Launch in a simulated market, free of charge."),
    "supervisor": CommandEntry(
        "scripts.runs.supervisor:supervisor", "Show the supervisor, the process that follows runs."
    ),
    "shard": CommandEntry("scripts.data.shard:shard", "Write FineWeb, or other text, as shards with a manifest."),
    "train": CommandEntry("scripts.models.train:train", "Train in this terminal, without a pod."),
    "fit": CommandEntry("scripts.models.fit:fit", "Show which GPUs a recipe fits on, and with which batch."),
    "eval": CommandEntry("scripts.models.eval:eval", "Measure models; each result has a confidence interval."),
    "chat": CommandEntry("scripts.models.chat:chat", "Talk to a model."),
    "export": CommandEntry(
        "scripts.models.export:export", "Write a model as a Hugging Face folder, or as a GGUF file."
    ),
    "ssh": CommandEntry("scripts.pods.ssh:ssh", "Open a shell in a run's folder, on its machine."),
    "on": CommandEntry("scripts.pods.on:on", "Run a command on many machines at once."),
    "forward": CommandEntry("scripts.pods.forward:forward", "Forward a port of a run's machine to this machine."),
    "pull": CommandEntry("scripts.pods.pull:pull", "Copy a run's artifacts and logs to this machine."),
    "hosts": CommandEntry("scripts.pools.hosts:hosts", "List machines that failed and are no longer offered."),
    "offers": CommandEntry("scripts.market.offers:offers", "List machines that can be rented now, by price."),
    "audit": CommandEntry("scripts.market.audit:audit", "List every machine in every account, with its owner."),
    "reap": CommandEntry("scripts.market.reap:reap", "Clean up now: adopt lost pods, and end overdue pods."),
    "cost": CommandEntry("scripts.market.cost:cost", "Show past costs, or estimate the cost of planned work."),
    "apply": CommandEntry("scripts.pods.apply:apply", "Create and end pods until they match a file."),
    "init": CommandEntry("scripts.project.init:init", "Ask for keys and a store, check them, and write .env."),
    "config": CommandEntry("scripts.project.config:config", "Show every setting, with value and source."),
    "docs": CommandEntry("scripts.project.docs:docs", "Search the documentation, and show paragraphs that answer."),
    "doctor": CommandEntry("scripts.project.doctor:doctor", "Check this machine, own machines or vendor accounts."),
    "test": CommandEntry("scripts.project.test:test", "Run the tests in a separate environment."),
    "check": CommandEntry("scripts.project.check:check", "Run format, lint, types, import floors and tests."),
    "ckpt.list": CommandEntry("scripts.checkpoints.list:list_", "List every checkpoint, published or of a live run."),
    "ckpt.show": CommandEntry("scripts.checkpoints.show:show", "Show what a checkpoint holds."),
    "ckpt.status": CommandEntry("scripts.checkpoints.status:status", "Show stored and pending uploads of runs."),
    "ckpt.push": CommandEntry(
        "scripts.checkpoints.push:push", "Copy artifacts to a different store, and verify the copies."
    ),
    "ckpt.pull": CommandEntry(
        "scripts.checkpoints.pull:pull", "Download a checkpoint from a store, and verify the copy."
    ),
    "ckpt.verify": CommandEntry("scripts.checkpoints.verify:verify", "Verify every byte of checkpoints."),
    "ckpt.init": CommandEntry("scripts.checkpoints.init:init", "Create the bucket, repository or folder of a store."),
    "pod.create": CommandEntry("scripts.pods.create:create", "Create a pod without work."),
    "pod.sync": CommandEntry("scripts.pods.sync:sync", "Send the code to a run's machine again."),
    "pod.setup": CommandEntry("scripts.pods.setup:setup", "Create the training environment on a pod."),
    "pod.run": CommandEntry("scripts.pods.run:run", "Train on an existing pod; the pod stays afterwards."),
    "pod.down": CommandEntry("scripts.pods.down:down", "End a pod; return when the pod is proven to be gone."),
    "pod.list": CommandEntry("scripts.pods.list:list_", "List every pod, also of launches: price, age, purpose."),
    "tokenizer.train": CommandEntry(
        "scripts.data.tokenizer_train:train", "Train a byte-level BPE tokenizer on text shards.", is_default=True
    ),
    "tokenizer.eval": CommandEntry(
        "scripts.data.tokenizer_eval:eval", "Measure how few tokens a tokenizer needs for text."
    ),
    "pool.list": CommandEntry("scripts.pools.list:list_", "List own machines: GPUs, price, and the run on each."),
    "pool.up": CommandEntry("scripts.pools.up:up", "Inspect every own machine, and record its hardware."),
    "pool.check": CommandEntry("scripts.pools.check:check", "Check that own machines can be reached."),
    "pool.import": CommandEntry(
        "scripts.pools.import_hosts:import_", "Add machines that Terraform made to the inventory."
    ),
    "serve.up": CommandEntry("scripts.services.up:up", "Serve a model behind one address, or update a service."),
    "serve.status": CommandEntry(
        "scripts.services.status:status", "Show services: address, ready replicas, state of each."
    ),
    "serve.scale": CommandEntry("scripts.services.scale:scale", "Change the number of replicas of a service."),
    "serve.down": CommandEntry("scripts.services.down:down", "End a service; return when no replica runs."),
    "serve.key": CommandEntry("scripts.services.key:key", "Create, list or revoke the API keys of a service."),
    "serve.logs": CommandEntry(
        "scripts.services.logs:logs", "Print the log of requests, of a replica or the controller."
    ),
    "serve.ssh": CommandEntry("scripts.services.ssh:ssh", "Open a shell in a replica's folder, on its machine."),
    "serve.doctor": CommandEntry("scripts.services.doctor:doctor", "Show problems of a service, and how to fix them."),
    "serve.bench": CommandEntry(
        "scripts.services.bench:bench", "Send requests to a service at a fixed rate, and measure."
    ),
    "serve.export": CommandEntry("scripts.services.export:export", "Write a service file for `sky serve up`."),
    "store.gc": CommandEntry("scripts.store.gc:gc", "Remove old artifacts without references."),
}
