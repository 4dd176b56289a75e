"""The SDK of Lium, `lium.io`."""

from calls import ASKED, done, refuses, until, works
from lium import Config, Lium
from lium.sdk.exceptions import LiumError

client = Lium(Config(api_key=ASKED["key"], base_url=ASKED["url"]))
executor = ASKED["executor"]

works("ls", client.ls, lambda found: executor in [one.id for one in found])
works("gpu_types", client.gpu_types, lambda found: len(found) > 1)
works("get_executor", lambda: client.get_executor(executor), lambda found: found.id == executor)
works("templates", client.templates, lambda found: ASKED["template"] in [one.id for one in found])
works("default_docker_template", lambda: client.default_docker_template(executor), lambda found: found.id)
works("balance", client.balance, lambda found: found > 0)
works("me", client.me, lambda found: found["id"])
works("volumes", client.volumes)
works("ps: none", client.ps, lambda found: found == [])
works(
    "up",
    lambda: client.up(
        executor_id=executor, name="foreign", template_id=ASKED["template"], ssh_keys=[ASKED["public_key"]]
    ),
)
pods = works("ps", client.ps, lambda found: [one.name for one in found] == ["foreign"])
pod = (pods or [None])[0]
works("wait_ready", lambda: client.wait_ready(pod, timeout=60, poll_interval=1), lambda found: found.ssh_cmd)
works("schedule_termination", lambda: client.schedule_termination(pod, termination_time=ASKED["later"]))
works("cancel_scheduled_termination", lambda: client.cancel_scheduled_termination(pod))
works("pod_record", lambda: client.pod_record(pod.id), lambda found: "total" in found)
works("pod_events", lambda: client.pod_events(pod.id), lambda found: isinstance(found, list))
refuses(
    "up: taken",
    lambda: client.up(
        executor_id=executor, name="again", template_id=ASKED["template"], ssh_keys=[ASKED["public_key"]]
    ),
    (LiumError, ValueError),
)
works("events", lambda: client.events(pod_id=pod.id), lambda found: found)
works("down", lambda: client.down(pod))
works("ps: gone", lambda: until(lambda: client.ps() == []))
refuses("down: gone", lambda: client.down(pod), LiumError)
refuses("ps: wrong key", lambda: Lium(Config(api_key="wrong", base_url=ASKED["url"])).ps(), LiumError)
done()
