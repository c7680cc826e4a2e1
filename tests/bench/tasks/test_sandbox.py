"""What a program in the sandbox can do: compute. What it can't: anything that is seen outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bench.tasks import sandbox
from bench.tasks.sandbox import Limits, SandboxError, run_program

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")


PATIENT = Limits(seconds=30.0)


def run(source: str, limits: Limits = PATIENT) -> str:
    return run_program(textwrap.dedent(source), limits)


def children(parent: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{parent}/task").iterdir() for child in (task / "children").read_text().split()]


def runs(process: int) -> bool:
    """Whether a process exists and isn't a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def denied(statement: str) -> str:
    """A program that passes only if the statement is refused by the kernel."""
    return f"import os\ntry:\n    {statement}\nexcept PermissionError:\n    pass\nelse:\n    raise AssertionError('it worked')\n"


def test_a_program_that_ends_has_passed() -> None:
    assert (
        run("from typing import List\nimport math, collections, hashlib\nassert math.prod([2, 3]) == 6\nhashlib.md5(b'x').hexdigest()")
        == "passed"
    )


@pytest.mark.parametrize(
    "source",
    [
        "assert 1 == 2",
        "def f(:",
        "raise SystemExit(0)",
        "import sys\nsys.exit()",
        "import os\nos._exit(0)",
        "def f():\n    return f()\nf()",
        "import ctypes\nctypes.string_at(0)",
        "raise BaseException",
        "import os\nos._exit(77)",
        "import numpy",
        "\ud800",
    ],
)
def test_a_program_that_does_not_come_to_its_end_has_failed(source: str) -> None:
    assert run(source) == "failed"


def test_an_endless_loop_is_stopped() -> None:
    assert run("while True: pass", Limits(seconds=1.0)) in {"timed out", "failed"}  # by the clock, or by processor time


def test_a_program_that_sleeps_is_stopped_by_the_clock() -> None:
    assert run("import time\nwhile True: time.sleep(60)", Limits(seconds=1.0)) == "timed out"


def test_a_program_that_ignores_every_signal_is_stopped_with_its_process() -> None:
    before = children(os.getpid())
    assert run("import signal\nfor n in (2, 15):\n    signal.signal(n, signal.SIG_IGN)\nwhile True: pass", Limits(seconds=1.0)) != "passed"
    assert set(children(os.getpid())) <= set(before)


def test_memory_is_limited() -> None:
    assert run("x = bytearray(1 << 30)") == "failed"
    assert run("x = []\nwhile True: x.append(bytearray(1 << 20))") == "failed"


@pytest.mark.parametrize(
    "statement",
    [
        "os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 0)",
        "os.setsid()",
        "os.pipe()",
        "os.mkdir('/tmp/from_the_sandbox')",
        "os.unlink('/tmp/from_the_sandbox')",
        "os.rename('/tmp/a', '/tmp/b')",
        "os.chmod('/tmp', 0o777)",
        "os.listdir('/')",
        "open('/tmp/from_the_sandbox', 'w')",
        "open('/etc/hostname')",
        "open('/proc/self/environ')",
        "open(f'/proc/{os.getppid()}/environ')",
    ],
)
def test_a_call_that_reaches_outside_is_refused(statement: str) -> None:
    assert run(denied(statement)) == "passed"
    assert not Path("/tmp/from_the_sandbox").exists()


def test_limits_can_not_be_raised() -> None:
    assert run("import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))") == "failed"


def test_a_fork_bomb_makes_no_process() -> None:
    bomb = """
        import os
        made = 0
        while not made:
            try:
                made = os.fork()
            except PermissionError:
                break
        assert not made
        """
    assert run(bomb) == "passed"


def test_threads_are_refused() -> None:
    assert run("import _thread\n_thread.start_new_thread(print, ())") == "failed"


def test_raw_system_calls_are_refused() -> None:
    calls = {"x86_64": (41, 57, 59, 101, 257, 425), "aarch64": (198, 220, 221, 117, 56, 425)}[os.uname().machine]
    source = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for number in {calls}:  # socket, fork or clone, execve, ptrace, openat, io_uring_setup
            assert libc.syscall(number, 2, 1, 0, 0) == -1
            assert ctypes.get_errno() == 1
        """
    assert run(source) == "passed"


def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(f"import _socket\n_socket.socket(2, 1).connect(('127.0.0.1', {port}))") == "failed"
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run("import os\nassert 'OPENAI_API_KEY' not in os.environ\nassert not os.environ.get('HOME')") == "passed"


def test_a_flood_of_output_does_no_harm() -> None:
    assert run("for _ in range(2000): print('x' * 100_000)") == "passed"


def test_a_program_that_replaces_what_reports_the_end_has_not_passed_by_that() -> None:
    assert run("import os\nos.write = None\nos._exit = None\nassert False") == "failed"


def test_a_machine_that_can_not_lock_it_in_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("import os\nos._exit(77)\n")
    monkeypatch.setattr(sandbox, "_CHILD", child)
    with pytest.raises(SandboxError, match="expected Linux with seccomp"):
        run("pass")


def test_the_child_ends_with_its_parent() -> None:
    source = """if True:
        from bench.tasks.sandbox import Limits, run_program
        print("begun", flush=True)
        run_program("while True: pass", Limits(seconds=60.0))
        """
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        while not (found := children(parent.pid)) or not is_locked_in(found[0]):
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.communicate()
    while runs(found[0]):  # as long as the test may take
        time.sleep(0.01)


def is_locked_in(process: int) -> bool:
    return "Seccomp:\t2" in Path(f"/proc/{process}/status").read_text()
