"""A filter on system calls, assembled by hand: no network, no processes, no other process's affairs.

Nothing that has an address, and nothing that keeps memory where the limit of the address space does
not count it. Event loops need one thing that is called a socket: a connected pair of UNIX streams.
Such a pair can be made and used, but not be given an address, a larger buffer or a descriptor.

A list of what is refused, with EPERM so that Python code sees an ordinary error. Calls newer than
the list (and clone3, whose flags a filter cannot see) are answered "not there", which C libraries
handle by taking the older call. A foreign architecture kills the process.
"""

from __future__ import annotations

import ctypes
import struct

from . import kernel

ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

LAST_KNOWN = 462
"""The newest call (mseal, Linux 6.10) that was looked at; what is newer does not exist here."""

SAME = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "statmount": 457,
    "listmount": 458,
}
"""Refused calls whose number is the same on both machines."""

# name: (x86_64, aarch64); None where the machine has no such call
DIFFERENT: dict[str, tuple[int | None, int | None]] = {
    # network
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "setsockopt": (54, 208),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "recvmsg": (47, 212),
    "recvmmsg": (299, 243),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # other programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # namespaces and file systems
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # memory outside the limits of the address space: pipes keep whole huge pages alive
    "memfd_create": (319, 279),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    # queues and segments that all processes share; those of others can be used by number
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    # clocks and names
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}

# Landlock does not see these: by them, files of the host could be changed that cannot be opened.
CHANGES: dict[str, tuple[int | None, int | None]] = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""Refused where the process has no mount namespace."""
SILENT_CHANGES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Reported as done, but not done, where the process has no mount namespace; `shutil.copy` must not fail for it."""

FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}
CLONE, CLONE3 = (56, 220), 435
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
FCNTL, IOCTL, PRCTL = (72, 25), (16, 29), (157, 167)
SOCKETPAIR, SENDTO, RECVFROM = (53, 199), (44, 206), (45, 207)

CLONE_THREAD = 0x0001_0000
CLONE_ANY_NAMESPACE = 0x7E02_0080
SIGNAL_OWNERS = (8, 10, 15)
"""fcntl commands that send signals to a process of one's choice: F_SETOWN, F_SETSIG, F_SETOWN_EX."""
TERMINAL_INPUT = (0x5412, 0x541C, 0x8901, 0x8902)
"""ioctl commands: TIOCSTI and TIOCLINUX type into a terminal, FIOSETOWN and SIOCSPGRP own signals."""
FILE_COMMANDS = (1024, 1026, 1031)
"""fcntl commands: F_SETLEASE has writers of a host's file wait, F_NOTIFY watches a folder, and
F_SETPIPE_SZ keeps a megabyte outside the limit."""
FILE_FLAGS = (0x4008_6602, 0x4004_6602, 0x401C_5820)
"""ioctl commands that change flags of a file which may only be read."""
OTHERS_BY_PRCTL = (4, 62)
"""prctl options: PR_SET_DUMPABLE hides from the parent, PR_SCHED_CORE slows another process."""
UNIX = 1
STREAMS = (0x1, 0x801, 0x8_0001, 0x8_0801)
"""SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC or without."""
SEND_FLAGS, RECEIVE_FLAGS = 0x4040, 0x4142
"""MSG_DONTWAIT and MSG_NOSIGNAL; to receive also MSG_PEEK and MSG_WAITALL."""

ALLOW, KILL_PROCESS = 0x7FFF_0000, 0x8000_0000
EPERM, ENOSYS, NOTHING_DONE = 0x0005_0001, 0x0005_0026, 0x0005_0000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4


class Program:
    """Instructions of the classic Berkeley packet filter."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self.code.append((LOAD, 0, 0, offset))

    def load_argument(self, position: int) -> None:
        """The low half of an argument; both machines are little-endian."""
        self.load(16 + 8 * position)

    def load_upper(self, position: int) -> None:
        """The high half of an argument."""
        self.load(20 + 8 * position)

    def give(self, verdict: int) -> None:
        self.code.append((RETURN, 0, 0, verdict))

    def give_if(self, test: int, value: int, verdict: int) -> None:
        self.code += [(test, 0, 1, value), (RETURN, 0, 0, verdict)]

    def about(self, number: int | None, block: Program) -> None:
        """Run a block, which must end in a verdict, for one system call."""
        if number is not None:
            self.code.append((EQUAL, 0, len(block.code), number))
            self.code += block.code

    def packed(self) -> bytes:
        return b"".join(struct.pack("<HBBI", *instruction) for instruction in self.code)


def build(
    machine: str,
    pid: int,
    *,
    may_fork: bool,
    may_signal: bool,
    may_pair: bool = False,
    has_own_root: bool = False,
) -> Program:
    """The filter for a process; it may signal only `pid` unless `may_signal`.

    `may_pair` lets it make pairs of streams, `has_own_root` change the modes of files.
    """
    column = list(ARCHITECTURES).index(machine)
    program = Program()
    program.load(ARCHITECTURE)
    program.code.append((EQUAL, 1, 0, ARCHITECTURES[machine]))
    program.give(KILL_PROCESS)
    program.load(NUMBER)
    program.give_if(AT_LEAST, LAST_KNOWN + 1, ENOSYS)  # also the x32 calls of x86_64
    program.give_if(EQUAL, CLONE3, ENOSYS)
    refused = {name: pair[column] for name, pair in DIFFERENT.items()} | SAME
    if not may_fork:
        refused |= {name: pair[column] for name, pair in FORKS.items()}
    if not has_own_root:
        refused |= {name: pair[column] for name, pair in CHANGES.items()}
        for pair in SILENT_CHANGES.values():
            program.about(pair[column], _always(NOTHING_DONE))
    for number in refused.values():
        program.about(number, _always(EPERM))
    program.about(CLONE[column], _clone(may_fork))
    if not may_signal:
        program.about(KILL[column], _only(0, (pid,)))
        program.about(TGKILL[column], _only(0, (pid,)))
    program.about(PRLIMIT[column], _only(0, (0, pid)))
    program.about(FCNTL[column], _never(1, (*SIGNAL_OWNERS, *FILE_COMMANDS)))
    program.about(IOCTL[column], _never(1, (*TERMINAL_INPUT, *FILE_FLAGS)))
    program.about(PRCTL[column], _never(0, OTHERS_BY_PRCTL))
    program.about(SOCKETPAIR[column], _pair() if may_pair else _always(EPERM))
    program.about(SENDTO[column], _plain(SEND_FLAGS, address=4))
    program.about(RECVFROM[column], _plain(RECEIVE_FLAGS))
    program.give(ALLOW)
    return program


def install(
    pid: int, *, may_fork: bool, may_signal: bool, may_pair: bool, has_own_root: bool
) -> None:
    """Put the filter on this process and all it will ever start."""
    if not kernel.MACHINE:
        raise kernel.KernelRefusal(38, "seccomp: this machine's call numbers are not known here")
    program = build(
        kernel.MACHINE,
        pid,
        may_fork=may_fork,
        may_signal=may_signal,
        may_pair=may_pair,
        has_own_root=has_own_root,
    )
    code = program.packed()
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header, len(header)))


def _clone(may_fork: bool) -> Program:
    block = Program()
    block.load_argument(0)
    block.give_if(ANY_BIT, CLONE_ANY_NAMESPACE, EPERM)
    if may_fork:
        block.give(ALLOW)
    else:
        block.give_if(ANY_BIT, CLONE_THREAD, ALLOW)
        block.give(EPERM)
    return block


def _always(verdict: int) -> Program:
    block = Program()
    block.give(verdict)
    return block


def _pair() -> Program:
    """`socketpair` of UNIX streams alone: a datagram could be sent to any address."""
    block = Program()
    block.load_argument(0)
    block.code += [(EQUAL, 1, 0, UNIX), (RETURN, 0, 0, EPERM)]
    block.load_argument(1)
    for kind in STREAMS:
        block.give_if(EQUAL, kind, ALLOW)
    block.give(EPERM)
    return block


def _plain(flags: int, address: int | None = None) -> Program:
    """`sendto` and `recvfrom` as `send` and `recv` use them: few flags, no address."""
    block = Program()
    block.load_argument(3)
    block.give_if(ANY_BIT, ~flags & 0xFFFF_FFFF, EPERM)
    if address is not None:
        block.load_argument(address)
        block.give_if(ANY_BIT, 0xFFFF_FFFF, EPERM)
        block.load_upper(address)
        block.give_if(ANY_BIT, 0xFFFF_FFFF, EPERM)
    block.give(ALLOW)
    return block


def _only(argument: int, values: tuple[int, ...]) -> Program:
    block = Program()
    block.load_argument(argument)
    for value in values:
        block.give_if(EQUAL, value, ALLOW)
    block.give(EPERM)
    return block


def _never(argument: int, values: tuple[int, ...]) -> Program:
    block = Program()
    block.load_argument(argument)
    for value in values:
        block.give_if(EQUAL, value, EPERM)
    block.give(ALLOW)
    return block
