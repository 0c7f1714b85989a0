"""The system-call filter, run by a small interpreter of its own language, for both machines."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.tools.inside import seccomp
from burnish.tools.inside.landlock import handled_rights

ALLOW, EPERM, ENOSYS, KILL = (
    seccomp.ALLOW,
    seccomp.EPERM,
    seccomp.ENOSYS,
    seccomp.KILL_PROCESS,
)
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


def asked(machine, number, *arguments, may_fork=False, may_signal=False):
    code = seccomp.build(machine, PID, may_fork=may_fork, may_signal=may_signal).packed()
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
    forbidden = EPERM if command in seccomp.SIGNAL_OWNERS else ALLOW
    assert asked(machine, seccomp.FCNTL[column], 0, command) == forbidden
    forbidden = EPERM if command in seccomp.TERMINAL_INPUT else ALLOW
    assert asked(machine, seccomp.IOCTL[column], 0, command) == forbidden
    for bad in (*seccomp.SIGNAL_OWNERS,):
        assert asked(machine, seccomp.FCNTL[column], 0, bad) == EPERM


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
