"""With several keys, no key finds in memory what another's requests have read, in chat completions and in verifications."""

from __future__ import annotations

import logging
from typing import Any

import aiohttp
import pytest
import websockets

from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.sequence import HeldSequence
from streamco.errors import ConfigError
from streamco.server.http.api_keys import ApiKey
from streamco.server.options import ServeOptions
from streamco.server.verify.options import VerifyOptions
from streamco.testing import FakeEngine
from streamco.wire.verify.errors import NotResumableError, OverloadedError
from tests.server.support import CHAT, HELLO, TEXT
from tests.server.verifying import PROMPT, VOCABULARY, Serving, connected, serving
from tests.support.leaks import settled

KEYS = (ApiKey("alice", "sk-alice"), ApiKey("bob", "sk-bob"))
ALICE, BOB = ({"Authorization": f"Bearer {key.key}"} for key in KEYS)
READ = {**HELLO, "prefill_only": True}


class OwnedEngine(FakeEngine):
    """Remembers the owners of its held sequences."""

    def hold(self, label: object = None, *, owner: str | None = None) -> HeldSequence:
        self.owners = [*getattr(self, "owners", []), owner]
        return super().hold(label, owner=owner)


async def found(server: Serving, headers: dict[str, str], body: dict[str, Any], path: str = CHAT) -> int:
    """Ask for an answer; return the ``cached_tokens`` of its usage."""
    async with aiohttp.ClientSession(server.http) as client, client.post(path, json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_cached_tokens_tell_nothing_of_another_keys_prompts() -> None:
    async with serving(FakeEngine(), api_keys=KEYS) as server:
        assert await found(server, ALICE, READ) == 0
        assert await found(server, BOB, READ) == 0
        assert await found(server, ALICE, READ) > 0
        assert await found(server, BOB, READ) > 0


@pytest.mark.parametrize("options", [{}, {"api_key": "sk-alice"}, {"api_keys": KEYS[:1]}])
async def test_a_single_key_or_none_shares_what_was_read(options: dict[str, Any]) -> None:
    async with serving(FakeEngine(), **options) as server:
        await found(server, ALICE, READ)
        assert await found(server, ALICE, READ) > 0


@pytest.mark.parametrize("by_header", [True, False])
async def test_sessions_belong_to_their_key_whether_it_comes_by_header_or_by_hello(by_header: bool) -> None:
    engine = OwnedEngine(vocabulary=VOCABULARY, context_tokens=256)
    async with serving(engine, api_keys=KEYS) as server:
        for key in KEYS:
            options: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {key.key}"}} if by_header else {"token": key.key}
            async with connected(server.url, **options) as device:
                session, _ = await device.open()
                await device.draft(session, len(PROMPT), [])
    assert engine.owners == ["alice", "bob"]


async def test_another_key_cant_resume_a_session() -> None:
    async with serving(api_keys=KEYS) as server:
        async with connected(server.url, additional_headers=ALICE) as device:
            _, opened = await device.open()
        async with connected(server.url, additional_headers=BOB) as other:
            with pytest.raises(NotResumableError):
                await other.resume(opened.key, PROMPT)
        async with connected(server.url, token="sk-alice") as device:
            assert (await device.resume(opened.key, PROMPT))[1].base == len(PROMPT)


async def test_the_access_log_names_the_key_and_never_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamco")
    async with serving(FakeEngine(vocabulary=VOCABULARY), api_keys=KEYS) as server:
        await found(server, BOB, HELLO)
        with pytest.raises(websockets.InvalidStatus):
            async with connected(server.url, additional_headers={"Authorization": "Bearer sk-carol"}):
                pass
        async with connected(server.url, token="sk-alice"):
            pass
    assert "127.0.0.1 bob POST /v1/chat/completions: 200" in caplog.text
    assert "127.0.0.1 alice GET /v1/verify: " in caplog.text
    assert "sk-" not in caplog.text


async def test_faults_of_one_key_lock_out_no_other() -> None:
    async with serving(FakeEngine(vocabulary=VOCABULARY), api_keys=KEYS, verify=VerifyOptions(faults_per_minute=3)) as server:
        for _ in range(3):
            async with connected(server.url, additional_headers=BOB) as device:
                await device.socket.send("text")
                await device.refused()
        await settled(lambda: not server.service.peers.connections)
        with pytest.raises(websockets.InvalidStatus, match="HTTP 429"):
            async with connected(server.url, additional_headers=BOB):
                pass
        async with connected(server.url, additional_headers=ALICE):
            pass


async def test_sessions_of_one_key_use_up_none_of_another_at_the_same_address() -> None:
    async with (
        serving(FakeEngine(vocabulary=VOCABULARY), api_keys=KEYS, verify=VerifyOptions(peer_sessions=2)) as server,
        connected(server.url, additional_headers=BOB) as bob,
        connected(server.url, additional_headers=ALICE) as alice,
    ):
        for _ in range(2):
            await bob.open()
        with pytest.raises(OverloadedError, match="from one address"):
            await bob.open()
        await alice.open()


def test_keys_of_options_are_checked_and_not_shown() -> None:
    options = ServeOptions(host="0.0.0.0", api_key="sk-1", api_keys=KEYS)
    options.check_exposure()
    assert [key.name for key in options.keys] == ["default", "alice", "bob"]
    assert "sk-" not in f"{options!r}{options}"
    with pytest.raises(ConfigError, match="twice"):
        ServeOptions(api_key="sk-alice", api_keys=KEYS)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("settings", [{}, {"separate": True}])
async def test_a_real_model_keeps_what_was_read_for_its_own_key(settings: dict[str, Any]) -> None:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, max_sequences=2, held_sequences=3, **settings))
    text = "The secret of the two old lighthouses in the north bay is that they never burned on the same night of any year " * 2
    ids = engine.tokenize(text)
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0}
    try:
        async with serving(engine, api_keys=KEYS) as server, connected(server.url, engine, additional_headers=ALICE) as device:
            session, _ = await device.open(ids)
            await device.draft(session, len(ids), [])
            assert await found(server, BOB, body, TEXT) == 0
            assert await found(server, ALICE, body, TEXT) == len(ids) - 1
            assert await found(server, BOB, body, TEXT) == len(ids) - 1, "its own"
    finally:
        engine.close()
