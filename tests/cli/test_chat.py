"""The real program in a real terminal, its endpoints scripted."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamco.calibration.profile_store import load_profile, save_profile
from streamco.cli import chat as chat_command
from streamco.cli.main import main
from streamco.endpoints.base import Request
from streamco.profiles import Profile
from streamco.profiles.rated_answer import RatedAnswer
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream
from tests.cli.emulator import painted
from tests.cli.terminal import ROOT, Terminal, terminal

UTF8 = {"PYTHONIOENCODING": "utf-8:strict"}
PROGRAM = ("-m", "tests.cli.program")
# With other seeds the loser of the first race may be left to run to its first token, and could not take over.
FIRST_RACE_ENDS = ("--seed", "1")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(*PROGRAM, width=200, env={"XDG_STATE_HOME": str(tmp_path)}) as driven:
        driven.expect("Ctrl-D quits")
        driven.expect("pace smooth")
        yield driven


def ask(chat: Terminal, prompt: str, answer: str) -> None:
    chat.type(f"{prompt}\r")
    chat.expect(answer)
    chat.expect("budget ")  # the toolbar: the next prompt is ready


def run(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *PROGRAM, *words],
        input=stdin,
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
        env=os.environ | {"STREAMCO_NO_SAVE": "1"} | (env or {}),
    )


# A person at a terminal


@pytest.mark.long
def test_five_turns_keep_the_conversation(chat: Terminal) -> None:
    for turn, word in enumerate(("one", "two", "three", "four", "five")):
        ask(chat, word, f"You said '{word}' in {2 * turn + 1} messages.")
    chat.type("\x04")
    assert chat.wait() == 0


def test_the_line_under_an_answer_tells_who_made_it_and_the_text_has_their_tint(chat: Terminal) -> None:
    ask(chat, "hello", "device answered · first token")
    assert "38;2;169;220;182" in chat.raw
    assert re.search(r"first token \d+ ms · \d+\.\d tokens/s · 7 tokens · \$0\.00001", chat.raw.replace("\x1b[0m", ""))


def tint_of(raw: str, text: str) -> str:
    """The colour that was in force where this was written last; "" for the terminal's own."""
    shown = painted(raw)
    start = "".join(character for character, _ in shown).rindex(text)
    return shown[start][1].removeprefix("38;2;")


def test_an_answer_that_moves_changes_its_tint_and_the_line_under_it_says_where(tmp_path: Path) -> None:
    with terminal(*PROGRAM, *FIRST_RACE_ENDS, width=200, env={"XDG_STATE_HOME": str(tmp_path)}) as chat:
        chat.expect("Ctrl-D quits")
        chat.expect("pace smooth")
        ask(chat, "story", "server answered · moved to device after token ")
        chat.type("/report\r")
        text = chat.expect("policy auto")
    moved = re.search(r"after token (\d+), (\d+)% cheaper", chat.raw.replace("\x1b[0m", ""))
    assert moved, chat.raw[-500:]
    token, saved = int(moved[1]), int(moved[2])
    assert 0 < token < 60
    assert saved > 30 * (60 - token) / 57, "a slow machine moves later than behind the third token, and what was written can't be saved"
    assert tint_of(chat.raw, "word0 ") == "168;199;250"
    assert tint_of(chat.raw, "word89") == "169;220;182"
    for words in (f"device, after token {token} (cheaper)", "its first token, tokens in hand, delayed", "saved by it, energy included"):
        assert words in text


@pytest.mark.long
def test_whoever_begins_an_answer_finishes_it_where_that_is_asked_for(tmp_path: Path) -> None:
    with terminal(*PROGRAM, *FIRST_RACE_ENDS, "--no-migration", width=200, env={"XDG_STATE_HOME": str(tmp_path)}) as chat:
        chat.expect("Ctrl-D quits")
        chat.expect("pace smooth")
        ask(chat, "story", "server answered · first token")


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: Terminal, tmp_path: Path) -> None:
    chat.type("slow\r")
    chat.expect("word5 ")
    chat.type("\x03")
    chat.expect("stopped")
    chat.expect("policy auto")
    ask(chat, "still there?", "You said 'still there?' in 3 messages.")
    ask(chat, f"/save {tmp_path}/talk.md", "saved 4 turns")
    saved = (tmp_path / "talk.md").read_text()
    assert "## Answer (stopped)\n\nword0 word1 word2" in saved
    assert "word399" not in saved
    chat.type("/quit\r")
    assert chat.wait() == 0


@pytest.mark.long
def test_ctrl_c_before_the_first_token_withdraws_the_question(chat: Terminal) -> None:
    chat.type("silence\r")
    chat.expect("waiting for")
    chat.type("\x03")
    chat.expect("stopped")
    chat.expect("policy auto")
    ask(chat, "next", "You said 'next' in 1 messages.")


def test_ctrl_c_at_the_prompt_only_clears_the_line(chat: Terminal) -> None:
    chat.type("half a line\x03")
    chat.expect("Ctrl-D or /quit leaves")
    ask(chat, "whole", "You said 'whole' in 1 messages.")


@pytest.mark.long
def test_an_endpoint_that_fails_leaves_its_text_and_the_program_goes_on(chat: Terminal) -> None:
    chat.type("broken\r")
    chat.expect("Half an answer")
    chat.expect("failed")
    chat.expect("error: device: expected a token within 30 s, got none")
    chat.expect("the text so far is kept")
    chat.expect("policy auto")
    ask(chat, "and now", "You said 'and now' in 3 messages.")


def test_when_nobody_answers_the_error_names_each_and_the_program_goes_on(chat: Terminal) -> None:
    chat.type("dead\r")
    message = chat.expect("device: expected a connection, got it refused")
    assert "error: no endpoint could give the answer: server: expected a connection, got it refused" in message
    chat.expect("policy auto")
    ask(chat, "again", "You said 'again' in 1 messages.")


def test_markdown_is_rendered_and_the_spinner_leaves_nothing_behind(chat: Terminal) -> None:
    chat.type("markdown\r")
    chat.expect("• two")
    chat.expect("device answered")
    assert "\x1b[?25h" in chat.raw.rpartition("\x1b[?25l")[2]  # the cursor is back


def test_a_long_answer_scrolls_and_is_never_cut_short(chat: Terminal) -> None:
    chat.type("long\r")
    chat.expect("device answered")
    numbers = [int(number) for number in re.findall(r"item number (\d+)", chat.raw)]
    assert sorted(set(numbers)) == list(range(1, 121))


@pytest.mark.long
def test_several_lines_make_one_prompt(chat: Terminal) -> None:
    chat.type("first\x1b\rsecond\\\rthird\r")
    chat.expect("You said 'first")
    chat.expect("third' in 1 messages.")


def test_a_prompt_typed_while_an_answer_is_written_is_the_next_one(chat: Terminal) -> None:
    chat.type("markdown\r")
    chat.expect("Title")
    chat.type("typed ahead\r")
    chat.expect("You said 'typed ahead' in 3 messages.")


@pytest.mark.long
def test_prompts_are_remembered_for_this_run_alone_if_nothing_is_to_be_kept(tmp_path: Path) -> None:
    with terminal(*PROGRAM, "--no-save", env={"XDG_STATE_HOME": str(tmp_path)}) as chat:
        chat.expect("pace smooth")
        ask(chat, "forget me", "You said 'forget me'")
        chat.type("\x1b[A\r")
        chat.expect("You said 'forget me' in 3 messages.")
        chat.type("\x04")
        chat.wait()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.long
def test_prompts_are_remembered_from_one_run_to_the_next(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    with terminal(*PROGRAM, env=env) as first:
        first.expect("Ctrl-D quits")
        first.expect("pace smooth")
        ask(first, "remember me", "You said 'remember me'")
        first.type("\x04")
        first.wait()
    history = tmp_path / "streamco" / "history"
    assert "remember me" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    with terminal(*PROGRAM, env=env) as second:
        second.expect("Ctrl-D quits")
        second.expect("pace smooth")
        second.type("\x1b[A\r")
        second.expect("You said 'remember me' in 1 messages.")


# Commands


def test_help_lists_the_commands_and_keys(chat: Terminal) -> None:
    chat.type("/help\r")
    text = chat.expect("policy auto")
    for words in (
        "/new",
        "/system [TEXT|off]",
        "/report",
        "/pace",
        "/budget",
        "/policy",
        "/save [-f] FILE",
        "/load",
        "/quit",
        "Ctrl-C",
        "Alt-Enter",
    ):
        assert words in text


def test_a_misspelt_command_gets_a_suggestion(chat: Terminal) -> None:
    ask(chat, "/hlep", "error: unknown command /hlep: did you mean /help?")
    ask(chat, "//home is a path", "You said '/home is a path' in 1 messages.")


def test_a_typed_line_names_a_file_and_a_pasted_one_does_not(chat: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello there")
    chat.type(f"@{tmp_path}/a.txt why?\r")
    chat.expect("sent with it: a.txt, 11 bytes of text")
    chat.expect("You said 'a.txt:")
    chat.expect("budget ")
    chat.type(f"\x1b[200~@{tmp_path}/a.txt\x1b[201~\r")
    text = chat.expect("in 3 messages.")
    assert "sent with it" not in text
    chat.expect("budget ")


def test_the_last_exchange_is_asked_again_edited_and_copied(chat: Terminal) -> None:
    ask(chat, "one", "You said 'one' in 1 messages.")
    ask(chat, "/retry", "You said 'one' in 1 messages.")
    chat.type("/edit\r")
    chat.expect("> one")
    chat.type(" more\r")
    chat.expect("You said 'one more' in 1 messages.")
    chat.expect("budget ")
    chat.type("/copy\r")
    chat.expect("characters to the terminal's clipboard")
    assert "\x1b]52;c;WW91IHNhaWQgJ29uZSBtb3JlJyBpbiAxIG1lc3NhZ2VzLg==\x07" in chat.raw


def test_a_model_is_changed_in_the_running_chat(chat: Terminal) -> None:
    ask(chat, "one", "You said 'one' in 1 messages.")
    ask(chat, "/model", "device: the packaged model")
    ask(chat, "/server small http://127.0.0.1:9/v1", "server: small at http://127.0.0.1:9/v1 from now on, before: none")
    ask(chat, "two", "You said 'two' in 3 messages.")


def test_new_forgets_the_conversation(chat: Terminal) -> None:
    ask(chat, "one", "in 1 messages.")
    ask(chat, "/new", "a new conversation")
    ask(chat, "two", "in 1 messages.")


def test_a_system_message_is_sent_with_every_prompt(chat: Terminal) -> None:
    ask(chat, "/system", "system message: none")
    ask(chat, "/system Be terse.", "system message: Be terse.")
    ask(chat, "one", "in 2 messages.")
    ask(chat, "/system off", "system message: none")
    ask(chat, "two", "in 3 messages.")


def test_report_tells_everything_about_the_last_answer(chat: Terminal) -> None:
    ask(chat, "/report", "no answer yet")
    ask(chat, "one", "You said 'one'")
    chat.type("/report\r")
    assert "which side starts when" not in chat.expect("policy auto")
    chat.type("/report --all\r")
    text = chat.expect("policy auto")
    for words in ("answered by", "which side starts when", "endpoints", "smoothness", "both at once", "TTFT"):
        assert words in text


def test_settings_are_shown_and_changed(chat: Terminal) -> None:
    for typed, said in (
        ("/pace", "pace: smooth"),
        ("/pace 50", "pace: 50 tokens/s"),
        ("/pace fast", "error: pace: expected off, reading, listening, smooth or tokens per second above 0, got 'fast'"),
        ("/budget", "budget: 30%"),
        ("/budget 50%", "budget: 50%"),
        ("/budget 2", "error: budget: expected a share from 0 to 1, such as 0.3 or 30%, got '2'"),
        ("/policy", "policy: auto (others: "),
        ("/save", "error: /save: expected a file name, got nothing"),
        ("/save /nowhere/at/all", "error: [Errno 2] No such file or directory"),
    ):
        ask(chat, typed, said)
    chat.type("/policy server-only\r")
    chat.expect("policy: server-only")
    chat.expect("policy server-only · budget 0.5 · pace 50 tokens/s")
    chat.type("one\r")
    chat.expect("server answered")


# Without colours


@pytest.mark.long
def test_no_color_means_none(tmp_path: Path) -> None:
    for words, env in ((("--no-color",), {}), ((), {"NO_COLOR": "1"}), (("--theme", "mono"), {})):
        with terminal(*PROGRAM, *words, env={"XDG_STATE_HOME": str(tmp_path), **env}) as plain:
            plain.expect("Ctrl-D quits")
            plain.expect("pace smooth")
            ask(plain, "markdown", "• two")
            assert not re.search(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m", plain.raw)


def test_a_dumb_terminal_gets_plain_text() -> None:
    with terminal(*PROGRAM, "--prompt", "hello", env={"TERM": "dumb"}) as plain:
        assert plain.wait() == 0
        assert "You said 'hello' in 1 messages." in plain.raw
        assert "\x1b[38" not in plain.raw


# Pipes


def test_with_lines_a_pipes_prompts_are_answered_one_by_one_in_plain_text() -> None:
    done = run("--lines", stdin="one\n\ntwo\n/new\nthree")
    assert done.returncode == 0
    assert done.stdout == "You said 'one' in 1 messages.\nYou said 'two' in 3 messages.\nYou said 'three' in 1 messages.\n"
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.count("device answered") == 3


def test_a_failure_in_a_pipe_is_told_on_stderr_and_by_the_exit_code() -> None:
    done = run("--lines", stdin="broken\none\n/nosuch\n")
    assert done.returncode == 1
    assert done.stdout == "Half an answer\nYou said 'one' in 3 messages.\n"
    assert "error: device: expected a token within 30 s, got none" in done.stderr
    assert "unknown command /nosuch" in done.stderr


def test_quit_in_a_pipe_ends_it() -> None:
    assert run("--lines", stdin="/quit\nnever\n").stdout == ""
    assert run("--lines", stdin="exit\nnever\n").stdout == ""


def test_a_pipe_is_one_prompt() -> None:
    done = run(stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "You said 'one\ntwo' in 1 messages.\n")
    assert json.loads(run("--json", stdin="one").stdout)["text"] == "You said 'one' in 1 messages."


def test_a_pipe_is_sent_before_the_prompt() -> None:
    done = run("--prompt", "explain", stdin="print(1)\n")
    assert (done.returncode, done.stdout) == (0, "You said 'print(1)\n\nexplain' in 1 messages.\n")


def test_a_prompt_may_stand_alone() -> None:
    assert run("hello").stdout == "You said 'hello' in 1 messages.\n"
    assert run("explain", stdin="print(1)\n").stdout == "You said 'print(1)\n\nexplain' in 1 messages.\n"
    both = run("one", "--prompt", "two")
    assert (both.returncode, "prompt: can be given alone or after --prompt, not both" in both.stderr) == (2, True)


def test_a_prompt_on_the_command_line_is_answered_at_a_terminal_and_that_is_all() -> None:
    with terminal(*PROGRAM, "hello", env={"STREAMCO_NO_SAVE": "1"}) as asked:
        asked.expect("You said 'hello' in 1 messages.")
        assert asked.wait() == 0
        assert "Ctrl-D quits" not in asked.raw


def test_an_empty_pipe_without_a_prompt_is_refused() -> None:
    done = run(stdin=" \n")
    assert done.returncode == 2
    assert "prompt: expected --prompt TEXT or text on stdin, got neither" in done.stderr


def test_bytes_in_a_pipe_that_are_no_text_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, *PROGRAM], input=b"\xff\xfe\x00", capture_output=True, cwd=ROOT, timeout=60, check=False, env=os.environ | UTF8
    )
    assert done.returncode == 2
    assert b"stdin: expected text" in done.stderr


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "streamco" / "conversations").glob("*"))


@pytest.mark.long
def test_continue_goes_on_with_the_last_conversation(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "STREAMCO_NO_SAVE": "0"}
    run("--prompt", "one", "--system", "Be terse.", env=env)
    assert run("-c", "--prompt", "two", env=env).stdout == "You said 'two' in 4 messages.\n"
    assert run("-c", "--prompt", "three", env=env).stdout == "You said 'three' in 6 messages.\n"
    assert run("--prompt", "four", env=env).stdout == "You said 'four' in 1 messages.\n"
    assert [stat.S_IMODE(path.stat().st_mode) for path in kept(tmp_path)] == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "streamco" / "conversations").stat().st_mode) == 0o700


def test_a_continued_conversation_says_in_a_line_that_its_models_have_changed(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "STREAMCO_NO_SAVE": "0"}
    run("one", "--server", "large", "--base-url", "http://127.0.0.1:9/v1", env=env)
    assert "models have changed" not in run("-c", "two", env=env).stderr
    other = run("-c", "three", "--server", "small", env=env)
    assert other.stdout == "You said 'three' in 5 messages.\n"
    assert "this conversation was with the packaged model and large at http://127.0.0.1:9/v1, and goes on with the packaged" in other.stderr


def test_a_file_is_attached_and_an_image_needs_a_side_that_takes_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hi")
    done = run("-a", str(tmp_path / "a.txt"), "why?")
    assert done.stdout == "You said 'a.txt:\n```\nhi\n```\n\nwhy?' in 1 messages.\n"
    assert "sent with it: a.txt, 2 bytes" in done.stderr
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused = run("-a", str(tmp_path / "a.png"), "what?")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "image: expected a model that takes images, got the packaged model, of which none does" in refused.stderr
    missing = run("-a", str(tmp_path / "nosuch"), "what?")
    assert (missing.returncode, "nosuch: expected a file, got nothing there" in missing.stderr) == (2, True)


def test_a_pipe_names_no_files() -> None:
    assert run("--lines", stdin="@/etc/hostname\n\ue040etc/hostname\n").stdout == (
        "You said '@/etc/hostname' in 1 messages.\nYou said 'etc/hostname' in 3 messages.\n"
    )


@pytest.mark.long
def test_nothing_is_kept_if_that_is_turned_off(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "STREAMCO_NO_SAVE": "0"}
    run("--prompt", "one", "--no-save", env=env)
    run("--prompt", "one", env=env | {"STREAMCO_NO_SAVE": "1"})
    assert kept(tmp_path) == []
    done = run("-c", "--prompt", "two", env=env)
    assert (done.returncode, "--continue: expected a kept conversation, got none" in done.stderr) == (2, True)


@pytest.mark.long
def test_a_continued_conversation_can_be_left_as_it_was(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "STREAMCO_NO_SAVE": "0"}
    run("--prompt", "one", env=env)
    assert run("-c", "--no-save", "--prompt", "two", env=env).stdout == "You said 'two' in 3 messages.\n"
    assert run("-c", "--prompt", "three", env=env).stdout == "You said 'three' in 3 messages.\n"


@pytest.mark.long
def test_a_conversation_at_the_terminal_is_kept_and_loaded(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "STREAMCO_NO_SAVE": "0"}
    for words, prompt, answer in (
        ((), "one", "in 1 messages."),
        (("-c",), "two", "in 3 messages."),
        ((), "/load 1", "going on after 4 turns"),
    ):
        with terminal(*PROGRAM, *words, width=200, env=env) as chat:
            chat.expect("pace smooth")
            ask(chat, prompt, answer)
            if prompt == "/load 1":
                ask(chat, "three", "in 5 messages.")
            chat.type("exit\r")
            assert chat.wait() == 0


@pytest.mark.long
def test_in_a_pipe_an_answer_moves_only_where_a_pace_is_set() -> None:
    assert "server answered · first token" in run(*FIRST_RACE_ENDS, "--prompt", "story").stderr
    paced = run(*FIRST_RACE_ENDS, "--prompt", "story", "--pace", "25")
    assert "server answered · moved to device after token" in paced.stderr
    assert paced.stdout == "".join(f"word{number} " for number in range(90)) + "\n"
    smooth = run(*FIRST_RACE_ENDS, "--prompt", "story", "--pace", "smooth")
    assert "server answered · first token" in smooth.stderr
    assert "moved" not in smooth.stderr, "a smooth pace sets no rate"
    assert smooth.stdout == paced.stdout


# One prompt


def test_one_prompt_streams_its_text_and_nothing_else_to_stdout() -> None:
    done = run("--prompt", "hello", "--system", "Be terse.")
    assert (done.returncode, done.stdout) == (0, "You said 'hello' in 2 messages.\n")


def test_notes_begin_on_a_line_of_their_own_after_the_answer() -> None:
    words = [sys.executable, *PROGRAM, "--prompt", "hello", "-v"]
    merged = subprocess.check_output(words, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, text=True, cwd=ROOT, timeout=60)
    assert re.search(r"^You said 'hello' in 1 messages\.\n.* INFO streamco: .*\n\[device answered", merged, re.MULTILINE)
    assert run("--prompt", "hello", "-v").stdout == "You said 'hello' in 1 messages.\n"


def test_json_is_one_object_with_the_text_and_the_whole_report() -> None:
    done = run("--prompt", "hello", "--json")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert answer["text"] == "You said 'hello' in 1 messages."
    assert answer["error"] is None
    report = answer["report"]
    assert report["winner"] == "device"
    assert {part["name"]: part["outcome"] for part in report["endpoints"]} == {"device": "won", "server": "lost"}
    assert {"ttft", "duration", "tokens", "dispatch", "quality", "cost_usd", "energy_j", "wasted_tokens"} <= report.keys()


def test_json_of_a_failure_holds_the_partial_text_and_the_error() -> None:
    done = run("--prompt", "broken", "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["text"] == "Half an answer"
    assert answer["error"]["type"] == "EndpointTimeoutError"
    assert answer["error"]["message"].startswith("device: expected a token within 30 s, got none; server can't go on with a begun answer")
    assert answer["report"]["winner"] == "device"


def test_ctrl_c_during_one_prompt_keeps_what_came_and_exits_130() -> None:
    with subprocess.Popen(
        [sys.executable, *PROGRAM, "--prompt", "slow"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(18)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + rest).startswith("word0 word1 word2")
    assert rest.endswith("\n")


def test_ctrl_c_during_json_still_prints_the_object() -> None:
    with subprocess.Popen(
        [sys.executable, *PROGRAM, "--prompt", "silence", "--json"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # loading the model ...
        import time

        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["is_stopped"] is True


# Usage


def test_ratings_are_added_to_those_that_another_chat_has_kept_in_the_meantime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    began, other = (
        RatedAnswer(mean=0.5, tenth=0.1, median=0.5, tokens=3, is_complete=True, prompt_tokens=number, good=False) for number in (7, 8)
    )
    save_profile(Profile(ratings=(began,)), path)

    class Busy(ScriptedEndpoint):
        def open(self, request: Request) -> ScriptedStream:
            save_profile(Profile(ratings=(began, other)), path)
            return super().open(request)

    monkeypatch.setattr(chat_command, "make_device", lambda _args: Busy("device", [(0.0, "D")], kind="device", tokens=10, probability=0.9))
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n/good\n"))
    assert main(["chat", "--lines", "--no-save", "--quality", "gate", "--profile", str(path)]) == 0
    kept = load_profile(path).ratings
    assert kept[:2] == (began, other)
    assert [(round(each.mean, 6), each.good) for each in kept[2:]] == [(0.9, True)]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--json",), "streamco: prompt: expected --prompt TEXT or text on stdin, got neither"),
        (("--lines", "--json"), "streamco: --json: only valid with --prompt TEXT"),
        (("--lines", "--prompt", "a"), "streamco: --lines: can't be combined with --prompt"),
        (("--base-url", "http://127.0.0.1:9/v1"), "--base-url: only valid with --server MODEL"),
        (("--policy", "server-only"), "--policy server-only: only valid with --server MODEL"),
        (("--prices", "1/2"), "--prices: only valid with --server MODEL or --verifier URL"),
        (("--api-key-env", "KEY"), "--api-key-env: only valid with --server MODEL or --verifier URL"),
        (("--no-device", "--server", "m", "--device", "m.gguf"), "--device: expected a device, got --no-device"),
        (("--no-device", "--server", "m", "--policy", "device-only"), "--policy device-only: expected a device, got --no-device"),
        (("--verifier", "ws://127.0.0.1:9"), "--verifier: only valid with --mode speculate or --mode auto, got race"),
        (("--drafter", "lookup"), "--drafter: only valid with --mode speculate or --mode auto, got race"),
        (("--mode", "speculate", "--drafter", "ngram"), "expected device or lookup, got 'ngram'"),
        (
            ("--mode", "speculate", "--verifier", "ws://127.0.0.1:9", "--routing", "random"),
            "--routing: only valid with several --verifier URL, got 1",
        ),
        (("--budget", "2"), "budget: expected a share from 0 to 1"),
        (("--pace", "fast"), "pace: expected off, reading, listening"),
        (("--policy", "nosuch"), "policy: expected one of auto"),
        (("--max-tokens", "0"), "expected a whole number above 0, got '0'"),
        (("--temperature", "-1"), "expected a number, 0 or more, got '-1'"),
        (("--theme", "pink"), "expected auto, dark, light or mono, got 'pink'"),
        (("--no-device", "--server", "m", "--profile", "/nowhere", "--prompt", "a"), "profile: expected a file that can be read"),
        (("--quality", "gate", "--profile", "/nowhere/p.json", "--prompt", "a"), "p.json: its folder doesn't exist"),
    ],
)
def test_wrong_usage_is_told_in_a_line_and_exits_2(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
