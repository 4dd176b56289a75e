"""Limits, Landlock and seccomp of this process, by system calls. Standard library only."""

import ctypes
import os
import platform
import resource
import struct
import sys

CPU_S, FILES = 3, 64
# landlock_create_ruleset and so on have the same numbers everywhere.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR, EXECUTE = 1 << 2, 1 << 3, 1 << 0
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI
NET = 0b11  # bind and connect of TCP, from ABI 4
SCOPES = 0b11  # abstract sockets and signals, from ABI 6
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
ALLOW, DENY, KILL, NO_SUCH = 0x7FFF0000, 0x00050001, 0x80000000, 0x00050000 | 38  # DENY: EPERM, NO_SUCH: ENOSYS
CLONE_THREAD = 0x10000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of x86_64 and aarch64; -1 = there is none.
CALLS = {
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "ptrace": (101, 117), "socket": (41, 198), "socketpair": (53, 199),
    "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "memfd_create": (319, 279), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "prlimit64": (302, 261),
    "setrlimit": (160, 164), "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88),
    "chown": (92, -1), "fchownat": (260, 54), "setxattr": (188, 5), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), (435, 435)


def limits(memory_bytes: int) -> None:
    """Bound memory, processor time, files and processes."""
    bounds = {"AS": memory_bytes, "CPU": CPU_S, "FSIZE": 16 << 20, "NOFILE": FILES, "CORE": 0}
    for name, most in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def library() -> list[str]:
    """Return the folders of Python's own library."""
    return [os.path.dirname(os.__file__), os.path.join(sys.exec_prefix, "lib"), "/usr/lib", "/lib", "/lib64"]


def abi() -> int:
    """Return the version of Landlock in this kernel, 0 where there is none."""
    return max(0, ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def no_files(readable: list[str]) -> None:
    """Let only these folders be read from now on, and nothing be written. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = abi()
    rights = RIGHTS[min(version, max(RIGHTS))]
    ruleset = struct.pack("=QQQ", rights, NET if version >= 4 else 0, SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = done(libc.syscall(CREATE_RULESET, ruleset, ctypes.c_size_t(size), 0))
    for path in readable:
        if os.path.isdir(path):
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", READ_FILE | READ_DIR | EXECUTE, folder)
            done(libc.syscall(ADD_RULE, rules, 1, rule, 0))
            os.close(folder)
    done(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    done(libc.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)


def no_calls() -> None:
    """Let the kernel refuse from now on what makes processes, sockets and signals. Raises OSError."""
    machine = platform.machine()
    column = list(ARCHITECTURES).index(machine)
    numbers = sorted({pair[column] for pair in CALLS.values()} - {-1})
    # (code, jump if true, jump if false, value); data: number at 0, architecture at 4, first argument at 16
    load, equal, bits, give = 0x20, 0x15, 0x45, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, ARCHITECTURES[machine]), (give, 0, 0, KILL), (load, 0, 0, 0)]
    if machine == "x86_64":
        steps += [(0x35, 0, 1, 0x40000000), (give, 0, 0, KILL)]  # the numbers of x32
    for number in numbers:
        steps += [(equal, 0, 1, number), (give, 0, 0, DENY)]
    steps += [(equal, 0, 1, CLONE3[column]), (give, 0, 0, NO_SUCH)]
    steps += [(equal, 0, 4, CLONE[column]), (load, 0, 0, 16), (bits, 1, 0, CLONE_THREAD), (give, 0, 0, DENY)]
    steps += [(give, 0, 0, ALLOW), (give, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in steps))
    header = struct.pack("@HP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    done(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    done(libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(header), 0, 0))


def done(result: int) -> int:
    """Return the result of a system call. Raises OSError where it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
