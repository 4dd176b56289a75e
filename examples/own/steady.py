"""A filter of your own: hosts whose vendor says that they seldom fail, with a driver that is new enough.

SLIPWAY_EXTENSIONS=examples/own/steady.py ./inv offers --provider lium --machine-filter steady
"""


def filter(offer, facts):
    """Return True for a machine that may be rented. `facts`: as `inv offers --json` shows them under `raw`."""
    score = facts.get("reliability_score") or 0
    driver = ((facts.get("specs") or {}).get("gpu") or {}).get("driver") or "0"
    return score >= 97 and not facts.get("frequent_rent_failures") and int(driver.split(".")[0]) >= 570
