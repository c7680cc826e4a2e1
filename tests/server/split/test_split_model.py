"""The real middle layers through a socket: the whole model's answers, from devices that share a server, and after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pytest
import websockets
from numpy.typing import NDArray

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.middle_engine import MiddleEngine
from streamco.wire.split.frames import LayersMark, Refusal, Rows, States
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.frames import PATH
from tests.server.split.serving_layers import SplitDevice, device_at, mark_of, serving_layers

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.long, pytest.mark.model]

COSTS = {1: 0.005, 64: 0.2}
PROMPTS = ("Name three rivers in France.", "Why is the sky blue?", "Write a haiku.")
TOKENS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def engine(files: PartFiles) -> Iterator[MiddleEngine]:
    engine = MiddleEngine(files.middle, cells=256, sequences=4, threads=1, row_costs=COSTS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def head(files: PartFiles) -> Iterator[HeadPart]:
    head = HeadPart(files.head)
    yield head
    head.close()


class Ends:
    """What a device holds: the first layers, the head, and the shallow states that it has sent."""

    def __init__(self, files: PartFiles, head: HeadPart) -> None:
        self.input, self.head = InputPart(files.input, cells=256), head
        self.sent = np.empty((0, 576), np.float32)

    def ids(self, prompt: str) -> list[int]:
        model = self.head.model
        return model.tokenize(model.apply_template([{"role": "user", "content": prompt}]), special=True)

    def shallow(self, tokens: list[int], position: int) -> NDArray[np.float32]:
        self.input.truncate(position)
        states = self.input.run(self.head.embed(tokens), position)
        self.sent = np.concatenate([self.sent[:position], states])
        return states

    def close(self) -> None:
        self.input.close()


def whole_logits(prompt: str) -> tuple[list[int], list[NDArray[np.float32]]]:
    """What the whole model writes greedily by itself."""
    model = LlamaModel(packaged_model(), repack=False)
    context = LlamaContext(model, cells=256, sequences=1, rows=256, threads=1, unified=False)
    tokens = model.tokenize(model.apply_template([{"role": "user", "content": prompt}]), special=True)
    position, text, logits = 0, list[int](), list[NDArray[np.float32]]()
    for _ in range(TOKENS):
        row = context.add_run(tokens, position, 0, wants_logits=1)
        assert context.decode() == 0
        logits.append(context.logits(row).copy())
        position += len(tokens)
        tokens = [int(logits[-1].argmax())]
        text += tokens
    context.close()
    model.close()
    return text, logits


async def test_states_through_a_socket_give_the_whole_models_logits_bit_for_bit(
    engine: MiddleEngine, files: PartFiles, head: HeadPart
) -> None:
    ends = Ends(files, head)
    async with serving_layers(engine) as server, device_at(server.url, mark_of(engine)) as device:
        for prompt in PROMPTS[:2]:
            text, expected = whole_logits(prompt)
            session, _ = await device.open()
            tokens, position = ends.ids(prompt), 0
            for token, logits in zip(text, expected, strict=True):
                answer = await device.rows(session, position, ends.shallow(tokens, position))
                assert np.array_equal(ends.head.logits(answer.states[-1]), logits)
                position += len(tokens)
                tokens = [token]
            drafts = [text[1], 7, 7]
            start = position - TOKENS + 1
            answer = await device.rows(session, start, ends.shallow([text[0], *drafts], start), wanted=4)
            assert ends.head.verify_greedy(answer.states, drafts) == text[1:3]
    ends.close()


async def test_devices_that_share_the_server_get_the_answers_that_each_gets_alone(
    engine: MiddleEngine, files: PartFiles, head: HeadPart
) -> None:
    async with serving_layers(engine) as server:
        every = {prompt: Ends(files, head) for prompt in PROMPTS}

        async def answer(prompt: str) -> list[int]:
            ends = every[prompt]
            async with device_at(server.url, mark_of(engine)) as device:
                session, _ = await device.open()
                tokens, position, text = ends.ids(prompt), 0, []
                for _ in range(TOKENS):
                    states = (await device.rows(session, position, ends.shallow(tokens, position))).states
                    position += len(tokens)
                    tokens = [int(ends.head.logits(states[-1]).argmax())]
                    text += tokens
            ends.close()
            return text

        texts = await asyncio.gather(*(answer(prompt) for prompt in PROMPTS))
        assert texts == [(await asyncio.to_thread(whole_logits, prompt))[0] for prompt in PROMPTS]


async def test_states_in_f16_cost_half_the_bytes_and_lose_only_their_rounding(
    engine: MiddleEngine, files: PartFiles, head: HeadPart
) -> None:
    async with serving_layers(engine) as server, device_at(server.url, mark_of(engine)) as device:

        async def answers(form: StateFormat) -> tuple[list[NDArray[np.float32]], int]:
            """The last states of each round, as they come out of f16, and the bytes that the device sent."""
            ends = Ends(files, head)
            session, _ = await device.open()
            tokens, position, got, sent = ends.ids(PROMPTS[0]), 0, list[NDArray[np.float32]](), 0
            for _ in range(TOKENS):
                states = rounded(ends.shallow(tokens, position))
                number = device.client.rows(session, position, states, wanted=1, form=form)
                messages = device.client.take_messages()
                sent += sum(map(len, messages))
                for message in messages:
                    await device.socket.send(message)
                answer = await device.take()
                assert isinstance(answer, States), answer
                assert answer.round_number == number
                got.append(rounded(answer.states[-1:]))
                position += len(tokens)
                tokens = [int(head.logits(got[-1][-1]).argmax())]
            ends.close()
            return got, sent

        (halves, bytes_of_halves), (wholes, bytes_of_wholes) = await answers("f16"), await answers("f32")
    assert all(map(np.array_equal, halves, wholes))
    assert bytes_of_halves < 0.55 * bytes_of_wholes


def rounded(states: NDArray[np.float32]) -> NDArray[np.float32]:
    return states.astype(np.float16).astype(np.float32)


@contextlib.contextmanager
def server_process(
    middle: Path, port: int = 0, *, options: Sequence[str] = (), log: IO[bytes] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["serve", "--model", str(middle), "--middle", "--context", "256", "--port", str(port), "--row-costs", "1:0.005,64:0.2"]
    command = [sys.executable, "-m", "streamco", *words, "--threads", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


async def next_token(device: SplitDevice, session: int, ends: Ends, position: int) -> int:
    await device.send(session, position, ends.sent[position:])
    answer = await device.take()
    assert isinstance(answer, States), answer
    return int(ends.head.logits(answer.states[-1]).argmax())


def memory_of(pid: int) -> Iterator[bytes]:
    """Everything that a process has in memory and may write, a region at a time."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in maps:
            addresses, access = line.split()[:2]
            if access.startswith("rw"):
                start, end = (int(address, 16) for address in addresses.split("-"))
                with contextlib.suppress(OSError, ValueError):  # a region of the kernel's
                    memory.seek(start)
                    yield memory.read(end - start)


def packed_forms(ids: list[int]) -> list[bytes]:
    """Ids as the bytes that a program would have them in: 2, 4 or 8 each."""
    return [np.array(ids, dtype).tobytes() for dtype in (np.uint16, np.int32, np.int64)]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs the memory of processes as files")
async def test_neither_text_nor_ids_of_a_conversation_are_in_the_servers_memory(files: PartFiles, head: HeadPart) -> None:
    marked = "The zebrafish quartz of Nonesuch"
    ends = Ends(files, head)
    ids = ends.ids(f"Say this: {marked}.")
    mark = LayersMark(ends.input.info.source, 2, ends.input.info.total_layers - 2, 576)
    with server_process(files.middle) as (process, line):
        port = int(line.rpartition(":")[2].split("/")[0])
        async with device_at(f"ws://127.0.0.1:{port}{PATH}", mark) as device:
            session, _ = await device.open()
            ends.shallow(ids, 0)
            written = await next_token(device, session, ends, 0)
            ends.shallow([written], len(ids))
            await next_token(device, session, ends, len(ids))
            memory = list(memory_of(process.pid))
    secrets = [marked.encode(), b"zebrafish", *packed_forms(ids[-12:-4])]
    assert any(b"streamco-verify" in region for region in memory), "the server's memory was read"
    assert not any(secret in region for region in memory for secret in secrets)
    mine = list(memory_of(os.getpid()))
    assert any(b"zebrafish" in region for region in mine), "the same search finds the text where it is"
    ends.close()


class RecordedSocket:
    """A connection whose messages are kept, both ways."""

    def __init__(self, socket: Any) -> None:
        self.messages: list[bytes] = []
        self._socket = socket

    async def send(self, message: bytes) -> None:
        self.messages.append(message)
        await self._socket.send(message)

    async def recv(self) -> bytes:
        self.messages.append(await self._socket.recv())
        return self.messages[-1]


async def test_neither_text_nor_ids_of_a_conversation_are_in_the_frames_or_the_servers_log(
    files: PartFiles, head: HeadPart, tmp_path: Path
) -> None:
    marked = "The zebrafish quartz of Nonesuch"
    ends = Ends(files, head)
    ids = ends.ids(f"Say this: {marked}.")
    mark = LayersMark(ends.input.info.source, 2, ends.input.info.total_layers - 2, 576)
    path = tmp_path / "log"
    with path.open("wb") as log, server_process(files.middle, options=["-vv"], log=log) as (_, line):
        port = int(line.rpartition(":")[2].split("/")[0])
        async with device_at(f"ws://127.0.0.1:{port}{PATH}", mark) as device:
            device.socket, socket = RecordedSocket(device.socket), device.socket
            session, _ = await device.open()
            ends.shallow(ids, 0)
            written = await next_token(device, session, ends, 0)
            ends.shallow([written], len(ids))
            await next_token(device, session, ends, len(ids))
            frames, device.socket = device.socket.messages, socket
        async with asyncio.timeout(60):  # the line of a connection is written when it has ended
            while b"GET /v1/verify" not in path.read_bytes():
                await asyncio.sleep(0.01)
    few = ids[-12:-8]  # of the marked words
    secrets = [marked.encode(), b"zebrafish", b"Nonesuch", *packed_forms(few), msgspec.msgpack.encode(few)[1:]]
    secrets += [separator.join(map(str, few)).encode() for separator in (",", ", ", " ")]
    written_log = path.read_bytes()
    assert b"GET /v1/verify" in written_log, "the server wrote what happens"
    assert not any(secret in written_log for secret in secrets)
    assert len(frames) == 6, "an open and two rounds, each with its answer"
    assert not any(secret in frame for frame in frames for secret in secrets)
    lengths = [len(device.client.codec.encode(Rows(session, 0, 0, 1, "f32", ends.sent[:count]))) for count in (len(ids), 1)]
    assert [len(frame) for frame in frames[2::2]] == lengths, "a frame is as long as its rows, whatever they say"
    ends.close()


async def test_an_answer_goes_on_after_its_server_was_killed(files: PartFiles, head: HeadPart) -> None:
    ends = Ends(files, head)
    mark = LayersMark(ends.input.info.source, 2, ends.input.info.total_layers - 2, 576)
    text, _ = await asyncio.to_thread(whole_logits, PROMPTS[0])
    with server_process(files.middle) as (first, line):
        port = int(line.rpartition(":")[2].split("/")[0])
        url = f"ws://127.0.0.1:{port}{PATH}"
        tokens, made = ends.ids(PROMPTS[0]), list[int]()
        async with device_at(url, mark) as device:
            session, opened = await device.open()
            position = 0
            for _ in range(3):
                ends.shallow(tokens, position)
                made.append(await next_token(device, session, ends, position))
                position, tokens = len(ends.sent), made[-1:]
            first.send_signal(signal.SIGKILL)
            with pytest.raises(websockets.ConnectionClosed):
                await device.take()
        await asyncio.to_thread(first.wait)
    with server_process(files.middle, port):
        async with device_at(url, mark) as device:
            device.client.resume(opened.key)
            await device.say()
            refusal = await device.take()
            assert isinstance(refusal, Refusal)
            assert refusal.code == "not_resumable"
            session, _ = await device.open()
            ends.shallow(tokens, position)
            made.append(await next_token(device, session, ends, 0))
    assert made == text[:4]
    ends.close()
