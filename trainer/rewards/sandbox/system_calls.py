"""System calls that an answer may make, as a seccomp program; the program refuses all other calls.

The module turns an architecture and a process id into the bytes of a BPF program. The program filters calls with
dangerous variants by argument: clone creates threads but no processes, open works for reading only, and signals reach
only the process itself. Standard library only.
"""

import struct
from dataclasses import dataclass

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000  # bit of x32 call numbers, which x86_64 also accepts
EPERM, ENOTTY, ENOSYS = 1, 25, 38
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

Step = tuple[int, int, int, int]  # code, steps to skip if true, steps to skip if false, value
REFUSE: Step = (RETURN, 0, 0, ERRNO | EPERM)
LET: Step = (RETURN, 0, 0, ALLOW)

THREAD, THREADS_ONLY = 0x10000, 0x7D0F00  # CLONE_THREAD; all flags that glibc and musl set for a thread
WRITE, EXEC, ANONYMOUS = 2, 4, 0x20  # PROT_WRITE, PROT_EXEC, MAP_ANONYMOUS
FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
NAMES = (15, 16)  # PR_SET_NAME, PR_GET_NAME
# O_NOCTTY, O_NONBLOCK, O_CLOEXEC; O_DIRECTORY, O_NOFOLLOW and O_LARGEFILE differ by architecture.
READING = {"x86_64": 0x80900 | 0x10000 | 0x20000 | 0x8000, "aarch64": 0x80900 | 0x4000 | 0x8000 | 0x20000}

# Numbers for x86_64 and aarch64; -1 = the architecture has no such call. Python's most frequent calls come first.
FREE = {
    "futex": (202, 98), "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "fstat": (5, 80),
    "newfstatat": (262, 79), "stat": (4, -1), "lstat": (6, -1), "brk": (12, 214), "munmap": (11, 215),
    "mremap": (25, 216), "madvise": (28, 233), "getdents64": (217, 61), "readlink": (89, -1), "readlinkat": (267, 78),
    "access": (21, -1), "faccessat": (269, 48), "getcwd": (79, 17), "pread64": (17, 67), "dup": (32, 23),
    "dup2": (33, -1), "dup3": (292, 24), "poll": (7, -1), "ppoll": (271, 73),
    "select": (23, -1), "pselect6": (270, 72), "exit": (60, 93), "exit_group": (231, 94), "rseq": (334, 293),
    "set_robust_list": (273, 99), "sched_yield": (24, 124), "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "alarm": (37, -1), "setitimer": (38, 103), "times": (100, 153), "uname": (63, 160),
    "getrusage": (98, 165), "getrlimit": (97, 163), "getrandom": (318, 278),
}  # fmt: skip
FILTERED = {
    "open": (2, -1), "openat": (257, 56), "mmap": (9, 222), "mprotect": (10, 226), "clone": (56, 220),
    "fcntl": (72, 25), "prctl": (157, 167), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "sched_getaffinity": (204, 123),
}  # fmt: skip
# Refused with a special errno: ENOSYS makes the C library fall back to an older call, and ENOTTY says "not a terminal".
OTHERWISE = {"ioctl": ((16, 29), ENOTTY), "clone3": ((435, 435), ENOSYS), "openat2": ((437, 437), ENOSYS),
             "statx": ((332, 291), ENOSYS), "faccessat2": ((439, 439), ENOSYS)}  # fmt: skip
# Additional calls of the starter, the parent of the sandbox processes; bubblewrap installs this list from outside.
STARTER = {
    "set_tid_address": (218, 96), "readv": (19, 65), "writev": (20, 66),
    "execve": (59, 221), "open": (2, -1), "openat": (257, 56), "mmap": (9, 222), "mprotect": (10, 226),
    "clone": (56, 220), "fork": (57, -1), "vfork": (58, -1), "wait4": (61, 260), "waitid": (247, 95),
    "kill": (62, 129), "tgkill": (234, 131), "fcntl": (72, 25), "ioctl": (16, 29), "prctl": (157, 167),
    "seccomp": (317, 277), "prlimit64": (302, 261), "setrlimit": (160, 164), "recvmsg": (47, 212),
    "sendmsg": (46, 211), "sendto": (44, 206), "recvfrom": (45, 207), "getsockopt": (55, 209),
    "getsockname": (51, 204), "getpeername": (52, 205), "close_range": (436, 436), "arch_prctl": (158, -1),
    "capget": (125, 90), "capset": (126, 91), "setresuid": (117, 147), "setresgid": (119, 149),
    "setgroups": (116, 159), "unshare": (272, 97), "sched_getaffinity": (204, 123), "chdir": (80, 49),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """Filter steps for one argument of a call, by position."""

    place: int

    @property
    def load(self) -> Step:
        """Return the step that loads the lower 32 bits of the argument."""
        return (LOAD, 0, 0, ARGUMENTS + 8 * self.place)

    def one_of(self, *values: int) -> list[Step]:
        """Return steps that allow only these values."""
        return [self.load, *(step for one in values for step in ((EQUAL, 0, 1, one), LET)), REFUSE]

    def without(self, bits: int) -> list[Step]:
        """Return steps that allow only values with none of these bits set."""
        return [self.load, (BITS, 0, 1, bits), REFUSE, LET]


def program(machine: str, pid: int) -> bytes:
    """Return the program for the process `pid`, which runs an answer or assertions."""
    bodies = {
        "open": Argument(1).without(~READING[machine] & 0xFFFFFFFF),
        "openat": Argument(2).without(~READING[machine] & 0xFFFFFFFF),
        "mmap": [Argument(2).load, (BITS, 1, 0, EXEC), LET, (BITS, 0, 1, WRITE), REFUSE,
                 *Argument(3).without(ANONYMOUS)],
        "mprotect": Argument(2).without(EXEC),
        "clone": [Argument(0).load, (BITS, 0, 1, ~THREADS_ONLY & 0xFFFFFFFF), REFUSE,
                  (BITS, 0, 1, THREAD), LET, REFUSE],
        "fcntl": Argument(1).one_of(*FCNTL),
        "prctl": Argument(0).one_of(*NAMES),
        "kill": Argument(0).one_of(pid),
        "tgkill": Argument(0).one_of(pid),
        "prlimit64": [Argument(0).load, (EQUAL, 1, 0, 0), REFUSE, Argument(2).load, (EQUAL, 1, 0, 0), REFUSE,
                      (LOAD, 0, 0, ARGUMENTS + 8 * 2 + 4), (EQUAL, 0, 1, 0), LET, REFUSE],
        "sched_getaffinity": Argument(0).one_of(0),
    }  # fmt: skip
    assert bodies.keys() == FILTERED.keys()
    return assembled(
        machine, [*((FREE[one], [LET]) for one in FREE), *((FILTERED[one], bodies[one]) for one in bodies)]
    )


def starter(machine: str) -> bytes:
    """Return the program for the starter, the parent of the sandbox processes."""
    return assembled(machine, [(pair, [LET]) for pair in {**FREE, **STARTER}.values()])


def assembled(machine: str, calls: list[tuple[tuple[int, int], list[Step]]]) -> bytes:
    """Return the bytes of a program: the steps of each call, then a refusal of all other calls.

    A refused call fails with the errno in OTHERWISE, else with EPERM. A call of another architecture, or a call number
    from X32 on, kills the process.
    """
    column = list(AUDIT).index(machine)
    steps: list[Step] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT[machine]), (RETURN, 0, 0, KILL)]
    steps += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    others = [(pair, [(RETURN, 0, 0, ERRNO | error)]) for pair, error in OTHERWISE.values()]
    for pair, body in [*calls, *others]:
        if pair[column] >= 0:
            steps += [(EQUAL, 0, len(body), pair[column]), *body]
    return b"".join(struct.pack("=HBBI", *one) for one in (*steps, REFUSE))
