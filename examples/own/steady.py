"""Custom machine filter: hosts with a high reliability score and a recent NVIDIA driver.

SLIPWAY_EXTENSIONS=examples/own/steady.py ./inv offers --provider lium --machine-filter steady
"""


def filter(offer, facts):
    """Return True to allow a machine. `facts`: the vendor's fields, shown by `inv offers --json` under `raw`."""
    score = facts.get("reliability_score") or 0
    driver = ((facts.get("specs") or {}).get("gpu") or {}).get("driver") or "0"
    return score >= 97 and not facts.get("frequent_rent_failures") and int(driver.split(".")[0]) >= 570
