"""Malformed rows that a vendor, a user of the account or the owner of a host may write."""

from typing import Any

HOSTS = ("gpu_7.example.net", "10.0.0.7%ens3", "::1", "-oProxyCommand=x", "a b", "x" * 300, "")
USERS = ("Ubuntu", "cloud.user", "-l", "ro$t", "root;id")
PORTS = (70000, 0, -1, "70000", "ssh", 22.5)
PRICES = (None, "57.5", "", "free", -1, "-0.01", 1e300, [5], {"usd": 5}, True, "NaN", "9" * 6000)
WORDS = (None, 5, "", ["RUNNING"], {"now": "RUNNING"}, True, "x" * 5000, "\x1b[2J")
NO_ROWS = (None, 5, "row", True, [], {}, [{"id": "x"}], {"id": None}, {"id": ""}, {"id": ["x"], "name": 7})
UP = {"shadeform": "active", "lium": "RUNNING", "runpod": "RUNNING"}
PRICE = {"shadeform": "hourly_price", "lium": "price", "runpod": "cost"}
NAME = {"shadeform": "name", "lium": "pod_name", "runpod": "name"}
CREATED = {"shadeform": "created_at", "lium": "created_at", "runpod": "createdAt"}


def way(vendor: str, user: Any = "root", host: Any = "203.0.113.9", port: Any = 22) -> dict[str, Any]:
    """Return a running machine at this address."""
    told = {
        "shadeform": {"ip": host, "ssh_user": user, "ssh_port": port},
        "lium": {"ssh_connect_cmd": f"ssh {user}@{host} -p {port}"},
        "runpod": {"ssh": {"proxy": None, "direct": {"host": host, "port": port, "username": user}}},
    }
    return {"status": UP[vendor], **told[vendor]}


def oddities(vendor: str) -> list[dict[str, Any]]:
    """Return malformed rows of a vendor, each with one malformed value; the name still has our mark."""
    return [
        *(way(vendor, host=host) for host in HOSTS),
        *(way(vendor, user=user) for user in USERS),
        *(way(vendor, port=port) for port in PORTS),
        *({PRICE[vendor]: price} for price in PRICES),
        *({"status": word} for word in WORDS),
        *({CREATED[vendor]: word} for word in (*WORDS, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59")),
        *({"ssh": word, "ssh_connect_cmd": word, "ip": word, "tags": word, "env": word} for word in WORDS),
        *({"tags": [word], "env": {"SLIPWAY_POD": word, "SLIPWAY_RUN": word}} for word in WORDS),
        *({"auto_delete": word, "removal_scheduled_at": word, "cost_estimate": word} for word in WORDS),
        *({"auto_delete": {"date_threshold": word, "spend_threshold": word}} for word in WORDS),
    ]


def strangers(vendor: str) -> list[Any]:
    """Return malformed rows of foreign machines."""
    name = NAME[vendor]
    odd = [{"id": f"odd-{number}", name: f"theirs-{number}", **one} for number, one in enumerate(oddities(vendor))]
    return [*NO_ROWS, *odd, {"id": "no-name"}, {"id": "odd-name", name: ["theirs"]}]
