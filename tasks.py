"""The commands. `inv --list` shows them."""

import sys

sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # invoke turns caching off, which slows every start

from invoke import Collection  # noqa: E402

from scripts import data, launch, market, pod, pool, program, project, serve, store, sweep, train  # noqa: E402

program.mend()
namespace = Collection(
    *(
        launch.launch,
        launch.status,
        launch.logs,
        launch.report,
        launch.down,
        launch.stop,
        launch.resume,
        launch.keep_,
        launch.rehearse,
        sweep.sweep,
    ),
    *(data.shard, data.pipeline, data.tree),
    *(train.train, train.fit, train.eval, train.chat, train.export),
    Collection(
        "ckpt", train.ckpt_list, train.ckpt_show, train.ckpt_push, train.ckpt_pull, train.ckpt_verify, train.ckpt_init
    ),
    *(pod.ssh, pod.forward, pod.pull),
    *(pool.hosts, market.offers, market.audit, market.reap, market.cost, market.apply),
    Collection("pod", pod.create, pod.sync, pod.setup, pod.run, pod.down, pod.list_),
    Collection("tokenizer", data.tokenizer, data.tokenizer_eval),
    Collection("pool", pool.list_, pool.up, pool.check, pool.import_),
    Collection(
        "serve",
        *(serve.up, serve.status, serve.scale, serve.down, serve.key, serve.logs, serve.ssh, serve.doctor, serve.bench),
        serve.export,
    ),
    Collection("store", store.gc),
    *(project.config, project.doctor, project.test, project.check),
)
