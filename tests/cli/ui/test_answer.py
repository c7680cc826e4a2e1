from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import Sequence

import pytest

from streamco.cli.ui.answer import AnswerSettings, ShownAnswer, read_answer
from streamco.cli.ui.view import PlainView
from streamco.client.client import Client
from streamco.errors import EndpointConnectError, EndpointTimeoutError
from streamco.testing.endpoint import ScriptedEndpoint, ScriptItem

PROMPT = [{"role": "user", "content": "hi"}]


def make_client(device: Sequence[tuple[float, ScriptItem]], server: Sequence[tuple[float, ScriptItem]]) -> Client:
    return Client(ScriptedEndpoint("device", device, kind="device"), ScriptedEndpoint("server", server))


async def ask(client: Client, settings: AnswerSettings | None = None) -> tuple[ShownAnswer, str, str]:
    out, err = io.StringIO(), io.StringIO()
    async with client:
        answer = await read_answer(client, PROMPT, settings or AnswerSettings(), PlainView(out, err))
    return answer, out.getvalue(), err.getvalue()


async def test_a_whole_answer_has_its_text_and_report() -> None:
    answer, out, _ = await ask(make_client([(0.0, "Hello"), (0.01, " there")], [(5.0, "late")]))
    assert (answer.text, answer.ending, answer.exit_code) == ("Hello there", "", 0)
    assert out == "Hello there\n"
    assert answer.report is not None
    assert answer.report.winner == "device"
    assert answer.report.is_final


async def test_a_failure_keeps_the_text_so_far_and_is_told() -> None:
    error = EndpointTimeoutError("expected a token, got none", phase="next_token", limit=1.0, endpoint="device")
    answer, out, err = await ask(make_client([(0.0, "Half"), (0.02, error)], [(5.0, "late")]))
    assert (answer.text, answer.ending, answer.exit_code) == ("Half", "failed", 1)
    assert isinstance(answer.error, EndpointTimeoutError)
    assert answer.error.partial == "Half"
    assert out == "Half\n"
    unable = 'server can\'t go on with a begun answer, as far as is known (capabilities.continuation is "none")'
    assert err.endswith(f"error: device: expected a token, got none; {unable}\n")
    assert "failed · server can't go on" in err


async def test_when_nobody_answers_there_is_an_error_and_a_report() -> None:
    dead = EndpointConnectError("expected a connection, got none")
    answer, _, _ = await ask(make_client([(0.0, dead)], [(0.0, dead)]))
    assert answer.text == ""
    assert answer.exit_code == 1
    assert answer.report is not None
    assert answer.report.winner is None


async def test_ctrl_c_stops_the_answer_releases_the_endpoints_and_keeps_the_text() -> None:
    device = ScriptedEndpoint("device", [(number * 0.01, f"{number} ") for number in range(1000)], kind="device")
    client = Client(device)
    out = io.StringIO()

    class Stopper(PlainView):
        def feed(self, token: object) -> None:
            super().feed(token)  # type: ignore[arg-type]
            if "3 " in out.getvalue():
                os.kill(os.getpid(), signal.SIGINT)

    async with client:
        answer = await read_answer(client, PROMPT, AnswerSettings(), Stopper(out, io.StringIO()))
        assert device.active == 0
    assert (answer.ending, answer.exit_code) == ("stopped", 130)
    assert answer.text.startswith("0 1 2 3 ")
    assert "999" not in answer.text
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL


async def test_cancelling_the_program_is_not_mistaken_for_stopping_the_answer() -> None:
    client = make_client([(0.0, None)], [(0.0, None)])
    async with client:
        task = asyncio.create_task(read_answer(client, PROMPT, AnswerSettings(), PlainView(io.StringIO(), io.StringIO())))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_settings_reach_the_endpoints() -> None:
    device = ScriptedEndpoint("device", [(0.0, "x")], kind="device")
    await ask(Client(device), AnswerSettings(max_tokens=7, temperature=0.5, seed=3))
    sampling = device.streams[0].request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (7, 0.5, 3)


async def test_thinking_is_shown_and_is_no_part_of_the_text() -> None:
    from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice

    chunk = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hm"))])
    answer, out, _ = await ask(make_client([(0.0, chunk), (0.01, "Yes.")], [(5.0, "late")]))
    assert answer.text == out.strip() == "Yes."


async def test_json_holds_text_report_and_error() -> None:
    answer, _, _ = await ask(make_client([(0.0, "Grüße 🎉\n")], [(5.0, "late")]))
    shape = json.loads(answer.to_json())
    assert shape["text"] == "Grüße 🎉\n"
    assert shape["is_stopped"] is False
    assert shape["report"]["winner"] == "device"
    assert "\n" not in answer.to_json()


def test_an_answer_that_never_began_can_still_be_told_as_json() -> None:
    assert json.loads(ShownAnswer(is_stopped=True).to_json()) == {"text": "", "is_stopped": True, "error": None, "report": None}
