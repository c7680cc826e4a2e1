"""Processes to attack: ``streamco serve``, ``streamco proxy`` and what is asked of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

__all__ = ["CHAT", "HELLO", "TEXT", "Program", "running"]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
ROOT = Path(__file__).resolve().parents[2]
KEYS = {"RIGHT": "sk-right", "OTHER": "sk-other", "EVIL": "sk-evil"}  # of users of a server, by environment variable
START_SECONDS = 60.0
ANSWER_SECONDS = 40.0


class Program:
    """A program of this package in a process of its own.

    Attributes:
        url: its address, ``http://HOST:PORT``.
        process: the process.
        http: a client session at that address.
        key: the key that ordinary requests come with; "": none.
    """

    def __init__(self, url: str, process: asyncio.subprocess.Process, http: aiohttp.ClientSession, log: BinaryIO, key: str) -> None:
        self.url = url
        self.process = process
        self.http = http
        self.key = key
        self._log = log

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an ordinary request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    async def check(self) -> str:
        """Return "" if health and an ordinary request are answered, else what happened instead."""
        if self.process.returncode is not None:
            return f"the process had ended with {self.process.returncode}: {self.log()[-300:]}"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async with self.http.get("/health") as response:
                    health = response.status
                status, body = await self.post(CHAT, HELLO)
        except (TimeoutError, aiohttp.ClientError) as error:
            return f"no answer: {type(error).__name__}"
        if health != 200:
            return f"health: {health}"
        return "" if status == 200 else f"an ordinary request got {status}: {body[:200]}"

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Post JSON, or bytes as they are; return the status and the text."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **self.headers, **(headers or {})}
        async with self.http.post(path, data=_as_stream(data), headers=sent) as response:
            return response.status, await response.text()

    async def seconds(self, path: str = "/health") -> float:
        """Return how long a small request takes."""
        began = time.monotonic()
        async with self.http.get(path, headers=self.headers) as response:
            await response.read()
        return time.monotonic() - began

    def memory(self) -> int:
        """Return the resident memory in MB; 0 where there is no /proc."""
        with suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) // 1024
        return 0

    def log(self) -> str:
        """Return what the process has written to stderr so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def inherited() -> dict[str, str]:
    """Return this process's environment without keys of the user's own, but with ``KEYS``, and with this package."""
    ours = {name: value for name, value in os.environ.items() if not name.endswith("API_KEY")}
    return {**ours, **KEYS, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))}


def _as_stream(data: bytes) -> Any:
    """Return large bodies as a stream, which aiohttp wants them to be."""
    if len(data) < 1 << 20:
        return data

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1 << 16):
            yield data[start : start + (1 << 16)]

    return pieces()


@asynccontextmanager
async def running(*words: str, key: str = "", env: Mapping[str, str] | None = None) -> AsyncIterator[Program]:
    """Run ``streamco WORDS`` on a free port inside the block."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streamco", *words, "--port", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**inherited(), **(env or {})},
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                assert process.stdout is not None
                line = (await process.stdout.readline()).decode()
            if not line.startswith("listening on "):
                log.seek(0)
                raise AssertionError(f"expected a program that listens, got {line!r}: {log.read()[-500:]!r}")
            url = line.removeprefix("listening on ").strip()
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=80)) as http:
                yield Program(url, process, http, log, key)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
