"""SkyPilot's module for Shadeform."""

import requests
from calls import ASKED, done, refuses, until, works
from sky.provision.shadeform import shadeform_utils as api

api.SHADEFORM_API_BASE, api.get_api_key = ASKED["url"], lambda: ASKED["key"]
wanted = {**ASKED["type"], "name": "foreign", "ssh_key_id": ""}

works("get_instances: none", api.get_instances, lambda found: found["instances"] == [])
works("get_ssh_keys: none", api.get_ssh_keys, lambda found: found["ssh_keys"] == [])
key = works("add_ssh_key", lambda: api.add_ssh_key("mine", ASKED["public_key"]), lambda found: found["id"])
works("get_ssh_keys", api.get_ssh_keys, lambda found: [one["name"] for one in found["ssh_keys"]] == ["mine"])
wanted["ssh_key_id"] = (key or {}).get("id", "")
made = works("create_instance", lambda: api.create_instance(wanted), lambda found: found["id"])
one = (made or {}).get("id", "none")
works("get_instance_info", lambda: api.get_instance_info(one), lambda found: found["id"] == one)
works("get_instances", api.get_instances, lambda found: [row["id"] for row in found["instances"]] == [one])
works("wait", lambda: until(lambda: api.get_instance_info(one)["status"] == "active"))
works("get_instance_info: address", lambda: api.get_instance_info(one), lambda found: found["ip"] and found["ssh_user"])
refuses(
    "create_instance: unknown type",
    lambda: api.create_instance({**wanted, "shade_instance_type": "nothing"}),
    requests.HTTPError,
)
refuses("add_ssh_key: no key", lambda: api.add_ssh_key("other", "nothing"), requests.HTTPError, "400")
works("delete_instance", lambda: api.delete_instance(one), lambda found: found == {})
works("get_instances: gone", lambda: until(lambda: api.get_instances()["instances"] == []))
refuses("get_instance_info: gone", lambda: api.get_instance_info(one), requests.HTTPError, "404")
refuses("get_instance_info: unknown", lambda: api.get_instance_info("nothing"), requests.HTTPError)
ASKED["key"] = "wrong"
refuses("get_instances: wrong key", api.get_instances, requests.HTTPError, "401")
done()
