"""The commands. `inv --list` shows them."""

import sys

sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # invoke turns caching off, which slows every start

from invoke import Collection  # noqa: E402

from scripts.checkpoints import tasks as checkpoints  # noqa: E402
from scripts.cli import command, invoke_patch  # noqa: E402
from scripts.data import tasks as data  # noqa: E402
from scripts.market import tasks as market  # noqa: E402
from scripts.models import tasks as models  # noqa: E402
from scripts.pods import tasks as pods  # noqa: E402
from scripts.pools import tasks as pools  # noqa: E402
from scripts.project import tasks as project  # noqa: E402
from scripts.runs import tasks as runs  # noqa: E402
from scripts.services import tasks as services  # noqa: E402
from scripts.store import tasks as store  # noqa: E402

invoke_patch.mend()
namespace = Collection(
    *(
        runs.launch,
        runs.status,
        runs.why,
        runs.logs,
        runs.report,
        runs.down,
        runs.stop,
        runs.resume,
        runs.keep_,
        runs.rehearse,
    ),
    runs.supervisor,
    data.shard,
    *(models.train, models.fit, models.eval, models.chat, models.export),
    Collection(
        "ckpt",
        *(
            checkpoints.ckpt_list,
            checkpoints.ckpt_show,
            checkpoints.ckpt_status,
            checkpoints.ckpt_push,
            checkpoints.ckpt_pull,
        ),
        *(checkpoints.ckpt_verify, checkpoints.ckpt_init),
    ),
    *(pods.ssh, pods.on, pods.forward, pods.pull),
    *(pools.hosts, market.offers, market.audit, market.reap, market.cost, pods.apply),
    Collection("pod", pods.create, pods.sync, pods.setup, pods.run, pods.down, pods.list_),
    Collection("tokenizer", data.tokenizer, data.tokenizer_eval),
    Collection("pool", pools.list_, pools.up, pools.check, pools.import_),
    Collection(
        "serve",
        *(services.up, services.status, services.scale, services.down, services.key, services.logs, services.ssh),
        *(services.doctor, services.bench, services.export),
    ),
    Collection("store", store.gc),
    *(project.init, project.config, project.doctor, project.test, project.check),
)
command.add_packs(namespace)
