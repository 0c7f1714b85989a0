"""A real vLLM on the CPU, from the environment that `make test-engines` makes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import httpx

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".environments" / "vllm"
START_S = 300.0
OPTIONS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--enable-scale-out"),
    # In chunks, a request with a seed ends the engine of this version.
    *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384"),
    *("--logprobs-mode", "processed_logprobs", "--host", "127.0.0.1"),
    *("--weight-transfer-config", '{"backend": "burnish"}'),
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class VllmServer:
    """Its processes, from start to end."""

    def __init__(self, folder: Path, log: Path) -> None:
        port = free_port()
        self.folder, self.url, self._log = folder, f"http://127.0.0.1:{port}/v1", log
        own = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [str(ENVIRONMENT / "bin" / "vllm"), "serve", str(folder), "--port", str(port)]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *OPTIONS],
                stdout=file,
                stderr=file,
                env=os.environ | own,
                start_new_session=True,
            )

    def __enter__(self) -> VllmServer:
        """Wait until it answers."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/models", timeout=5).status_code == 200:
                    # Its first request makes kernels, for half a minute.
                    body = {"model": str(self.folder), "prompt": [5, 6, 7], "max_tokens": 2}
                    body |= {"seed": 1, "logprobs": 0, "prompt_logprobs": 0}
                    assert httpx.post(f"{self.url}/completions", json=body, timeout=180).is_success
                    return self
            except httpx.TransportError:
                time.sleep(1)
        self.__exit__(None, None, None)
        raise AssertionError(f"vLLM did not start:\n{self._log.read_text()[-3000:]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        """To the server and its engine."""
        os.killpg(self.process.pid, number)
