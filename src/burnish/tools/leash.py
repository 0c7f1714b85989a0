"""Start a program that ends when the process that started it is gone: `python leash.py PID COMMAND`.

It asks the kernel for a SIGKILL at the death of its parent and becomes the program. A run that is
killed in the middle of an episode then leaves no program behind. On systems without `prctl` the
program just starts.
"""

import ctypes
import os
import sys


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        words = [ctypes.c_ulong(word) for word in (9, 0, 0, 0)]
        prctl(1, *words)  # PR_SET_PDEATHSIG, SIGKILL
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
