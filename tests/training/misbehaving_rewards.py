"""Rewards that do to the process what no reward should; named in configs by path."""

import asyncio
import os
import signal
import sys
import tempfile
import warnings


def letters(text):
    return sum(c.isalpha() for c in text) / max(len(text), 1)


class Own(BaseException):
    pass


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Interrupting(Exception):
    def __str__(self):
        raise KeyboardInterrupt


def raises_base(text):
    raise Own("mine")


def raises_interrupt(text):
    raise KeyboardInterrupt


def raises_exit(text):
    raise SystemExit(0)


def raises_generator_exit(text):
    raise GeneratorExit


def raises_unreadable(text):
    raise Unreadable


def raises_interrupting(text):
    raise Interrupting


def raises_much(text):
    raise ValueError("x" * 10_000_000)


def ends_the_process(text):
    os._exit(0)


async def raises_base_async(text):
    raise Own("mine")


async def raises_interrupt_async(text):
    raise KeyboardInterrupt


async def raises_cancelled_async(text):
    raise asyncio.CancelledError


async def ends_the_process_async(text):
    os._exit(0)


def forks(text):
    os.fork()
    return letters(text)


def folder(text):
    os.chdir(tempfile.gettempdir())
    return letters(text)


def removed_folder(text):
    place = tempfile.mkdtemp()
    os.chdir(place)
    os.rmdir(place)
    return letters(text)


def dtype(text):
    import torch

    torch.set_default_dtype(torch.float64)
    return letters(text)


async def dtype_and_modes(text):
    import torch

    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.inference_mode().__enter__()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.autograd.set_detect_anomaly(True)
    return letters(text)


def output(text):
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return letters(text)


def recursion(text):
    sys.setrecursionlimit(sys.getrecursionlimit() + 17)
    return letters(text)


def environment(text):
    os.environ.pop("PATH", None)
    os.environ["BURNISH_TEST_ADDED"] = "1"
    return letters(text)


def import_paths(text):
    sys.path.clear()
    return letters(text)


def packages(text):
    sys.modules.pop("torch", None)
    return letters(text)


def warning_errors(text):
    warnings.simplefilter("error")
    return letters(text)


def mask(text):
    os.umask(0o777)
    return letters(text)


def limits(text):
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (7, hard))
    return letters(text)


async def handlers(text):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return letters(text)
