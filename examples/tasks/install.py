"""Custom task: install a Debian package on every pod, or on the named pods.

./inv --search-root examples/tasks --collection install package htop
./inv --search-root examples/tasks --collection install package htop --on trainer,judge
"""

import shlex

from invoke import task

from infra import connect_all


@task(
    help={"name": "name of the package", "on": "pods, sets, services or pools, separated by commas; default: every pod"}
)
def package(c, name, on=""):
    """Install a Debian package on pods in parallel."""
    with connect_all(*filter(None, on.split(","))) as pods:
        line = f"dpkg -s {shlex.quote(name)} >/dev/null 2>&1 || apt-get install --yes {shlex.quote(name)}"
        pods.run(f"DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND; {line}", hide="out")
        for pod, version in pods.run(f"dpkg-query -W {shlex.quote(name)}", hide=True).items():
            print(f"{pod.name}: {version.stdout.strip()}")
