"""The pack `shard_engines`: text shards by many machines under an engine of their own."""

from store.packs import Pack

PACK = Pack(
    name="shard_engines",
    about="Shard text on a Ray cluster",
    settings="packs.shard_engines.control.settings:ShardEngineSettings",
    shard_engines={"ray": "packs.shard_engines.data.drive:on_ray"},
)
