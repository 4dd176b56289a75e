"""The SDK of RunPod, `runpod`, which uses GraphQL."""

import os

from calls import ASKED, done, refuses, until, works

os.environ["RUNPOD_API_BASE_URL"] = ASKED["url"]
import runpod
from runpod.error import AuthenticationError, QueryError

GPU = "NVIDIA H100 80GB HBM3"
runpod.api_key = ASKED["key"]

works("get_user", runpod.get_user, lambda found: found["id"] and "pubKey" in found)
works("get_gpus", runpod.get_gpus, lambda found: GPU in [one["id"] for one in found])
works("get_gpu", lambda: runpod.get_gpu(GPU), lambda found: found["maxGpuCount"] >= 1 and found["lowestPrice"])
refuses("get_gpu: unknown", lambda: runpod.get_gpu("nothing"), ValueError)
works("get_pods: none", runpod.get_pods, lambda found: found == [])
pod = works(
    "create_pod",
    lambda: runpod.create_pod("foreign", "runpod/pytorch:1", GPU, cloud_type="SECURE", ports="22/tcp", env={"A": "b"}),
    lambda found: found["id"] and found["machine"]["podHostId"],
)
pod_id = (pod or {}).get("id", "none")
works("get_pod", lambda: runpod.get_pod(pod_id), lambda found: found["id"] == pod_id and found["costPerHr"] > 0)
works("get_pods", runpod.get_pods, lambda found: [one["id"] for one in found] == [pod_id])
works("wait", lambda: until(lambda: (runpod.get_pod(pod_id)["runtime"] or {}).get("ports")))
works("stop_pod", lambda: runpod.stop_pod(pod_id), lambda found: found["desiredStatus"] == "EXITED")
works("resume_pod", lambda: runpod.resume_pod(pod_id, 1), lambda found: found["desiredStatus"] == "RUNNING")
refuses("create_pod: no such image", lambda: runpod.create_pod("x", "", GPU), (ValueError, QueryError))
refuses(
    "create_pod: no such data center",
    lambda: runpod.create_pod("x", "a/b:1", GPU, data_center_id="XX-1"),
    QueryError,
    "no longer any",
)
works("terminate_pod", lambda: runpod.terminate_pod(pod_id), lambda found: found is None)
works("get_pods: gone", lambda: until(lambda: runpod.get_pods() == []))
refuses("terminate_pod: gone", lambda: runpod.terminate_pod(pod_id), QueryError)
runpod.api_key = "wrong"
refuses("get_pods: wrong key", runpod.get_pods, AuthenticationError)
done()
