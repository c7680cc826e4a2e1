"""A client without asyncio, in threads, notebooks, forks, Flask and Django: each call works or raises, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

import streamco
from streamco.client.sync_client import SyncChatStream, SyncCompletions, SyncEventStream, SyncStream
from streamco.errors import ConcurrentRead, ConfigError, StreamClosed, StreamConsumed, UnparsedAnswer, UsageError
from streamco.policies.eligibility import RequestFacts
from streamco.testing import ScriptedResponse, ScriptedServer, Stall, chunk_event, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import HELLO, device, server, words

WAIT = 20.0  # seconds within which what must happen has happened


class Animal(pydantic.BaseModel):
    name: Literal["ant", "cat"]


@contextmanager
def opened(*script: tuple[float, Any], **options: Any) -> Iterator[tuple[streamco.SyncClient, ScriptedEndpoint]]:
    """A client over a scripted endpoint, whose times are in seconds."""
    remote = server(script or words(0.0, 0.0, 0.0))
    with streamco.SyncClient(server=remote, **options) as client:
        yield client, remote


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it didn't happen"
        time.sleep(0.005)


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamco-sync"]


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    before = loop_threads()
    yield
    gc.collect()
    until(lambda: set(loop_threads()) <= set(before))


# Calls and shapes


def test_a_whole_answer_and_a_stream_have_the_same_shapes_as_with_asyncio() -> None:
    with opened() as (client, _):
        answer = client.chat.completions.create(messages=HELLO)
        assert answer.choices[0].message.content == "w0 w1 w2 "
        assert answer.report is not None
        assert answer.report.winner == "server"
        stream = client.chat.completions.create(messages=HELLO, stream=True)
        assert isinstance(stream, SyncChatStream)
        assert stream.opening.winner == "server"
        assert [chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content] == ["w0 ", "w1 ", "w2 "]
        assert (stream.report.winner, stream.source, stream.usage.completion_tokens) == ("server", "server", 3)
        assert "".join(token.text for token in client.stream("hello")) == "w0 w1 w2 "
        assert (client.totals.answers, client.degraded, client.endpoint_names, client.pace) == (3, (), ("server",), None)
    assert client.totals.answers == 3, "also after the end"


def test_the_methods_take_what_those_of_the_client_take() -> None:
    for name in ("__init__", "with_options", "rate", "profile", "start", "count_tokens", "check_device"):
        assert signature(getattr(streamco.SyncClient, name)).parameters == signature(getattr(streamco.Client, name)).parameters
    assert signature(streamco.SyncClient.stream).parameters == signature(streamco.Client.stream).parameters
    public = {name for name in vars(SyncCompletions) if not name.startswith("_")}
    assert public == {"create", "parse", "stream"}


def test_answers_are_read_as_objects_and_as_events() -> None:
    text = [(0.0, '{"name": '), (0.0, '"cat"}')]
    with opened(*text) as (client, _):
        parsed = client.chat.completions.parse(messages=HELLO, response_format=Animal)
        assert parsed.choices[0].message.parsed == Animal(name="cat")
        with client.chat.completions.stream(messages=HELLO, response_format=Animal) as stream:
            assert isinstance(stream, SyncEventStream)
            for event in stream:
                if event.type == "content.delta":
                    break
            types = [event.type for event in stream]
            final = stream.get_final_completion()
        assert types[-1] == "content.done"
        assert final.choices[0].message.parsed == Animal(name="cat")
        assert stream.report.winner == "server"
    with opened((0.0, "{}")) as (client, _), pytest.raises(UnparsedAnswer):
        client.chat.completions.parse(messages=HELLO, response_format=Animal)


def test_errors_are_those_of_the_client() -> None:
    with opened() as (client, _):
        with pytest.raises(TypeError, match="temprature"):
            client.chat.completions.create(messages=HELLO, temprature=0)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="temperature"):
            client.stream("hello", temperature=9)
        with pytest.raises(UsageError, match="rate"):
            client.with_options(mode=streamco.Race(quality=streamco.QualityGate())).rate("x", good=True)
        stream = client.stream("hello")
        with pytest.raises(StreamConsumed):
            _ = stream.report
        list(stream)
        with pytest.raises(StreamConsumed):
            list(stream)
    with pytest.raises(ConfigError, match="neither"):
        streamco.SyncClient()


def test_single_items_are_read_and_a_loop_goes_on_after_them() -> None:
    with opened() as (client, _):
        stream = client.stream("hello")
        assert next(stream).text == "w0 "
        assert [token.text for token in stream] == ["w1 ", "w2 "]


def test_other_options_share_endpoints_and_thread() -> None:
    with opened() as (client, _):
        other = client.with_options(pace="smooth", timeout=5)
        assert other.chat.completions.create(messages=HELLO).choices[0].message.content == "w0 w1 w2 "
        assert (other.pace, client.pace, client.totals.answers) == ("smooth", None, 1)
        other.close()
        assert client.chat.completions.create(messages=HELLO).choices
        assert len(loop_threads()) == 1


def test_what_the_caller_has_in_its_context_is_there_on_the_loop() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    seen = []

    def gate(facts: RequestFacts) -> bool:
        seen.append(name.get())
        return True

    with opened(device=device(), mode=streamco.Race(gate=gate)) as (client, _):
        name.set("me")
        client.chat.completions.create(messages=HELLO)
    assert seen[:1] == ["me"]


# Threads


def test_sixteen_threads_ask_at_once() -> None:
    with opened(*words(0.0, 0.05, 0.1)) as (client, remote), ThreadPoolExecutor(16) as pool:
        began = threading.Barrier(16)

        def ask(number: int) -> str:
            began.wait(WAIT)
            if number % 2:
                return "".join(token.text for token in client.stream("hello"))
            return client.chat.completions.create(messages=HELLO).choices[0].message.content or ""

        assert set(pool.map(ask, range(16))) == {"w0 w1 w2 "}
        assert (client.totals.answers, remote.active, len(loop_threads())) == (16, 0, 1)


def test_two_threads_can_not_read_one_stream_at_once() -> None:
    with opened((0.0, "a"), (1000.0, "b")) as (client, _):
        stream = client.chat.completions.create(messages=HELLO, stream=True)
        items = iter(stream)
        next(items)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(next, items)
            until(getattr(items, "_reading").locked)  # noqa: B009  it has no such name for users
            with pytest.raises(ConcurrentRead):
                next(items)
            client.close()
            with pytest.raises((StreamClosed, StopIteration)):
                reading.result(WAIT)


def test_closing_ends_the_calls_of_other_threads() -> None:
    with opened((1000.0, "late")) as (client, remote), ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(client.chat.completions.create, messages=HELLO) for _ in range(2)]
        until(lambda: remote.active == 2)
        client.close()
        client.close()
        for each in asking:
            with pytest.raises(streamco.StreamcoError):
                each.result(WAIT)
        with pytest.raises(StreamClosed, match=r"the client (is|was) closed"):
            client.chat.completions.create(messages=HELLO)


def test_a_call_from_the_clients_own_thread_is_refused() -> None:
    found: list[BaseException] = []

    def gate(facts: RequestFacts) -> bool:
        for call in (lambda: client.chat.completions.create(messages=HELLO), lambda: client.totals, client.close):
            try:
                call()
            except UsageError as error:
                found.append(error)
        return True

    with opened(device=device(), mode=streamco.Race(gate=gate)) as (client, _):
        client.chat.completions.create(messages=HELLO)
    assert len(found) >= 3
    assert "expected a call from another thread than the client's own" in str(found[0])


def test_it_works_in_a_running_loop_as_in_a_notebook() -> None:
    async def cell(client: streamco.SyncClient) -> str:
        text = "".join(token.text for token in client.stream("hello"))
        return text + (client.chat.completions.create(messages=HELLO).choices[0].message.content or "")

    with opened() as (client, _):
        assert asyncio.run(cell(client)) == asyncio.run(cell(client)) == "w0 w1 w2 " * 2


# Leaving


def test_a_dropped_stream_ends_the_work() -> None:
    forever = [(0.0, "w"), (1000.0, "late")]
    with opened(*forever) as (client, remote):
        for token in client.stream("hello"):
            assert token.text == "w"
            break
        until(lambda: remote.active == 0)

        def answer() -> Iterator[str]:
            yield from (chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(messages=HELLO, stream=True))

        text = answer()
        next(text)
        assert remote.active == 1
        del text
        until(lambda: remote.active == 0)
        client.chat.completions.create(messages=HELLO, stream=True)  # never read
        until(lambda: remote.active == 0)
        with client.chat.completions.create(messages=HELLO, stream=True) as stream:
            next(stream)
        assert remote.active == 0, "with waits for it"
        with client.chat.completions.stream(messages=HELLO) as events:
            next(events)
        assert remote.active == 0
    assert client.totals.left == 5


def test_a_dropped_client_ends_its_thread_and_a_stream_keeps_it() -> None:
    def ask() -> Iterator[str]:
        stream = streamco.SyncClient(server=server(words(0.0, 0.01, 0.02))).stream("hello")
        assert isinstance(stream, SyncStream)
        return (token.text for token in stream)

    assert "".join(ask()) == "w0 w1 w2 "
    until(lambda: not loop_threads())


def test_it_starts_no_thread_before_the_first_call() -> None:
    client = streamco.SyncClient(server=server())
    assert (client.totals.answers, client.degraded, loop_threads()) == (0, (), [])
    client.close()
    with pytest.raises(StreamClosed):
        client.start()


# Processes

PROGRAM = """
import os, signal, sys, threading, time
import streamco
from streamco.testing.endpoint import ScriptedEndpoint

client = streamco.SyncClient(server=ScriptedEndpoint("server", [(0.0, "first "), ({late}, "last")]))
ask = lambda: client.chat.completions.create(messages=[{{"role": "user", "content": "x"}}]).choices[0].message.content
"""


def run(program: str, late: float = 0.0, **options: Any) -> str:
    """Return the output of a program; it must end by itself."""
    code = PROGRAM.format(late=late) + textwrap.dedent(program)
    finished: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=Path.cwd(), **options
    )
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stderr
    return finished.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_a_call_is_an_error_that_says_what_to_do() -> None:
    output = run(
        """
        import warnings
        warnings.simplefilter("ignore")
        stream = client.stream("x")
        next(stream)
        child = os.fork()
        if not child:
            for call in (ask, lambda: next(stream), lambda: client.totals, client.start):
                try:
                    call()
                except streamco.errors.UsageError as error:
                    print(error, flush=True)
            client.close()
            sys.exit(0)
        print(os.waitpid(child, 0)[1], next(stream).text, ask())
        """
    )
    text = "SyncClient: expected the process of the first call, got one that was forked from it"
    assert output.splitlines() == [*[f"{text}; make a client in each process, after the fork"] * 4, "0 last first last"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_client_that_was_made_before_a_fork_works_in_each_process() -> None:
    output = run(
        """
        child = os.fork()
        answer = ask()
        if child:
            os.waitpid(child, 0)  # so that their lines don't mix
        print(answer)
        """
    )
    assert output.splitlines() == ["first last"] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="no signal to a thread")
def test_ctrl_c_cancels_the_answer_and_the_client_goes_on() -> None:
    output = run(
        """
        def interrupt():
            while not client.endpoint.active:
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

        def interrupted(call):
            timer = threading.Thread(target=press)
            timer.start()
            try:
                call()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            timer.join()
            while endpoint.active:
                time.sleep(0.01)

        endpoint = client._client._settings.endpoints.servers[0]
        def press():
            while not endpoint.active:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        interrupted(ask)
        interrupted(lambda: list(client.stream("x")))
        endpoint.script[-1] = (0.0, "last")
        print(ask(), client.totals.left)
        """,
        late=1000.0,
    )
    assert output.splitlines() == ["interrupted", "interrupted", "first last 2"]


@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit()", "raise SystemExit", "del client", "client.close()", "threading.Thread(target=ask).start(); time.sleep(0.3)"],
)
def test_a_program_ends_at_once_whatever_is_open(ending: str) -> None:
    began = time.monotonic()
    if "Thread" in ending:
        ending = ending.replace("target=ask", "target=quiet")
    output = run(
        f"""
        def quiet():
            try:
                ask()
            except streamco.StreamcoError as error:
                print(type(error).__name__)

        stream = client.stream("x")
        print(next(stream).text)
        {ending}
        """,
        late=1000.0,
    )
    assert output.split()[0] == "first"
    assert time.monotonic() - began < 30


# Frameworks


def test_flask_answers_with_whole_answers_and_streams() -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask(__name__)
    with opened(*words(0.0, 0.01, 0.02)) as (client, remote):

        def whole() -> Any:
            return client.chat.completions.create(messages=HELLO).model_dump(exclude_none=True)

        def stream() -> Any:
            return flask.Response((token.text for token in client.stream("hello")), mimetype="text/plain")

        app.add_url_rule("/whole", view_func=whole)
        app.add_url_rule("/stream", view_func=stream)
        browser = app.test_client()
        assert browser.get("/whole").json["choices"][0]["message"]["content"] == "w0 w1 w2 "
        assert browser.get("/stream").text == "w0 w1 w2 "
        left = browser.get("/stream", buffered=False)
        next(left.iter_encoded())
        left.close()
        del left
        until(lambda: remote.active == 0)


def test_django_answers_with_whole_answers_and_streams() -> None:
    pytest.importorskip("django")
    output = run(
        """
        import json
        import django
        from django.conf import settings
        from django.http import JsonResponse, StreamingHttpResponse
        from django.urls import path

        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        django.setup()
        whole = lambda request: JsonResponse(client.chat.completions.create(messages="x").model_dump(exclude_none=True))
        stream = lambda request: StreamingHttpResponse(token.text for token in client.stream("x"))
        urlpatterns = [path("whole", whole), path("stream", stream)]

        from django.test import Client
        browser = Client()
        print(browser.get("/whole").json()["choices"][0]["message"]["content"])
        print(b"".join(browser.get("/stream").streaming_content).decode())
        client.close()
        """
    )
    assert output.splitlines() == ["first last"] * 2


def test_it_asks_real_servers() -> None:
    async def serve(ready: Callable[[str], None], stopped: asyncio.Event) -> None:
        stalled = ScriptedResponse(steps=[chunk_event("a"), Stall()])
        async with ScriptedServer(stream_answer(["a", "b"]), stalled) as scripted:
            ready(scripted.url)
            await stopped.wait()

    loop = asyncio.new_event_loop()
    urls: list[str] = []
    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(urls.append, stopped),))
    thread.start()
    until(lambda: bool(urls))
    timeouts = streamco.Timeouts(next_token=0.2)
    endpoint = streamco.OpenAIEndpoint("m", base_url=urls[0], timeouts=timeouts, retry=streamco.RetryPolicy(attempts=0))
    with streamco.SyncClient(server=endpoint) as client:
        assert client.chat.completions.create(messages=HELLO).choices[0].message.content == "ab"
        with pytest.raises(streamco.EndpointError) as caught:
            list(client.stream("hello"))
        assert caught.value.partial == "a"
    loop.call_soon_threadsafe(stopped.set)
    thread.join()
    loop.close()
