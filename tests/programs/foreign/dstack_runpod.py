"""The API module for RunPod of dstack: REST v2, and GraphQL for spot."""

from calls import ASKED, done, refuses, until, works
from dstack._internal.core.backends.runpod import api_client
from dstack._internal.core.errors import BackendInvalidCredentialsError

api_client.API_GRAPHQL_URL, api_client.API_V2_URL = f"{ASKED['url']}/graphql", f"{ASKED['url']}/v2"
GPU = "NVIDIA H100 80GB HBM3"
client = api_client.RunpodApiClient(ASKED["key"])
refused = api_client.RunpodV2ClientError


def create(**more):
    words = {
        "name": "foreign",
        "cloud": "SECURE",
        "gpu_type_id": GPU,
        "gpu_count": 1,
        "container_disk_in_gb": 20,
        "image_name": "runpod/pytorch:1",
        "entrypoint": ["/bin/sh"],
        "cmd": ["-c", "sleep 1"],
        "ports": ["22/tcp"],
        "env": {"A": "b"},
    }
    return client.create_pod(**{**words, **more})


works("validate_api_key", client.validate_api_key, lambda found: found is True)
pod = works("create_pod", create, lambda found: found["id"] and found["status"] == "PROVISIONING")
pod_id = (pod or {}).get("id", "none")
works("get_pod", lambda: client.get_pod(pod_id), lambda found: found["id"] == pod_id)
works("wait", lambda: until(lambda: client.get_pod(pod_id)["status"] == "RUNNING"))
works("terminate_pod", lambda: client.terminate_pod(pod_id), lambda found: found is True)
works("get_pod: gone", lambda: until(lambda: client.get_pod(pod_id) is None))
works("terminate_pod: gone", lambda: client.terminate_pod(pod_id), lambda found: found is False)
refuses("create_pod: no such GPU", lambda: create(gpu_type_id="nothing"), refused, "no longer any instances")
refuses("create_pod: no such volume", lambda: create(network_volume_id="none", volume_mount_path="/x"), refused, "404")
refuses("create_pod: more memory than any has", lambda: create(min_memory_in_gb_per_gpu=9000), refused, "no longer any")
works(
    "create_pod: bounds on CPUs and memory",
    lambda: client.terminate_pod(create(min_cpu_count_per_gpu=1, min_memory_in_gb_per_gpu=1)["id"]),
    lambda found: found is True,
)
spot = works(
    "create_gpu_pod_graphql: spot",
    lambda: client.create_gpu_pod_graphql("spot", "runpod/pytorch:1", GPU, "SECURE", bid_per_gpu=2.0),
    lambda found: found["id"],
)
works("get_pod: spot", lambda: client.get_pod(spot["id"]), lambda found: found["id"] == spot["id"])
works("terminate_pod: spot", lambda: client.terminate_pod(spot["id"]), lambda found: found is True)
refuses(
    "create_gpu_pod_graphql: a bid that is too low",
    lambda: client.create_gpu_pod_graphql("spot", "a/b:1", GPU, "SECURE", bid_per_gpu=0.01),
    api_client.RunpodGraphqlClientError,
    "below the minimum",
)
works("get_network_volume: none", lambda: client.get_network_volume("none"), lambda found: found is None)
works("list_container_registry_credentials", client.list_container_registry_credentials, lambda found: found == [])
other = api_client.RunpodApiClient("wrong")
works("validate_api_key: wrong", other.validate_api_key, lambda found: found is False)
refuses("get_pod: wrong key", lambda: other.get_pod("x"), BackendInvalidCredentialsError)
done()
