"""The pack `agents`: an allowance of money and time for an agent, who gets tools and no keys."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="agents",
    about="Give an agent money and tools, and never the keys",
    commands={
        "allow": CommandEntry(
            where="packs.agents.commands.allow:allow", summary="Give an agent money and a time, and never the keys."
        ),
        "mcp": CommandEntry(
            where="packs.agents.commands.mcp:mcp",
            summary="Serve the tools of an allowance to an agent, by MCP.",
        ),
        "skill": CommandEntry(
            where="packs.agents.commands.skill:skill",
            summary="Show or copy the rules for coding agents as a skill.",
        ),
    },
    settings="packs.agents.control.settings:AgentsSettings",
    run_groups={"allowance": "packs.agents.control.groups:Allowances"},
)
