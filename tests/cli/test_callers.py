"""``streamco callers``: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from streamco.cli.callers import FILE
from streamco.cli.main import main
from streamco.proxy.callers.base import Caller, to_nanos
from streamco.proxy.callers.keys import hash_key
from streamco.proxy.callers.store import CallerStore, SettledCost


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["callers", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def found(key: str, path: Path = FILE) -> Caller | None:
    key_hash = hash_key(key)
    assert key_hash is not None
    store = CallerStore(path)
    try:
        return store.find(key_hash)
    finally:
        store.close()


def test_a_caller_is_added_and_its_key_is_alone_on_stdout(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "add", "alice", "--budget", "0.50", "--rate", "60", "--sides", "device,server", "--file", "some.sqlite")
    assert code == 0
    assert err == "alice: 0.50 $ a day, 60 requests a minute, device and server: its key is shown this once\n"
    assert found(out.strip(), folder / "some.sqlite") == Caller(name="alice", budget=to_nanos(0.5), rate=60)
    assert stat.S_IMODE((folder / "some.sqlite").stat().st_mode) == 0o600
    assert not FILE.exists()


def test_no_budget_has_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["callers", "add", "alice"])
    assert "--budget" in capsys.readouterr().err
    _, out, err = run(capsys, "add", "alice", "--budget", "none", "--operator")
    assert err.startswith("alice: no budget, any number of requests a minute, device and server, may read all figures")
    assert found(out.strip()) == Caller(name="alice", is_operator=True)


def test_limits_change_and_what_is_not_named_stays(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "add", "alice", "--budget", "1", "--rate", "5", "--operator")
    key = out.strip()
    assert run(capsys, "set", "alice", "--sides", "server")[:2] == (
        0,
        "alice: 1.00 $ a day, 5 requests a minute, server, may read all figures\n",
    )
    run(capsys, "set", "alice", "--budget", "0.000001", "--rate", "none", "--no-operator")
    assert found(key) == Caller(name="alice", budget=1000, sides=("server",))
    code, _, err = run(capsys, "set", "alice")
    assert (code, "expected --budget, --rate, --sides or --operator, got none" in err) == (2, True)


def test_a_key_is_replaced_and_a_caller_removed(capsys: pytest.CaptureFixture[str]) -> None:
    old = run(capsys, "add", "alice", "--budget", "1")[1].strip()
    code, out, err = run(capsys, "rotate", "alice")
    assert (code, err) == (0, "alice: the new key is shown this once, and the old one is void\n")
    assert found(old) is None
    assert found(out.strip()) is not None
    assert run(capsys, "rm", "alice") == (0, "removed alice\n", "")
    assert found(out.strip()) is None


def test_callers_are_listed_and_their_days(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    noon = 1_795_780_800.0  # 2026-11-27
    monkeypatch.setattr("streamco.cli.callers.time.time", lambda: noon)
    for name, *words in (("bob", "--budget", "none"), ("alice", "--budget", "0.5", "--rate", "60", "--sides", "device", "--operator")):
        run(capsys, "add", name, *words)
    store = CallerStore(FILE)
    store.reserve("a", "alice", 7, noon - 86_400, may_fall_back=False)
    store.settle("a", SettledCost(cost=12_000_000, prompt_tokens=10, completion_tokens=3))
    store.reserve("b", "alice", to_nanos(0.1), noon, may_fall_back=False)
    store.close()
    assert [line.split() for line in run(capsys, "list")[1].splitlines()[1:]] == [
        ["alice", "(operator)", "0.50", "0.00", "0.10", "60", "device"],
        ["bob", "none", "0.00", "0.00", "none", "device,server"],
    ]
    assert [line.split() for line in run(capsys, "usage", "alice")[1].splitlines()[1:]] == [
        ["2026-11-27", "1", "0", "0", "0", "0", "0.00", "0.10"],
        ["2026-11-26", "1", "0", "0", "10", "3", "0.012", "0.00"],
    ]
    assert len(run(capsys, "usage", "alice", "--days", "1")[1].splitlines()) == 2
    assert run(capsys, "usage", "bob") == (0, "", "no requests of bob in 7 days\n")


def test_more_days_than_are_kept_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "alice", "--budget", "1")
    assert run(capsys, "usage", "alice", "--days", "400")[0] == 0
    for days, text in (("401", "expected at most 400 days, because no more are kept, got 401"), ("0", "expected a whole number above 0")):
        with pytest.raises(SystemExit):
            main(["callers", "usage", "alice", "--days", days])
        assert text in capsys.readouterr().err


def test_a_copy_is_a_callers_file_and_takes_the_place_of_none(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    key = run(capsys, "add", "alice", "--budget", "1")[1].strip()
    assert run(capsys, "backup", "copy.sqlite") == (0, "wrote copy.sqlite\n", "")
    assert found(key, folder / "copy.sqlite") == Caller(name="alice", budget=to_nanos(1))
    assert stat.S_IMODE((folder / "copy.sqlite").stat().st_mode) == 0o600
    code, _, err = run(capsys, "backup", "copy.sqlite")
    assert (code, "expected a new file for the copy, got copy.sqlite: File exists" in err) == (2, True)
    assert run(capsys, "list")[0] == 0, "the file itself goes on"


def test_an_empty_list_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "alice", "--budget", "1")
    run(capsys, "rm", "alice")
    assert run(capsys, "list") == (0, "", "no callers; streamco callers add NAME --budget USD makes one\n")


@pytest.mark.parametrize("words", [("list",), ("set", "alice", "--rate", "1"), ("rotate", "alice"), ("rm", "alice"), ("usage", "alice")])
def test_a_file_that_is_not_there_is_not_made(capsys: pytest.CaptureFixture[str], folder: Path, words: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "expected a file that can be read and written at callers.sqlite, got: No such file or directory" in err
    assert not list(folder.iterdir())


def test_two_callers_of_one_name_and_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "alice", "--budget", "1")
    code, out, err = run(capsys, "add", "alice", "--budget", "1")
    assert (code, out) == (2, "")
    assert "expected a name of its own, got alice" in err
    for words in (("set", "bob", "--rate", "1"), ("rotate", "bob"), ("rm", "bob"), ("usage", "bob")):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert "got 'bob'" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--budget", "-1"), "expected a number, 0 or more"),
        (("--budget", "much"), "expected a number, 0 or more"),
        (("--budget", "1", "--rate", "0"), "expected a whole number above 0"),
        (("--budget", "1", "--sides", "cloud"), "expected device, server or device,server"),
        (("--budget", "1", "--sides", ""), "expected device, server or device,server"),
    ],
)
def test_a_limit_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["callers", "add", "alice", *words])
    assert text in capsys.readouterr().err
    assert not FILE.exists()


def test_a_name_that_could_not_be_logged_is_refused_before_a_file_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "add", "a\r\nb", "--budget", "1")
    assert code == 2
    assert "callers: name: expected 1 to 64 letters" in err
    assert run(capsys, "add", "alice", "--budget", "1e9")[0] == 2
    assert not FILE.exists()
