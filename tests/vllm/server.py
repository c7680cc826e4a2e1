"""A vLLM server on the packaged model, on the loopback, in the environment that ``make vllm`` builds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.data import ROOT

__all__ = ["CONTEXT_TOKENS", "MODEL", "VLLM", "Server", "running_vllm"]

VLLM = Path(os.environ.get("STREAMCO_VLLM", ROOT / ".vllm"))  # the environment, with the converted model inside
MODEL = "smollm2"
CONTEXT_TOKENS = 1024
READY_WITHIN = 240.0  # seconds: it imports torch, compiles and measures itself first
OPTIONS = {
    "--served-model-name": MODEL,
    "--host": "127.0.0.1",
    "--max-model-len": str(CONTEXT_TOKENS),
    "--max-num-seqs": "4",
    "--generation-config": "vllm",
}
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class Server:
    """One that runs: ``url`` is its base URL; it dies when told, without a good-bye."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    def kill(self) -> None:
        """SIGKILL to it and to the processes it started; idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def running_vllm(dtype: str = "bfloat16") -> Iterator[Server]:
    """A server that answers, and computes in this type.

    Raises:
        AssertionError: the environment is not there, or the server didn't become ready; the message ends with its last words.
    """
    python, model = VLLM / "bin/python", VLLM / MODEL
    if not (python.exists() and model.is_dir()):
        raise AssertionError(f"expected vLLM's environment and the converted model in {VLLM}, got none: make vllm builds them")
    port = _free_port()
    options = [part for pair in {**OPTIONS, "--dtype": dtype, "--model": str(model), "--port": str(port)}.items() for part in pair]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *options]
    log = VLLM / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=VLLM, env={**os.environ, **SETTINGS}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        server = Server(process, port)
        try:
            _wait_until_ready(process, port, log)
            yield server
        finally:
            server.kill()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.25)
    last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    raise AssertionError(f"expected vLLM to answer within {READY_WITHIN:g} s, got exit status {process.poll()}:\n{last}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
