"""The pack `bill`: where the seconds and the money of a run went, from the request to the proven end."""

from store.packs import Pack

PACK = Pack(
    name="bill",
    about="Divide the seconds and the cost of runs into parts, and compare runs",
    command_flags={"cost": "packs.bill.control.flags:BillFlags"},
    cost_views={"bill": "packs.bill.commands.tables:BillView"},
)
