"""Run a command without Landlock and namespaces of the kernel, as in a strict container.

python -m tests.programs.without_sandbox COMMAND...
"""

import ctypes
import os
import platform
import struct
import sys

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ERRNO
EPERM, ENOSYS = 1, 38
UNSHARE, CLONE = {"x86_64": (272, 56), "aarch64": (97, 220)}[platform.machine()]
CLONE3, LANDLOCK = 435, (444, 445, 446)
NAMESPACES = 0x7E020000  # CLONE_NEW*


def program() -> list[tuple[int, int, int, int]]:
    """Return the filter: (code, jump if true, jump if false, operand) of each instruction."""
    rows = [(LOAD, 0, 0, NUMBER)]
    for number, error in ((UNSHARE, EPERM), (CLONE3, ENOSYS), *((one, ENOSYS) for one in LANDLOCK)):
        rows += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | error)]
    rows += [(EQUAL, 0, 3, CLONE), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NAMESPACES)]
    return [*rows, (RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW)]


def main() -> None:
    code = b"".join(struct.pack("HBBI", *row) for row in program())
    held = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program()), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "the filter was refused")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
