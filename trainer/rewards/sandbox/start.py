"""`python -I -S start.py ROLE JAIL MEMORY_BYTES`: a process that shuts itself in, then works.

ROLE: answer or check; JAIL: landlock, bubblewrap or none. The file is run by its path, with standard input and output
as its pipes to the trainer. Standard library only.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from trainer.rewards.sandbox import answering, checking, kernel
from trainer.rewards.sandbox.lines import JsonPipe


def main() -> None:
    """Shut this process in, then answer questions until they end."""
    del sys.path[0]
    role, jail, memory_bytes = sys.argv[1:4]
    lines = JsonPipe(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    for one in (0, 1, 2):
        os.dup2(null, one)
    kernel.limits(int(memory_bytes))
    if jail == "landlock":
        kernel.no_files(kernel.library())
        kernel.no_calls()
    try:
        (answering.answer if role == "answer" else checking.check)(lines)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
