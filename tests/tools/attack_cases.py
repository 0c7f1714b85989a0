"""Programs that try to get out of the sandbox or to exhaust the host.

Each prints ESCAPED when it got what it must not get. `T` is a table of targets on the host.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from burnish.tools import Hold, Limit


class Attack(NamedTuple):
    name: str
    hold: Hold
    code: str
    limits: Mapping[str, Any] = MappingProxyType({})
    killed_by: tuple[Limit, ...] = ()
    """The limits of which one must end it; none means that it may end by itself."""


def tries(action: str, escaped: str = "True", setup: str = "") -> str:
    """A program that does `action` and says so if it worked."""
    return f"""
{setup}
try:
    result = {action}
    if {escaped}:
        print("ESCAPED", repr(result)[:200])
except BaseException as error:
    print("held", type(error).__name__, error)
"""


def together(attacks: Sequence[Attack]) -> str:
    """One program that makes all the attacks in turn, and says at the end that none was left out."""
    return f"""
for name, code in {[(attack.name, attack.code) for attack in attacks]!r}:
    print("trying:", name, flush=True)
    try:
        exec(code, {{"T": T, "__name__": "__main__"}})
    except BaseException as error:
        print("held", type(error).__name__, error)
print("{ALL_TRIED}")
"""


ALL_TRIED = "all were tried"

CALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
def call(x86, arm, *arguments):
    result = libc.syscall(x86 if X86 else arm, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""

PAIR = """
import socket
def pair(kept=[]):
    kept += socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return kept[-1]
"""
KEEP = """
def fill(write):
    total = 0
    try:
        while True: total += write(bytes(65536))
    except OSError: return total
def judged(total):
    print("ESCAPED" if total > 32 << 20 else "held at", total >> 20, "MB")
"""

ESCAPES = [
    # the network
    Attack(
        "tcp to a listener on the host",
        Hold.NETWORK,
        tries(
            'socket.create_connection(("127.0.0.1", T["tcp"]), timeout=1)', setup="import socket"
        ),
    ),
    Attack(
        "udp to the host",
        Hold.NETWORK,
        tries(
            'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", T["udp"]))',
            setup="import socket",
        ),
    ),
    Attack(
        "a name looked up",
        Hold.NETWORK,
        tries('socket.getaddrinfo("example.com", 80)', setup="import socket"),
    ),
    Attack(
        "a unix socket by path",
        Hold.NETWORK,
        tries(
            's.connect(T["unix_path"]) or s.send(b"x")',
            setup="import socket\ntry:\n    s = socket.socket(socket.AF_UNIX)\nexcept OSError: pass",
        ),
    ),
    Attack(
        "a unix socket by abstract name",
        Hold.NETWORK,
        tries(
            's.connect("\\0" + T["unix_name"]) or s.send(b"x")',
            setup="import socket\ntry:\n    s = socket.socket(socket.AF_UNIX)\nexcept OSError: pass",
        ),
    ),
    Attack(
        "a raw socket",
        Hold.NETWORK,
        tries(
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
            setup="import socket",
        ),
    ),
    Attack(
        "a socket by system call, used",
        Hold.NETWORK,
        tries(
            "attack()",
            setup=CALL
            + """
import struct
def attack():
    plug = call(41, 198, 2, 1, 0)
    address = struct.pack("<H", 2) + struct.pack(">H", T["tcp"]) + bytes([127, 0, 0, 1]) + bytes(8)
    return call(42, 203, plug, address, 16)
""",
        ),
    ),
    Attack(
        "a datagram from a pair to a path",
        Hold.NETWORK,
        tries("pair().sendto(b'x', T['datagram_path'])", setup=PAIR),
    ),
    Attack(
        "a datagram from a pair to an abstract name",
        Hold.NETWORK,
        tries("pair().sendto(b'x', '\\0' + T['datagram_name'])", escaped="False", setup=PAIR),
    ),
    Attack(
        "a message with an address from a pair",
        Hold.NETWORK,
        tries("pair().sendmsg([b'x'], [], 0, T['datagram_path'])", setup=PAIR),
    ),
    Attack(
        "many messages with an address in one call",
        Hold.NETWORK,
        tries(
            "attack()",
            setup=CALL
            + PAIR
            + """
import struct
def attack():
    name = struct.pack("<H", 1) + T["datagram_path"].encode() + b"\\0"
    data, address = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(name)
    vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 1))
    parts = (ctypes.addressof(address), len(name), 0, ctypes.addressof(vector), 1, 0, 0, 0, 0, 0)
    message = ctypes.create_string_buffer(struct.pack("QIIQQQQiiQ", *parts))
    return call(307, 269, pair().fileno(), message, 1, 0) == 1
""",
        ),
    ),
    Attack(
        "a packet socket's pair",
        Hold.NETWORK,
        tries(
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0].sendto(b'x', T['datagram_path'])",
            setup="import socket",
        ),
    ),
    Attack(
        "sockets of rare families",
        Hold.NETWORK,
        tries(
            "[made(family) for family in (15, 16, 17, 31, 38, 40, 44)]",
            escaped="any(result) and T['strict']",
            setup="""
import socket
def made(family):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        try: return bool(socket.socket(family, kind))
        except OSError: pass
""",
        ),
    ),
    Attack(
        "a socket through the calls of x32",
        Hold.NETWORK,
        tries("X86 and call(0x40000000 + 41, 0, 2, 1, 0) >= 0", escaped="result", setup=CALL),
    ),
    # reading
    Attack("read /etc/passwd", Hold.READ, tries('open("/etc/passwd").read()')),
    Attack("read a secret of the host", Hold.READ, tries('open(T["secret"]).read()')),
    Attack(
        "read through a symbolic link",
        Hold.READ,
        tries('os.symlink(T["secret"], "link") or open("link").read()', setup="import os"),
    ),
    Attack(
        "read through a hard link",
        Hold.READ,
        tries('os.link(T["secret"], "hard") or open("hard").read()', setup="import os"),
    ),
    Attack(
        "read by climbing out of the folder",
        Hold.READ,
        tries('open("../" * 40 + T["secret"].lstrip("/")).read()'),
    ),
    Attack(
        "list the home folder",
        Hold.READ,
        tries(
            # The way to the interpreter may lead through it, and is then all that is there.
            'os.listdir(T["home"])',
            escaped="T['home_mark'] in result",
            setup="import os",
        ),
    ),
    Attack("read the machine's memory", Hold.READ, tries('open("/dev/mem", "rb").read(16)')),
    Attack(
        "read the environment of the parent",
        Hold.READ,
        tries('open("/proc/%d/environ" % T["parent"]).read()', escaped="'MARK' in result"),
    ),
    Attack("read the environment of process 1", Hold.READ, tries('open("/proc/1/environ").read()')),
    Attack(
        "read the memory of the parent",
        Hold.READ,
        tries('open("/proc/%d/mem" % T["parent"], "rb").read(16)'),
    ),
    Attack(
        "read the environment's secret",
        Hold.READ,
        tries("dict(os.environ)", escaped="'BURNISH_TEST_SECRET' in result", setup="import os"),
    ),
    Attack(
        "read the secret from the first environment block",
        Hold.READ,
        tries(
            "block()",
            escaped="b'BURNISH_TEST_SECRET' in result",
            setup="""
import ctypes
def block():
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    parts, index = [], 0
    while environ and environ[index]:
        parts.append(environ[index]); index += 1
    return b" ".join(parts)
""",
        ),
    ),
    Attack(
        "use inherited descriptors",
        Hold.READ,
        tries(
            "[d for d in range(3, 4096) if opened(d)]",
            escaped="result",
            setup="""
import os
def opened(descriptor):
    try:
        os.fstat(descriptor)
        return True
    except OSError:
        return False
""",
        ),
    ),
    Attack(
        "open a file by its handle",
        Hold.READ,
        tries(
            "call(303, 264, -100, T['secret'].encode(), ctypes.create_string_buffer(bytes([128, 0, 0, 0]) + bytes(140)), ctypes.byref(ctypes.c_int()), 0)",
            setup=CALL,
        ),
    ),
    Attack("import burnish", Hold.READ, tries("__import__('burnish')")),
    Attack(
        "import burnish from its folder",
        Hold.READ,
        tries("sys.path.insert(0, T['source']) or __import__('burnish')", setup="import sys"),
    ),
    Attack(
        "import an installed package",
        Hold.READ,
        tries("sys.path.insert(0, T['packages']) or __import__('msgspec')", setup="import sys"),
    ),
    Attack(
        "walk the module table to a program",
        Hold.PROCESSES,
        tries(
            "sys.modules['os'].system('echo ESCAPED')", escaped="result == 0", setup="import sys"
        ),
    ),
    Attack(
        "reach the class table for popen",
        Hold.PROCESSES,
        tries(
            "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['/bin/echo', 'ESCAPED'])",
            setup="import subprocess",
        ),
    ),
    # writing
    Attack(
        "write into a folder open to all",
        Hold.WRITE,
        tries('open(T["open_folder"] + "/mark", "w").write("x")'),
    ),
    Attack("write over the secret", Hold.WRITE, tries('open(T["secret"], "a").write("x")')),
    Attack(
        "write through a symbolic link",
        Hold.WRITE,
        tries(
            'os.symlink(T["open_folder"], "out") or open("out/mark", "w").write("x")',
            setup="import os",
        ),
    ),
    Attack(
        "move a file out",
        Hold.WRITE,
        tries(
            'open("own", "w").write("x") and os.rename("own", T["open_folder"] + "/mark") is None',
            setup="import os",
        ),
    ),
    Attack(
        "write into /dev/shm", Hold.WRITE, tries('open("/dev/shm/burnish-mark", "w").write("x")')
    ),
    Attack(
        "write into the interpreter",
        Hold.WRITE,
        tries('open(os.__file__, "a").write("\\n")', setup="import os"),
    ),
    Attack(
        "make a device",
        Hold.WRITE,
        tries(
            'os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(8, 0)) or open("device", "rb").read(1)',
            setup="import os, stat",
        ),
    ),
    Attack(
        "change the mode of a file of the host",
        Hold.WRITE,
        tries(
            "os.chmod(T['secret'], 0o600) or os.stat(T['secret']).st_mode & 0o777",
            escaped="result == 0o600",
            setup="import os",
        ),
    ),
    Attack(
        "change a mode through a descriptor that may only be read",
        Hold.WRITE,
        tries(
            "os.fchmod(file.fileno(), before ^ 0o001) or os.fstat(file.fileno()).st_mode",
            escaped="result != before and not os.fchmod(file.fileno(), before)",
            setup="import os\nfile = open(os.__file__)\nbefore = os.fstat(file.fileno()).st_mode",
        ),
    ),
    Attack(
        "change the time of a file of the host",
        Hold.WRITE,
        tries(
            "os.utime(T['secret'], (1, 1)) or os.stat(T['secret']).st_mtime",
            escaped="result == 1",
            setup="import os",
        ),
    ),
    Attack(
        "give a file of the host an attribute",
        Hold.WRITE,
        tries("os.setxattr(T['secret'], 'user.mark', b'x') is None", setup="import os"),
    ),
    Attack(
        "cut a file of the host",
        Hold.WRITE,
        tries("os.truncate(T['secret'], 0) is None", setup="import os"),
    ),
    Attack(
        "change the owner of a file of the host",
        Hold.WRITE,
        tries("os.chown(T['secret'], -1, os.getgid()) is None", setup="import os"),
    ),
    # other processes
    Attack(
        "remove a segment that others share",
        Hold.DISTURB,
        tries("call(31, 195, T['segment'], 0, 0) == 0", setup=CALL),
    ),
    Attack(
        "remove a semaphore that others wait for",
        Hold.DISTURB,
        tries("call(66, 191, T['semaphore'], 0, 0, 0) == 0", setup=CALL),
    ),
    Attack(
        "write into a queue of others",
        Hold.DISTURB,
        tries(
            "call(69, 189, T['queue'], struct.pack('q8s', 1, b'x'), 8, 0o4000) == 0",
            setup=CALL + "import struct",
        ),
    ),
    Attack(
        "have writers of a library wait",
        Hold.DISTURB,
        tries("fcntl.fcntl(open(os.__file__), 1024, 0) == 0", setup="import fcntl, os"),
    ),
    Attack(
        "share a core with the parent",
        Hold.DISTURB,
        tries("call(157, 167, 62, 2, T['victim'], 1, 0) == 0", setup=CALL),
    ),
    Attack(
        "kill the parent",
        Hold.DISTURB,
        tries('os.kill(T["victim"], signal.SIGKILL) is None', setup="import os, signal"),
    ),
    Attack(
        "kill everything",
        Hold.DISTURB,
        tries("os.kill(-1, signal.SIGUSR2) is None", escaped="False", setup="import os, signal"),
    ),
    Attack(
        "signal the process group",
        Hold.DISTURB,
        tries('os.killpg(T["group"], signal.SIGUSR2) is None', setup="import os, signal"),
    ),
    Attack(
        "queue a signal",
        Hold.DISTURB,
        tries("call(129, 138, T['victim'], 12, bytes(128)) == 0", setup=CALL),
    ),
    Attack(
        "have a pipe signal the parent",
        Hold.DISTURB,
        tries(
            "fcntl.fcntl(0, 8, T['victim']) == 0 and fcntl.fcntl(0, 10, 9) == 0",
            setup="import fcntl",
        ),
    ),
    Attack(
        "trace the parent",
        Hold.DISTURB,
        tries("call(101, 117, 0x4206, T['victim'], 0, 0) == 0", setup=CALL),
    ),
    Attack(
        "write the memory of the parent",
        Hold.DISTURB,
        tries(
            "reach()",
            setup=CALL
            + """
import errno, struct
def reach():
    here = ctypes.create_string_buffer(16)
    mine = struct.pack("QQ", ctypes.addressof(here), 16)
    theirs = struct.pack("QQ", 4096, 16)
    try:
        return call(311, 271, T["victim"], mine, 1, theirs, 1, 0)
    except OSError as error:
        if error.errno == errno.EFAULT:  # the right was there, only the address was not
            return "reached"
        raise
""",
        ),
    ),
    Attack(
        "take a descriptor of the parent",
        Hold.DISTURB,
        tries("call(438, 438, call(434, 434, T['victim'], 0), 0, 0) >= 0", setup=CALL),
    ),
    Attack(
        "lower the limits of the parent",
        Hold.DISTURB,
        tries(
            "resource.prlimit(T['victim'], resource.RLIMIT_NOFILE, (3, 3)) is not None",
            setup="import resource",
        ),
    ),
    Attack(
        "slow the parent down",
        Hold.DISTURB,
        tries("os.setpriority(os.PRIO_PROCESS, T['victim'], 19) is None", setup="import os"),
    ),
    Attack(
        "see other processes",
        Hold.WATCH,
        tries(
            '[p for p in os.listdir("/proc") if p == str(T["victim"])]',
            escaped="result",
            setup="import os",
        ),
    ),
    # rights
    Attack(
        "become root",
        Hold.DISTURB,
        tries(
            "(os.setresuid(0, 0, 0), open('/proc/sys/kernel/core_pattern', 'r+'))",
            setup="import os",
        ),
    ),
    Attack(
        "mount",
        Hold.WRITE,
        tries('libc.mount(b"none", b".", b"tmpfs", 0, None)', escaped="result == 0", setup=CALL),
    ),
    Attack(
        "change the root",
        Hold.READ,
        tries(
            'os.mkdir("jail") or os.chroot("jail") or os.chdir("../../../..") or open("etc/passwd").read()',
            setup="import os",
        ),
    ),
    Attack(
        "a namespace of one's own",
        Hold.DISTURB,
        tries(
            "libc.unshare(0x10000000 | 0x20000)",
            escaped="result == 0 and os.system('') == 0",
            setup=CALL,
        ),
    ),
    Attack(
        "execute a shell",
        Hold.PROCESSES,
        tries('os.execv("/bin/sh", ["sh", "-c", "echo ESCAPED"])', setup="import os"),
    ),
    Attack(
        "a subprocess",
        Hold.PROCESSES,
        tries('subprocess.run(["/bin/sh", "-c", "echo ESCAPED"])', setup="import subprocess"),
    ),
    Attack(
        "execute code from memory",
        Hold.PROCESSES,
        tries(
            "run()",
            setup=CALL
            + """
def run():
    handle = os.memfd_create("x")
    os.write(handle, b"#!/bin/sh\\necho ESCAPED\\n")
    os.execv("/proc/self/fd/%d" % handle, ["x"])
""",
        ),
    ),
    Attack(
        "set the clock",
        Hold.DISTURB,
        tries("time.clock_settime(time.CLOCK_REALTIME, time.time())", setup="import time"),
    ),
    Attack(
        "name the host",
        Hold.DISTURB,
        tries("socket.sethostname('ESCAPED')", escaped="False", setup="import socket"),
    ),
    Attack(
        "a pickle that runs a command",
        Hold.PROCESSES,
        tries(
            "pickle.loads(b\"cos\\nsystem\\n(S'echo ESCAPED'\\ntR.\")",
            escaped="result == 0",
            setup="import pickle",
        ),
    ),
    Attack(
        "load the kernel with a program",
        Hold.DISTURB,
        tries("call(321, 280, 0, bytes(128), 128)", setup=CALL),
    ),
    Attack(
        "an asynchronous ring around the filter",
        Hold.NETWORK,
        tries(
            "call(425, 425, 8, ctypes.create_string_buffer(120)) >= 0",
            escaped="result and T['strict']",
            setup=CALL,
        ),
    ),
]

EXHAUSTION = [
    Attack("an endless loop", Hold.PROCESSES, "while True: pass",
           {"cpu_s": 1, "wall_s": 60}, (Limit.CPU,)),
    Attack("an endless loop that ignores the first signal", Hold.PROCESSES, """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""", {"cpu_s": 1, "wall_s": 60}, (Limit.CPU,)),
    Attack("a sleep past the clock, deaf to signals", Hold.SURVIVE, """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
time.sleep(600)
""", {"wall_s": 0.5}, (Limit.WALL,)),
    Attack("an allocation beyond memory", Hold.MEMORY, "x = bytearray(4 << 30); print('ESCAPED')"),
    Attack("a list that grows", Hold.MEMORY, """
x = []
try:
    while True: x.append(bytes(1 << 20))
except MemoryError:
    print("held at", len(x), "MB")
    if len(x) > 300: print("ESCAPED")
""", {"memory_mb": 256}),
    Attack("shared memory outside the address space", Hold.MEMORY, """
import os
try:
    handles = []
    while True:
        handle = os.memfd_create("x"); os.ftruncate(handle, 1 << 30)
        for _ in range(64): os.write(handle, bytes(1 << 20))
        handles.append(handle)
        if len(handles) > 2: print("ESCAPED"); break
except OSError as error:
    print("held", error)
"""),
    Attack("buffers of sockets", Hold.MEMORY, KEEP + """
import socket
total, kept = 0, []
try:
    while True:
        kept.append(socket.socketpair())
        for end in kept[-1]:
            end.setblocking(False)
            try: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            except OSError: pass
            total += fill(end.send)
except OSError: pass
judged(total)
""", {"memory_mb": 64}),
    Attack("sockets sent through sockets", Hold.MEMORY, KEEP + """
import array, socket
total, kept = 0, []
try:
    post = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
except OSError: post = socket.socketpair()
try:
    for _ in range(500):
        pair = socket.socketpair()
        for end in pair:
            end.setblocking(False)
            total += fill(end.send)
        numbers = array.array("i", [end.fileno() for end in pair])
        post[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
except OSError: pass
judged(total)
""", {"memory_mb": 64}),
    Attack("pipes of a megabyte", Hold.MEMORY, KEEP + """
import fcntl, os
total = 0
try:
    while True:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try: fcntl.fcntl(writing, 1031, 1 << 20)
        except OSError: pass
        total += fill(lambda data: os.write(writing, data))
except OSError: pass
judged(total * 4)
""", {"memory_mb": 64}),
    Attack("huge pages that pipes keep alive", Hold.MEMORY, CALL + KEEP + """
import mmap, struct
total = 0
try:
    for _ in range(64):
        reading, writing = os.pipe()
        for _ in range(16):
            area = mmap.mmap(-1, 4 << 20)
            view = ctypes.c_char.from_buffer(area)
            start = (ctypes.addressof(view) + (2 << 20) - 1) & -(2 << 20)
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(2 << 20), 14)
            ctypes.memset(start, 1, 4096)
            call(278, 75, writing, struct.pack("QQ", start, 4096), 1, 0)
            total += 2 << 20
            del view
            area.close()
except OSError: pass
judged(total)
""", {"memory_mb": 64}),
    Attack("timers without end", Hold.MEMORY, CALL + """
count, timer = 0, ctypes.c_int()
try:
    while count < 5000: call(222, 107, 0, None, ctypes.byref(timer)); count += 1
    print("ESCAPED")
except OSError: print("held at", count)
"""),
    Attack("watches on files without end", Hold.MEMORY, CALL + """
handle = libc.inotify_init1(0)
print("ESCAPED" if handle >= 0 and T["strict"] else "held")
"""),
    Attack("a socket through the 32-bit entry", Hold.NETWORK, CALL + """
import mmap
area = mmap.mmap(-1, 4096, prot=7)
# mov eax, 359 (socket); mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80; ret, with rbx kept
area.write(bytes.fromhex("53b867010000bb01000000b90100000031d2cd805bc3"))
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
if X86 and ctypes.CFUNCTYPE(ctypes.c_int)(start)() >= 0: print("ESCAPED")
"""),
    Attack("a string that multiplies", Hold.MEMORY, "x = 'a'\nwhile True: x = x * 16\n"),
    Attack("a compressed bomb", Hold.MEMORY, """
import zlib
bomb = zlib.compress(bytes(4 << 20), 1)
x = b"".join(zlib.decompress(bomb) for _ in range(40))
print("ESCAPED", len(x))
""", {"memory_mb": 96}),
    Attack("a fork bomb", Hold.PROCESSES, """
import os
while True:
    try: os.fork()
    except OSError: pass
""", {"cpu_s": 1, "wall_s": 0.7}, (Limit.CPU, Limit.WALL)),
    Attack("a fork bomb where processes are allowed", Hold.PROCESSES, """
import os
while True:
    try: os.fork()
    except OSError: pass
""", {"cpu_s": 1, "wall_s": 0.7, "processes": 8}, (Limit.CPU, Limit.WALL)),
    Attack("a thread bomb", Hold.PROCESSES, """
import threading, time
threading.stack_size(65536)
count = 0
try:
    while count < 500:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); count += 1
    time.sleep(0.3)  # where the kernel does not count them, they are looked at now and then
    print("ESCAPED", count)
except RuntimeError:
    print("held at", count)
"""),
    Attack("a daemon with a session of its own", Hold.SURVIVE, """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for d in range(3): os.close(d)
        while True: time.sleep(1)
    os._exit(0)
print("left a daemon")
""", {"processes": 8}),
    Attack("zombies", Hold.SURVIVE, """
import os
for _ in range(5):
    if os.fork() == 0: os._exit(0)
""", {"processes": 8}),
    Attack("a disk full of one file", Hold.DISK, """
try:
    with open("big", "wb", buffering=0) as file:
        total = 0
        while True: total += file.write(bytes(1 << 20))
except OSError: print(total >> 20)
""", {"disk_mb": 8}),
    Attack("a disk full of files without a name", Hold.DISK, """
import os, time
total, files = 0, []
try:
    for index in range(40):
        files.append(open("gone", "wb", buffering=0))
        os.unlink("gone")
        total += files[-1].write(bytes(4 << 20))
        time.sleep(0.02)
    print("ESCAPED", total)
except OSError: print(total >> 20)
""", {"disk_mb": 8}),
    Attack("a disk full of files that are only mapped", Hold.DISK, """
import ctypes, os, time
libc = ctypes.CDLL(None)
total = 0
try:
    for index in range(40):
        handle = os.open("gone", os.O_CREAT | os.O_RDWR)
        os.unlink("gone")
        total += os.write(handle, bytes(4 << 20))
        libc.mmap(None, ctypes.c_size_t(4096), 1, 1, handle, ctypes.c_long(0))
        os.close(handle)
        time.sleep(0.02)
    print("ESCAPED", total)
except OSError: print(total >> 20)
""", {"disk_mb": 8}),
    Attack("a disk full of many files", Hold.DISK, """
import time
total = 0
try:
    for index in range(1000):
        with open(f"part{index}", "wb", buffering=0) as file: total += file.write(bytes(1 << 20))
        time.sleep(0.002)
    print("ESCAPED", total)
except OSError: print(total >> 20)
""", {"disk_mb": 8}),
    Attack("a hundred thousand empty files", Hold.DISK, """
import os, time
try:
    for index in range(100_000):
        os.close(os.open(f"f{index}", os.O_CREAT | os.O_WRONLY))
    print("ESCAPED")
except OSError as error: print("held at", index)
""", {"files": 64, "wall_s": 8}),
    Attack("a sparse file", Hold.DISK, """
import os
try:
    with open("sparse", "wb") as file:
        file.truncate(1 << 40)
        print("ESCAPED")
except OSError: print("held")
"""),
    Attack("gigabytes of output", Hold.MEMORY, """
import os
while True: os.write(1, bytes(1 << 16))
""", {"output_kb": 256}, (Limit.OUTPUT,)),
    Attack("gigabytes of errors", Hold.MEMORY, """
import sys
while True: sys.stderr.write("x" * 65536)
""", {"output_kb": 256}, (Limit.OUTPUT,)),
    Attack("input that is never read", Hold.SURVIVE, "import os; os.close(0); print('done')"),
    Attack("closing all descriptors", Hold.SURVIVE, """
import os, time
os.closerange(0, 4096)
time.sleep(600)
""", {"wall_s": 0.5}, (Limit.WALL,)),
    Attack("recursion that breaks the stack", Hold.SURVIVE, """
import sys
sys.setrecursionlimit(10**9)
class A:
    def __repr__(self): return repr(self)
repr(A())
print("ESCAPED")
"""),
    Attack("recursion that fills the memory", Hold.MEMORY, """
import sys
sys.setrecursionlimit(10**9)
def f(): return f() + 1
try: f()
except BaseException as error: print("held", type(error).__name__)
else: print("ESCAPED")
""", {"memory_mb": 64}),
    Attack("a segmentation fault", Hold.SURVIVE, "import ctypes; ctypes.string_at(0)"),
    Attack("an abort", Hold.SURVIVE, "import os; os.abort()"),
    Attack("locks from exit", Hold.SURVIVE, """
import atexit, time, threading
atexit.register(time.sleep, 600)
threading.Thread(target=time.sleep, args=(600,)).start()
""", {"wall_s": 0.5}, (Limit.WALL,)),
    Attack("a pattern without end", Hold.PROCESSES, "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
           {"cpu_s": 1, "wall_s": 60}, (Limit.CPU,)),
    Attack("a number without end", Hold.PROCESSES, "9 ** 9 ** 9", {"cpu_s": 1, "wall_s": 60}, (Limit.CPU,)),
    Attack("a folder deeper than paths", Hold.DISK, """
import os
for _ in range(3000):
    try: os.mkdir("d" * 100); os.chdir("d" * 100)
    except OSError: break
os.chmod(".", 0)
"""),
]  # fmt: skip
