"""Kernel mechanisms by which a process confines itself: limits, namespaces, user, capabilities, Landlock, seccomp.

Standard library only. A layer missing in the kernel or forbidden by the container is left out and reported in `Layers`;
docs/guides/rl.md lists the guarantees that hold without any optional layer.
"""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trainer.rewards.sandbox import system_calls

LIBC = ctypes.CDLL(None, use_errno=True)
CPU_S, FILES = 3, 64
NOBODY = 65534
# landlock_create_ruleset, landlock_add_rule and landlock_restrict_self have the same numbers on x86_64 and aarch64.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR, EXECUTE = 1 << 2, 1 << 3, 1 << 0
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI
NET = 0b11  # TCP bind and connect, from ABI 4
SCOPES = 0b11  # abstract sockets and signals, from ABI 6
QUIET = 1  # LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF, from ABI 7: keeps answers out of the machine's log
NEWEST = 7
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 22, 23, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, CLEAR_ALL, FILTER = 38, 47, 4, 2
SIGKILL = 9
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPGET = {"x86_64": 125, "aarch64": 90}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPABILITIES_3 = 0x20080522
NEW_USER, NEW_MOUNT, NEW_PID = 0x10000000, 0x20000, 0x20000000
NEW_OTHERS = {"mount": NEW_MOUNT, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000, "pid": NEW_PID}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2


@dataclass(frozen=True)
class Layers:
    """Layers that confine the processes of answers on this machine, in addition to the list of system calls."""

    landlock: int
    """Landlock ABI version in use; 0 = none."""
    namespaces: tuple[str, ...]
    """Kinds of private namespaces."""
    has_own_root: bool
    """True if the processes see a file system with only Python's library."""
    has_changed_user: bool
    """True if root started the processes and the processes run as another user."""
    reads_library: bool
    """True if the user of the processes can read Python's library; otherwise all modules were loaded in advance."""

    def plain(self) -> dict[str, object]:
        """Return the layers as JSON values."""
        return asdict(self)


def done(result: int) -> int:
    """Return the result of a system call. Raises OSError with the errno of a failed call (result < 0)."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def library() -> list[str]:
    """Return the existing folders of Python's standard library and of shared libraries."""
    found = [os.path.dirname(os.__file__), os.path.join(sys.exec_prefix, "lib"), "/usr/lib", "/lib", "/lib64"]
    return [one for one in dict.fromkeys(found) if os.path.isdir(one)]


def limits(memory_bytes: int) -> None:
    """Set resource limits: address space (`memory_bytes`), CPU time, file size, open files, queues, priorities."""
    bounds = {
        "AS": memory_bytes,
        "CPU": CPU_S,
        "FSIZE": 16 << 20,
        "NOFILE": FILES,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "NICE": 0,
        "RTPRIO": 0,
    }
    for name, most in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when the parent exits. Raises OSError."""
    done(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))


# Namespaces, private root file system, change of user.


def enter_namespaces() -> tuple[str, ...]:
    """Move this process into new namespaces, as many as the kernel grants; return the kinds.

    Root creates the namespaces as root, because mounting the library's folders needs root; the user namespace follows
    after the user change. Any other user must create the user namespace first, together with all others.
    """
    if os.geteuid() == 0:
        return tuple(name for name, flag in NEW_OTHERS.items() if LIBC.unshare(flag) == 0)
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(NEW_USER | sum(NEW_OTHERS.values())):
        return ()
    for path, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{path}", "w") as file:
            file.write(words)
    return ("user", *NEW_OTHERS)


def own_root(folders: Sequence[str]) -> bool:
    """Make a read-only file system with only these folders the root of this process; return True on success.

    Requires a private mount namespace. After a failure for lack of rights, the file system is unchanged.
    """
    root = "/tmp"  # in this namespace: an in-memory file system over the original contents
    descriptors = [(one, os.open(one, os.O_PATH)) for one in folders]
    is_mounted = False
    try:
        _mount("none", "/", "", MS_REC | MS_PRIVATE)
        _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
        is_mounted = True
        for folder, descriptor in descriptors:
            os.makedirs(root + folder, mode=0o755, exist_ok=True)
            _mount(f"/proc/self/fd/{descriptor}", root + folder, "", MS_BIND)
            _mount("none", root + folder, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
        _mount("none", root, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
        os.chdir(root)
        done(LIBC.syscall(PIVOT_ROOT[platform.machine()], b".", b"."))
        done(LIBC.umount2(b".", DETACH))
    except OSError:
        if is_mounted:
            LIBC.umount2(root.encode(), DETACH)
        return False
    finally:
        for _, descriptor in descriptors:
            os.close(descriptor)
        os.chdir("/")
    return True


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    done(LIBC.mount(source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None))


def drop_root() -> bool:
    """Change from root to the unprivileged user 65534; return True on success.

    Returns False without root, and in a container with root but without the right to change the user: such a process
    loses only the capabilities.
    """
    if os.geteuid() != 0:
        return False
    drop_bounding()
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False
    return True


def own_user_namespace() -> bool:
    """Move this process into a new user namespace; return True if the kernel allowed the move."""
    return LIBC.unshare(NEW_USER) == 0


def drop_bounding() -> None:
    """Drop every capability from the bounding set, as far as this process may."""
    for one in range(64):
        if LIBC.prctl(PR_CAPBSET_READ, one, 0, 0, 0) == 1:
            LIBC.prctl(PR_CAPBSET_DROP, one, 0, 0, 0)


def no_capabilities() -> None:
    """Drop all capabilities and set no_new_privs. Raises OSError if a capability remains."""
    machine = platform.machine()
    done(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    drop_bounding()
    LIBC.prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)
    header, sets = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITIES_3, 0)), ctypes.create_string_buffer(24)
    done(LIBC.syscall(CAPSET[machine], header, sets))
    done(LIBC.syscall(CAPGET[machine], header, sets))
    if any(sets.raw[:24]):
        raise OSError(f"capabilities stay: {sets.raw[:24].hex()}")


# Landlock and seccomp.


def abi() -> int:
    """Return the Landlock ABI version of this kernel, or 0 without Landlock."""
    return max(0, LIBC.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def ruleset(readable: Sequence[str], version: int) -> int:
    """Return a Landlock ruleset that allows only reading and executing below these folders. Raises OSError.

    version: ABI version that defines the handled rights, at most the kernel's version.
    """
    given = struct.pack(
        "=QQQ", RIGHTS[min(version, max(RIGHTS))], NET if version >= 4 else 0, SCOPES if version >= 6 else 0
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = done(LIBC.syscall(CREATE_RULESET, given, ctypes.c_size_t(size), 0))
    for path in readable:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", READ_FILE | READ_DIR | EXECUTE, folder)
        done(LIBC.syscall(ADD_RULE, rules, 1, rule, 0))
        os.close(folder)
    return rules


def restrict_files(rules: int, version: int) -> None:
    """Restrict this process to the Landlock ruleset from now on. Raises OSError."""
    done(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    done(LIBC.syscall(RESTRICT_SELF, rules, QUIET if version >= NEWEST else 0))


def restrict_system_calls() -> None:
    """Restrict this process to the system calls of an answer from now on (seccomp). Raises OSError."""
    code = system_calls.program(platform.machine(), os.getpid())
    program = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(program))
    done(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    done(LIBC.prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(header), 0, 0))
