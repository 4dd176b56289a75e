"""The control host as an always-on machine, for plan suggestions and the output of `inv status` on the host."""

import time
from collections.abc import Callable

from infra.installation import this_machine
from infra.settings import Settings
from infra.units import duration
from packs.control_host.control.host_paths import NOBODY, HostPaths
from store import untrusted_input
from store.packs import AlwaysOn


class ControlHostMachine(AlwaysOn):
    suggestion = "An always-on machine of yours can follow the run: inv control.up HOST"
    end = "an always-on machine (inv control.up), which also works with the laptop off"
    letter = "c"
    answer = "let an always-on machine follow the run instead of the laptop"

    def this_machine_name(self, settings: Settings) -> str:
        return "this control host" if HostPaths.from_settings(settings).is_control_host else ""

    def this_machine_status(self, settings: Settings) -> str:
        places = HostPaths.for_journal(settings.state_file)
        if not places.is_control_host:
            return ""
        last = untrusted_input.mapping(places.started.read_bytes())
        ago = duration(max(0.0, time.time() - float(last["at"])))
        return (
            f"on the control host {this_machine().host}, alive now; keepers and controllers were started "
            f"{ago} ago; after a boot: {places.read_about().get('boot', NOBODY)}"
        )

    def setup_hint(self, again: Callable[..., str]) -> str:
        there = again("--control", "HOST")
        return f"set up the machine as a control host once: ./inv control.up HOST; then launch on that host: {there}"
