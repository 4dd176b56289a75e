"""Custom task: download a folder of a pod as one archive.

./inv --search-root examples/tasks --collection home archive trainer logs
"""

import shlex
from pathlib import PurePosixPath

from invoke import task

from infra import connect


@task(positional=["pod", "folder"], help={"pod": "name of the pod", "folder": "in the pod's own folder, or absolute"})
def archive(c, pod, folder):
    """Pack a folder of a pod and download the archive as POD-FOLDER.tar.gz."""
    with connect(pod) as there:
        source = PurePosixPath(there.folder, folder)
        draft = there.run("mktemp", hide=True).stdout.strip()
        try:
            where, name = shlex.quote(str(source.parent)), shlex.quote(source.name)
            there.run(f"tar -czf {draft} -C {where} -- {name}")
            print(there.get(draft, f"{there.name}-{source.name}.tar.gz", preserve_mode=False).local)
        finally:
            there.run(f"rm -f {draft}")
