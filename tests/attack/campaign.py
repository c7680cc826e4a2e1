"""The attacks on each listener, against a process that is started for them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import split_model
from streamco.proxy.callers.store import add_caller
from streamco.testing import ScriptedServer
from tests.attack import on_apis, on_callers, on_client, on_listeners, on_proxy, on_serve, on_split, on_verifier
from tests.attack.attack import Outcome, Register, Victim, carry_out
from tests.attack.processes import running

__all__ = ["CAMPAIGNS"]


async def on(register: Register, victim: Victim, size: int) -> AsyncIterator[Outcome]:
    """Carry all attacks of one listener out."""
    for attack in register.attacks:
        yield await carry_out(register.listener, attack, victim, size)


async def serve(size: int) -> AsyncIterator[Outcome]:
    """Attack the HTTP paths of ``streamco serve``."""
    async with running(*on_serve.SERVE, key="sk-right") as program:
        async for outcome in on(on_serve.attack, program, size):
            yield outcome


async def listeners(size: int) -> AsyncIterator[Outcome]:
    """Attack ``streamco serve`` and ``streamco proxy`` without a key."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedServer(on_apis.answered) as upstream:
            config = on_proxy.proxy_config(Path(folder), upstream.port)
            env = {"OPENAI_API_KEY": "sk-upstream", "STREAMCO_PROXY_KEY": "sk-right"}
            for words in (on_serve.SERVE, ("proxy", "--config", str(config))):
                async with running(*words, key="sk-right", env=env) as program:
                    for each in on_listeners.attack.attacks:
                        yield await carry_out(f"{words[0]}, without a key", each, program, size)


async def verifier(size: int) -> AsyncIterator[Outcome]:
    """Attack the WebSocket of ``streamco serve``, each time that of a fresh process, so that no attack depends on the one before."""
    if not size:  # a short one, on the same process
        async with running(*on_verifier.VERIFIER, key="sk-right") as program:
            async for outcome in on(on_verifier.attack, program, size):
                yield outcome
        return
    for attack in on_verifier.attack.attacks:
        async with running(*on_verifier.VERIFIER, key="sk-right") as program:
            yield await carry_out(on_verifier.attack.listener, attack, program, size)


async def split(size: int) -> AsyncIterator[Outcome]:
    """Attack the WebSocket of ``streamco serve --middle``, each time that of a fresh process if the attacks are large."""
    with tempfile.TemporaryDirectory() as folder:
        words = on_split.split_server(split_model(packaged_model(), folder).middle)
        batches = [[each] for each in on_split.attack.attacks] if size else [on_split.attack.attacks]
        for attacks in batches:
            async with running(*words, key="sk-right") as program:
                victim = await on_split.SplitVictim.of(program)
                for each in attacks:
                    yield await carry_out(on_split.attack.listener, each, victim, size)


async def proxy(size: int) -> AsyncIterator[Outcome]:
    """Attack ``streamco proxy`` from both sides."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedServer() as upstream:
            config = on_proxy.proxy_config(Path(folder), upstream.port)
            async with running("proxy", "--config", str(config), env={"OPENAI_API_KEY": "sk-upstream"}) as program:
                async for outcome in on(on_proxy.attack, on_proxy.ProxyVictim(program, upstream), size):
                    yield outcome


async def apis(size: int) -> AsyncIterator[Outcome]:
    """Attack the APIs that ``streamco serve`` and ``streamco proxy`` have in common."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedServer(on_apis.answered) as upstream:
            config = on_proxy.proxy_config(Path(folder), upstream.port, policy="server-constrained")
            proxied = ("proxy", "--config", str(config), "--device", "packaged", "--threads", "1")
            for words, key in ((on_serve.SERVE, "sk-right"), (proxied, "")):
                async with running(*words, key=key, env={"OPENAI_API_KEY": "sk-upstream"}) as program:
                    victim = on_apis.ApiVictim(program)
                    for each in on_apis.attack.attacks:
                        yield await carry_out(f"apis of {words[0]}", each, victim, size)


async def callers(size: int) -> AsyncIterator[Outcome]:
    """Attack a proxy that has callers and a page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with ScriptedServer() as upstream:
            config, file = on_proxy.proxy_config(folder, upstream.port), folder / "callers.sqlite"
            key = add_caller(file, "ordinary", budget=None)
            words = ("proxy", "--config", str(config), "--callers", str(file), "--page")
            async with running(*words, key=key, env={"OPENAI_API_KEY": "sk-upstream"}) as program:
                async for outcome in on(on_callers.attack, on_callers.CallersVictim(program, upstream, folder), size):
                    yield outcome


async def client(size: int) -> AsyncIterator[Outcome]:
    """Attack clients."""
    async for outcome in on(on_client.attack, on_client.ClientVictim(), size):
        yield outcome


CAMPAIGNS: dict[str, Callable[[int], AsyncIterator[Outcome]]] = {
    "serve": serve,
    "listeners": listeners,
    "verifier": verifier,
    "split": split,
    "proxy": proxy,
    "apis": apis,
    "callers": callers,
    "client": client,
}
