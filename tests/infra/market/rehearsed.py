"""A user with a separate rehearsal for all commands, and orders in each vendor's own format."""

import json
from pathlib import Path

import httpx

from infra.ledger.journal import Journal
from infra.rehearsal import attach
from infra.settings import Settings
from tests.processes import command_line
from tests.world import World

ROOT = Path(__file__).parents[3]
KINDS = {"runpod": "L40S", "lium": "RTX4090", "shadeform": "L40"}
ORDERS = {
    "runpod": ("/v2/pods", {"image": "i", "gpu": {"id": "NVIDIA L40S", "count": 1}}),
    "shadeform": ("/instances/create", {"cloud": "hyperstack", "region": "montreal-canada-2",
                                        "shade_instance_type": "L40", "shade_cloud": True}),
    "lium": ("/executors/{}/rent", {"user_public_key": ["ssh-ed25519 AAAA somebody"]}),
}  # fmt: skip


class Rehearsal:
    """A user with a rehearsal: their commands, and their world, started by the first `inv offers`."""

    def __init__(self, folder: Path) -> None:
        real = {f"{name.upper()}_API_KEY": "a-real-key" for name in KINDS}
        self.user = World(folder, real)
        self.base = attach.worlds_folder(folder / "state" / "journal.db")
        self.client = httpx.Client(timeout=20, trust_env=False)

    @property
    def world(self) -> attach.Running:
        return attach.find(self.base)

    @property
    def settings(self) -> Settings:
        return Settings.load(ROOT, environ={"SLIPWAY_REHEARSAL": str(self.world.folder)})

    def inv(self, *words, code=0):
        return self.user.inv(*words, "--rehearse", code=code)

    def json(self, *words, code=0):
        return json.loads(self.inv(*words, "--json", code=code))

    def fails(self, *words):
        """Return the exit code and the stderr of a failing command."""
        process = self.user.run(*words, "--rehearse")
        err = process.stderr
        return process.returncode, err

    def journal(self):
        return Journal.open(self.settings.state_file, self.user.environ)

    def order(self, vendor, name):
        """Order a machine in the vendor's own format; return its id."""
        (path, body), about = ORDERS[vendor], self.world.about[vendor]
        header = {"Authorization": f"Bearer {about['key']}"} if vendor == "runpod" else {"X-API-KEY": about["key"]}
        if vendor == "lium":
            hosts = self.client.get(about["url"] + "/executors", headers=header).json()
            host = min((one for one in hosts if "4090" in one["machine_name"]), key=lambda one: one["price_per_gpu"])
            templates = self.client.get(about["url"] + "/templates", headers=header).json()
            template = next(one for one in templates if not one["startup_commands"])
            path, body = path.format(host["id"]), {**body, "template_id": template["id"]}
        named = "pod_name" if vendor == "lium" else "name"
        answer = self.client.post(about["url"] + path, json={**body, named: name}, headers=header)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["pod_id" if vendor == "lium" else "id"]

    def truth(self):
        return {pod["id"]: pod for pod in self.world.truth()["pods"]}

    def supervisors(self):
        """Return the process ids of this user's supervisors, including a supervisor without a lease yet."""
        return {pid for pid in self.user.processes() if b"scripts.runs.supervisor" in command_line(pid)}

    def running(self):
        return {name for name, pod in self.truth().items() if pod["state"] in ("booting", "running")}
