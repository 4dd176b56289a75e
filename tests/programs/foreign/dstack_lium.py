"""The API module for Lium of dstack."""

from calls import ASKED, done, refuses, until, works
from dstack._internal.core.backends.lium import api_client

api_client.API_URL = ASKED["url"]
client, refused = api_client.LiumAPIClient(ASKED["key"]), api_client.LiumAPIError
executor = ASKED["executor"]


def rent(key, executor_id=executor, **more):
    body = {
        "pod_name": "foreign",
        "template_id": ASKED["template"],
        "user_public_key": [ASKED["public_key"]],
        "termination_hours": 1,
        **more,
    }
    return client.rent_executor(executor_id, body, key)


works("get_user", client.get_user, lambda found: found["id"])
works("get_version", client.get_version, lambda found: "features" in found)
works("get_templates", client.get_templates, lambda found: ASKED["template"] in [one["id"] for one in found])
works("get_pods: none", client.get_pods, lambda found: found == [])
works("get_account_events", client.get_account_events, lambda found: isinstance(found, list))
pod = works("rent_executor", lambda: rent("a" * 16), lambda found: found["pod_id"])
works("rent_executor: the same key again", lambda: rent("a" * 16), lambda found: found["pod_id"] == pod["pod_id"])
pods = works("get_pods", client.get_pods, lambda found: [one["pod_name"] for one in found] == ["foreign"])
pod_id = (pods or [{}])[0].get("id", "none")
works("get_pod", lambda: client.get_pod(pod_id), lambda found: found["id"] == pod_id)
works("wait", lambda: until(lambda: client.get_pod(pod_id)["status"] == "RUNNING"))
refuses("rent_executor: taken", lambda: rent("b" * 16), refused)
refuses("rent_executor: unknown", lambda: rent("c" * 16, "00000000-0000-4000-8000-000000000000"), refused)
works("delete_pod", lambda: client.delete_pod(pod_id))
works("get_pod: gone", lambda: until(lambda: client.get_pod(pod_id) is None))
works(
    "get_account_events: gone",
    client.get_account_events,
    lambda found: {one["pod_name"] for one in found} == {"foreign"} and found[0]["pod_id"] == pod_id,
)
works("delete_pod: gone", lambda: client.delete_pod(pod_id))
works("get_volumes", client.get_volumes)
works(
    "get_volume: none", lambda: client.get_volume("00000000-0000-4000-8000-000000000000"), lambda found: found is None
)
refuses("get_pods: wrong key", lambda: api_client.LiumAPIClient("wrong").get_pods(), refused, "401")
done()
