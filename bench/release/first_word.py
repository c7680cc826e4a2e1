"""How long does a person wait from an empty folder to the first streamed word: ``python -m bench.release.first_word [--picture FOLDER]``.

(a) Beside a server that runs on the machine already, as an Ollama does: a new environment, ``pip install streamco[cli]`` from this clone
without a compiler (``STREAMCO_BUILD_NATIVE=no``), ``streamco chat --device http://... --prompt ...``. The server is a scripted one, which
answers at once, so the seconds are those of installing and starting.

(b) ``make demo`` in a fresh copy of the clone: llama.cpp is compiled, then two models answer.

Each command's words on the terminal are kept with the second at which they came; ``--picture`` writes them as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from streamco.testing import ScriptedServer, json_answer, stream_answer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "qwen2.5:1.5b"
SHOWN = 38  # last lines of a command: all answers of the demo
ANSWER = ["The sky is blue because air scatters short waves", " more than long ones."]


class Terminal:
    """Runs commands and keeps what they print, with the second since the beginning."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []

    async def run(self, *words: str, cwd: Path, until: str = "", **environment: str) -> float | None:
        """Run a command; return the second at which ``until`` was printed, None: it was not, or is not waited for.

        Raises:
            SystemExit: the command failed.
        """
        shown = " ".join(words)
        for path, name in ((f"{cwd}/", ""), (sys.executable, "python3"), (str(ROOT), ".")):
            shown = shown.replace(path, name)
        self._print(f"$ {shown}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTHONPATH", "VIRTUAL_ENV"))}
        process = await asyncio.create_subprocess_exec(
            *words, cwd=cwd, env=kept | environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        assert process.stdout is not None
        last: deque[tuple[float, str]] = deque(maxlen=SHOWN)
        line, seen = "", None
        while data := await process.stdout.read(4096):
            second = time.monotonic() - self.began
            *whole, line = (line + data.decode(errors="replace")).split("\n")
            if until and seen is None and any(until in each for each in (*whole, line)):
                seen = second
            last.extend((second, each) for each in whole if each.strip())
        if line.strip():
            last.append((time.monotonic() - self.began, line))
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


async def beside_a_server(folder: Path) -> tuple[Terminal, float]:
    """Install without a compiler and ask a server of this machine; the terminal, and the second of the first word."""
    models = json_answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
    answer = stream_answer(ANSWER)
    async with ScriptedServer(answer) as server:
        server.route("/v1/models", models)
        terminal = Terminal()
        await terminal.run(sys.executable, "-m", "venv", "venv", cwd=folder)
        python = str(folder / "venv" / "bin" / "python")
        await terminal.run(python, "-m", "pip", "install", "-qqq", f"{ROOT}[cli]", cwd=folder, STREAMCO_BUILD_NATIVE="no")
        device = ("--device", server.url, "--device-model", MODEL)
        words = (str(folder / "venv" / "bin" / "streamco"), "chat", *device, "--no-save", "--prompt", "Why is the sky blue?")
        seen = await terminal.run(*words, cwd=folder, until="The sky")
        if seen is None:
            raise SystemExit("expected the answer on the terminal, got none")
        return terminal, seen


async def the_demo(folder: Path) -> tuple[Terminal, float]:
    """Run ``make demo`` in a copy of the clone; the terminal, and the second of the first answer."""
    copy = folder / "clone"
    terminal = Terminal()
    await terminal.run("git", "clone", "--quiet", str(ROOT), str(copy), cwd=folder)
    seen = await terminal.run("make", "demo", cwd=copy, until="first token")
    return terminal, time.monotonic() - terminal.began if seen is None else seen


def measure(options: argparse.Namespace) -> None:
    for name, run in (("server", beside_a_server), ("demo", the_demo)):
        if name == options.skip:
            continue
        with tempfile.TemporaryDirectory() as folder:
            terminal, seconds = asyncio.run(run(Path(folder)))
        title = {"server": "beside a server on this machine, without a compiler", "demo": "make demo, with a compiler"}[name]
        print(f"{title}: first word after {seconds:.1f} s")
        if options.picture:
            Path(options.picture).mkdir(exist_ok=True)
            terminal.save(Path(options.picture) / f"first_word_{name}.svg", f"{title}: {seconds:.1f} s")


def main() -> int:
    """Measure both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--skip", choices=("server", "demo"), help="leave this one out")
    parser.add_argument("--picture", metavar="FOLDER", help="write what the terminal showed as SVG")
    options = parser.parse_args()
    if options.skip != "demo" and shutil.which("make") is None:
        parser.error("expected make for the demo, got none: --skip demo")
    measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
