"""The pack `bill`: where the seconds and the money of a run went, from the request to the proven end."""

from store.packs import Pack

PACK = Pack(
    name="bill",
    about="Divide the time and the cost of a run into parts",
    command_flags={"cost": "packs.bill.control.flags:BillFlags"},
    cost_views={"bill": "packs.bill.commands.tables:BillView"},
)
