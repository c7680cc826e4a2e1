"""Third-party OpenAI-compatible servers on the packaged model, each in a process of its own, on the loopback.

Run as a module it is such a server: ``python -m tests.support.peer_servers llama-cpp-python|xllamacpp MODEL``; it prints its port once it
listens. A server is never loaded into the tests' own process: two builds of llama.cpp in one process don't go together.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EngineError
from tests.support.data import ROOT

__all__ = ["running_peer"]

READY_WITHIN = 90.0  # seconds: loading 100 MB beside other tests
MODULES = {"llama-cpp-python": "llama_cpp", "xllamacpp": "xllamacpp"}


@contextmanager
def running_peer(kind: str) -> Iterator[str]:
    """The base URL of a running server of this kind; skips where it can't run."""
    if importlib.util.find_spec(MODULES[kind]) is None:
        pytest.skip(f"not installed: {MODULES[kind]}")
    try:
        model = packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
    command = [sys.executable, "-m", __spec__.name, kind, str(model)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield f"http://127.0.0.1:{_read_port(process)}/v1"
        finally:
            process.kill()


def _read_port(process: subprocess.Popen[str]) -> int:
    timer = threading.Timer(READY_WITHIN, process.kill)
    timer.start()
    try:
        assert process.stdout is not None, "its output is a pipe"
        for line in process.stdout:
            if line.startswith("port "):
                return int(line.split()[1])
    finally:
        timer.cancel()
    raise AssertionError(f"expected a server to print its port within {READY_WITHIN:g} s, got exit status {process.wait()}")


def serve_llama_cpp_python(model: str) -> None:
    import socket

    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    low_level: Any = importlib.import_module("llama_cpp.llama_cpp")
    defaults = low_level.llama_model_default_params

    def without_amx() -> Any:
        params = defaults()
        params.use_extra_bufts = False  # AMX kernels crash where a virtual machine advertises AMX and forbids it
        return params

    low_level.llama_model_default_params = without_amx
    settings = ModelSettings(model=model, model_alias="smollm2", n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    app = create_app(server_settings=ServerSettings(), model_settings=[settings])
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def serve_xllamacpp(model: str) -> None:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"smollm2"}
    params.hostname = "127.0.0.1"
    params.port = 0
    params.n_ctx = 1024
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.no_extra_bufts = True
    params.warmup = False
    server = xllamacpp.Server(params)
    port = server.listening_address.rsplit(":", 1)[1]
    while urlopen(f"http://127.0.0.1:{port}/health", timeout=10).status != 200:
        time.sleep(0.05)
    print("port", port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    {"llama-cpp-python": serve_llama_cpp_python, "xllamacpp": serve_xllamacpp}[sys.argv[1]](sys.argv[2])
