"""The system-call filter, run by a small interpreter of its own language, for both machines."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from burnish.tools.inside import seccomp
from burnish.tools.inside.confine import handled_rights

ALLOW, EPERM, ENOSYS, KILL = (seccomp.ALLOW, seccomp.EPERM, seccomp.ENOSYS, seccomp.KILL_PROCESS)
MACHINES = {"x86_64": 0, "aarch64": 1}
PID = 4321


def verdict(code: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel's interpreter would say."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    instructions = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at, value = 0, 0
    while True:
        operation, yes, no, k = instructions[at]
        at += 1
        if operation == seccomp.RETURN:
            return k
        if operation == seccomp.LOAD:
            value = struct.unpack_from("<I", data, k)[0]
            continue
        holds = {
            seccomp.EQUAL: value == k,
            seccomp.AT_LEAST: value >= k,
            seccomp.ANY_BIT: bool(value & k),
        }[operation]
        at += yes if holds else no


def asked(machine, number, *arguments, **rights):
    code = seccomp.build(machine, PID, **{"may_fork": False, "may_signal": False, **rights})
    code = code.packed()
    return verdict(code, seccomp.ARCHITECTURES[machine], number, *arguments)


ORDINARY = {  # read, write, openat, mmap, exit_group, futex, getrandom
    "x86_64": [0, 1, 257, 9, 231, 202, 318],
    "aarch64": [63, 64, 56, 222, 94, 98, 278],
}


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_pass_and_listed_ones_do_not(machine):
    column = MACHINES[machine]
    for number in ORDINARY[machine]:
        assert asked(machine, number) == ALLOW
    for pair in seccomp.DIFFERENT.values():
        if pair[column] is not None:
            assert asked(machine, pair[column]) == EPERM
    for number in seccomp.SAME.values():
        assert asked(machine, number) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_start_and_processes_do_not(machine):
    column = MACHINES[machine]
    clone = seccomp.CLONE[column]
    thread = 0x3D0F00  # what the C library asks for
    assert asked(machine, clone, thread) == ALLOW
    assert asked(machine, clone, 17) == EPERM
    assert asked(machine, clone, 17, may_fork=True) == ALLOW
    for flag in (0x20000, 0x2000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert asked(machine, clone, thread | flag) == EPERM
        assert asked(machine, clone, 17 | flag, may_fork=True) == EPERM
    assert asked(machine, seccomp.CLONE3) == ENOSYS
    for pair in seccomp.FORKS.values():
        if pair[column] is not None:
            assert asked(machine, pair[column]) == EPERM
            assert asked(machine, pair[column], may_fork=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@given(other=st.integers(-(2**31), 2**31 - 1).filter(lambda pid: pid not in (PID, 0)))
def test_signals_and_limits_reach_only_itself(machine, other):
    column = MACHINES[machine]
    raw = other & 0xFFFF_FFFF_FFFF_FFFF
    for call in (seccomp.KILL, seccomp.TGKILL, seccomp.PRLIMIT):
        assert asked(machine, call[column], PID) == ALLOW
        assert asked(machine, call[column], raw) == EPERM
    assert asked(machine, seccomp.KILL[column], raw, may_signal=True) == ALLOW
    assert asked(machine, seccomp.KILL[column], 0) == EPERM
    assert asked(machine, seccomp.PRLIMIT[column], 0) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@given(command=st.integers(0, 2**32 - 1))
def test_descriptors_cannot_be_made_to_signal_or_to_type(machine, command):
    column = MACHINES[machine]
    refused = (*seccomp.SIGNAL_OWNERS, *seccomp.FILE_COMMANDS)
    forbidden = EPERM if command in refused else ALLOW
    assert asked(machine, seccomp.FCNTL[column], 0, command) == forbidden
    refused = (*seccomp.TERMINAL_INPUT, *seccomp.FILE_FLAGS)
    forbidden = EPERM if command in refused else ALLOW
    assert asked(machine, seccomp.IOCTL[column], 0, command) == forbidden
    for bad in (*seccomp.SIGNAL_OWNERS,):
        assert asked(machine, seccomp.FCNTL[column], 0, bad) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@given(family=st.integers(0, 50), kind=st.integers(0, 2**32 - 1))
def test_only_streams_come_in_pairs(machine, family, kind):
    call = seccomp.SOCKETPAIR[MACHINES[machine]]
    for stream in (1, 1 | 0o4000, 1 | 0o2000000, 1 | 0o4000 | 0o2000000):
        assert asked(machine, call, 1, stream) == EPERM
        assert asked(machine, call, 1, stream, may_pair=True) == ALLOW
        assert asked(machine, call, 2, stream, may_pair=True) == EPERM
    is_stream = family == 1 and kind & ~0o2004000 == 1
    assert asked(machine, call, family, kind, may_pair=True) == (ALLOW if is_stream else EPERM)
    for datagram in (2, 5, 2 | 0o2000000):
        assert asked(machine, call, 1, datagram, may_pair=True) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@given(address=st.integers(1, 2**64 - 1), shift=st.sampled_from([0, 32]))
def test_nothing_is_sent_to_an_address(machine, address, shift):
    column = MACHINES[machine]
    send, receive = seccomp.SENDTO[column], seccomp.RECVFROM[column]
    assert asked(machine, send, 3, 4096, 10, 0x4040, 0, 0) == ALLOW
    assert asked(machine, send, 3, 4096, 10, 0, address, 110) == EPERM
    assert asked(machine, send, 3, 4096, 10, 0, 1 << shift, 110) == EPERM
    assert asked(machine, receive, 3, 4096, 10, 0x40, address, 110) == ALLOW
    for out_of_band in (1, 1 | 0x40):
        assert asked(machine, send, 3, 4096, 10, out_of_band) == EPERM
        assert asked(machine, receive, 3, 4096, 10, out_of_band) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_what_landlock_does_not_see_is_refused_without_an_own_root(machine):
    column = MACHINES[machine]
    for table, verdict_without in ((seccomp.CHANGES, EPERM), (seccomp.SILENT_CHANGES, 0x50000)):
        for pair in table.values():
            if pair[column] is not None:
                assert asked(machine, pair[column]) == verdict_without
                assert asked(machine, pair[column], has_own_root=True) == ALLOW
    assert asked(machine, seccomp.FCNTL[column], 3, 1031, 1 << 20) == EPERM
    for option in (4, 62):
        assert asked(machine, seccomp.PRCTL[column], option) == EPERM
    assert asked(machine, seccomp.PRCTL[column], 15) == ALLOW


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    numbers = {name: int(number) for name, number in found}
    tables = (seccomp.DIFFERENT, seccomp.CHANGES, seccomp.SILENT_CHANGES, seccomp.FORKS)
    ours = {name: pair[MACHINES[machine]] for table in tables for name, pair in table.items()}
    ours |= {
        name: getattr(seccomp, name.upper())[MACHINES[machine]]
        for name in ("kill", "tgkill", "clone", "fcntl", "ioctl", "prctl", "socketpair", "sendto")
    }
    ours |= {"recvfrom": seccomp.RECVFROM[MACHINES[machine]]} | seccomp.SAME
    newest = max(numbers.values())  # older headers do not have the newest calls
    known = {name: n for name, n in ours.items() if n is None or n <= newest}
    assert {name: numbers.get(name) for name in known} == known


@given(number=st.integers(seccomp.LAST_KNOWN + 1, 2**32 - 1))
def test_unknown_calls_do_not_exist_and_other_machines_are_killed(number):
    for machine in MACHINES:
        assert asked(machine, number) == ENOSYS
    code = seccomp.build("x86_64", PID, may_fork=False, may_signal=False).packed()
    assert verdict(code, 0x4000_0003, 0) == KILL  # 32-bit calls on a 64-bit kernel
    assert verdict(code, seccomp.ARCHITECTURES["aarch64"], 63) == KILL


def test_jumps_fit_and_the_program_is_short_enough():
    for machine in MACHINES:
        program = seccomp.build(machine, PID, may_fork=False, may_signal=False)
        assert len(program.code) < 4096
        assert all(yes < 256 and no < 256 for _, yes, no, _ in program.code)


def test_landlock_rights_by_version():
    assert [handled_rights(v) for v in (1, 2, 3, 4, 5, 6, 7)] == [
        0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF, 0xFFFF, 0xFFFF,
    ]  # fmt: skip
