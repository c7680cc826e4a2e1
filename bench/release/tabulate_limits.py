"""Write the table of limits in docs/security.md from the code's own constants.

    python -m bench.release.tabulate_limits [--check]

Each row names an object and one of its attributes; the value in the table is read from there. ``--check`` writes nothing and exits with 1
if the page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from streamco import config, errors
from streamco.core.verifier.options import LoadLimits
from streamco.emulation import profiles
from streamco.endpoints import http, openai_stream
from streamco.endpoints.verifiers import streamco as verifier_endpoint
from streamco.engines import chat_template, sampling
from streamco.engines.llamacpp import template_sandbox
from streamco.proxy.callers import accounts as callers_accounts
from streamco.proxy.callers import base as callers_base
from streamco.proxy.config import ProxyOptions
from streamco.server import requests
from streamco.server.http import access_log, api_keys, listening, middleware
from streamco.server.options import ServeOptions
from streamco.server.split import service as split_service
from streamco.server.verify import address_limits, frame_service
from streamco.server.verify.options import VerifyOptions
from streamco.sim.experiment import yaml_document
from streamco.wire.openai import errors as wire_errors
from streamco.wire.openai import extended_decode, lenient_decode, msgpack_body
from streamco.wire.split.frames import SplitLimits
from streamco.wire.verify import frames
from streamco.wire.verify import server as verify_server

__all__ = ["PAGE", "ROWS", "Row", "render", "table"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- limits: written by bench/release/tabulate_limits.py -->\n", "<!-- end of limits -->\n"

Unit = Literal["bytes", "s", "", "characters"]


class Row(NamedTuple):
    """One limit.

    Attributes:
        group: heading that it stands below.
        what: what is limited.
        value: the limit; None: there is none by default.
        unit: unit of the value.
        setting: where it is set; "": it can't be.
        checked: module that checks it, below ``streamco/``.
        name: attribute that holds it.
    """

    group: str
    what: str
    value: float | None
    unit: Unit
    setting: str
    checked: str
    name: str


class _Group(NamedTuple):
    """Rows whose values are attributes of one object."""

    title: str
    holder: object
    setting: str
    rows: tuple[tuple[str, str, Unit, str], ...]

    def __iter__(self) -> Iterator[Row]:
        for name, what, unit, checked in self.rows:
            setting = self.setting.format(name=name, option=name.replace("_", "-")) if self.setting else ""
            yield Row(self.title, what, getattr(self.holder, name), unit, setting, checked, name)


CALLER = "A caller of `serve` or `proxy`"
PEER = "A peer of the verifier"
UPSTREAM = "A server that a client asks"
FILES = "Files"

GROUPS = (
    _Group(CALLER, ServeOptions(), "`ServeOptions({name}=)`", (
        ("max_body_bytes", "size of a request's body at `serve`, packed and unpacked (`--max-body`)", "bytes", "server/http/api.py"),
    )),
    _Group(CALLER, ProxyOptions(), "`[proxy] {name}`", (
        ("max_body_bytes", "size of a request's body at `proxy`, packed and unpacked", "bytes", "server/http/api.py"),
    )),
    _Group(CALLER, ProxyOptions(), "`[callers] {name}`", (
        ("answer_tokens", "tokens of a server's answer to a caller with a budget that sets no limit", "", "proxy/callers/access.py"),
    )),
    _Group(CALLER, callers_base, "", (("MAX_CALLERS", "callers of a proxy", "", "proxy/callers/store.py"),)),
    _Group(CALLER, callers_accounts, "", (
        ("LONGEST_WAIT", "time that a request waits for the callers' file", "s", "proxy/callers/accounts.py"),
    )),
    _Group(CALLER, middleware, "", (
        ("MAX_ELEMENTS", "commas and opening brackets of a JSON body, outside of texts", "", "server/http/middleware.py"),
        ("BODY_SECONDS", "time until a body is complete", "s", "server/http/middleware.py"),
    )),
    _Group(CALLER, listening, "", (
        ("_LINGER", "time in which the rest of a refused body is read and dropped", "s", "server/http/listening.py"),
    )),
    _Group(CALLER, msgpack_body, "", (
        ("_MAX_ELEMENTS", "elements of a msgpack body", "", "wire/openai/msgpack_body.py"),
    )),
    _Group(CALLER, ServeOptions(), "`ServeOptions({name}=)`, `--max-streams`", (
        ("max_streams", "requests that run or wait", "", "server/http/middleware.py"),
    )),
    _Group(CALLER, ServeOptions(), "`ServeOptions({name}=)`, `--{option}`", (
        ("max_prompt_tokens", "tokens of a prompt; none: the context's", "", "server/prompts.py"),
        ("max_tokens", "tokens of an answer; none: what the context has left", "", "server/prompts.py"),
        ("keepalive", "silence of a stream before a comment", "s", "server/streaming.py"),
    )),
    _Group(CALLER, ServeOptions(), "`ServeOptions({name}=)`", (
        ("idle_timeout", "time that a connection may lack a whole request head", "s", "server/http/listening.py"),
        ("reader_timeout", "time that a write waits for its reader", "s", "server/http/event_stream.py"),
        ("health_timeout", "time that the engine's thread has for `/health`", "s", "server/app.py"),
        ("shutdown", "time that handlers have to end", "s", "server/http/listening.py"),
        ("retry_after", "wait that a refused caller is asked for", "s", "server/http/middleware.py"),
    )),
    _Group(CALLER, requests, "", (("MAX_STOPS", "stop strings", "", "server/requests.py"),)),
    _Group(CALLER, sampling, "", (("MAX_TOP_K", "`top_k`", "", "server/requests.py"),)),
    _Group(CALLER, api_keys, "", (("MAX_KEYS", "keys of a server", "", "server/http/api_keys.py"),)),
    _Group(CALLER, errors, "", (("MAX_TEXT", "text of an error", "characters", "errors.py"),)),
    _Group(CALLER, access_log, "", (("_MAX_PATH", "path in a line of the access log", "characters", "server/http/access_log.py"),)),
    _Group(PEER, VerifyOptions(), "`VerifyOptions({name}=)`", (
        ("connections", "connections in total (`--verify-connections`)", "", "server/verify/address_limits.py"),
        ("peer_connections", "connections of one address, for each key (`--verify-peer`)", "", "server/verify/address_limits.py"),
        ("peer_sessions", "sessions of one address, for each key", "", "server/verify/hosted_sessions.py"),
        ("frame_bytes", "size of a frame", "bytes", "server/verify/service.py"),
        ("draft_tokens", "tokens of a draft", "", "wire/verify/checks.py"),
        ("top_k", "ids in a row of a verdict", "", "wire/verify/server.py"),
        ("resume_s", "time to resume a session (`--verify-resume`)", "s", "server/verify/hosted_sessions.py"),
        ("hello_timeout", "time until the first frame", "s", "server/verify/frame_service.py"),
        ("ping_interval", "silence before a ping; the answer has half of it", "s", "server/verify/frame_service.py"),
        ("write_timeout", "time that a frame waits for its reader", "s", "server/verify/frame_service.py"),
        ("faults_per_minute", "faults of the same in a minute, before it gets 429", "", "server/verify/address_limits.py"),
    )),
    _Group(PEER, frames, "", (("MAX_FOLLOWS", "drafts ahead of a verdict", "", "wire/verify/server.py"),)),
    _Group(PEER, verify_server, "", (("MAX_FAULTS", "faulty frames that end a connection", "", "wire/verify/server.py"),)),
    _Group(PEER, frame_service, "", (
        ("_MAX_UNSENT", "messages left unread before the peer's frames wait", "", "server/verify/frame_service.py"),
        ("_MAX_UNSENT_BYTES", "size of messages left unread before the peer's frames wait", "bytes", "server/verify/frame_service.py"),
    )),
    _Group(PEER, SplitLimits(), "", (
        ("context_rows", "positions of a session; a split server's are those of its cells", "", "wire/split/server.py"),
        ("rows", "hidden states in one frame", "", "wire/split/codec.py"),
        ("rounds", "rounds of a split session that are not answered", "", "wire/split/server.py"),
    )),
    _Group(PEER, split_service, "`--room`", (("ROOM", "rows of a split server's batch", "", "server/split/service.py"),)),
    _Group(PEER, address_limits, "", (
        ("_PAGES", "share of an address's connections and faults for its web pages", "", "server/verify/address_limits.py"),
        ("_KEPT", "share of all connections that is kept for peers with the key", "", "server/verify/address_limits.py"),
        ("_MAX_ADDRESSES", "sources with remembered faults", "", "server/verify/address_limits.py"),
    )),
    _Group(PEER, LoadLimits(), "`LoadLimits({name}=)`", (
        ("sessions", "sessions remembered (`--verify-sessions`)", "", "core/verifier/admission.py"),
        ("sessions_per_device", "sessions of one connection", "", "core/verifier/scheduler.py"),
        ("idle_after", "silence after which a session may lose its memory to another", "s", "core/verifier/sessions.py"),
        ("forget_after", "silence after which a session is forgotten", "s", "core/verifier/sessions.py"),
        ("prefill_within", "wait of a new prompt", "s", "core/verifier/admission.py"),
        ("min_retry", "shortest wait that a refusal asks for", "s", "core/verifier/scheduler.py"),
        ("max_retry", "longest wait that a refusal asks for", "s", "core/verifier/scheduler.py"),
    )),
    _Group(UPSTREAM, config.Timeouts(), "`Timeouts({name}=)`", (
        ("connect", "time to connect", "s", "endpoints/http.py"),
        ("first_token", "time to the first content", "s", "endpoints/network/watchdog.py"),
        ("next_token", "time between content", "s", "endpoints/network/watchdog.py"),
        ("socket", "time without any byte", "s", "endpoints/network/watchdog.py"),
        ("total", "time of the whole answer", "s", "endpoints/network/watchdog.py"),
        ("cancel", "time that a cancel is awaited", "s", "endpoints/http.py"),
    )),
    _Group(UPSTREAM, verifier_endpoint, "`Timeouts(socket=)` of a verifier", (
        ("PONG_SECONDS", "time to answer a ping", "s", "endpoints/verifiers/streamco.py"),
    )),
    _Group(UPSTREAM, config.Limits(), "`Limits({name}=)`", (
        ("event_bytes", "size of one event", "bytes", "wire/openai/stream.py"),
        ("body_bytes", "size of an answer that isn't streamed, unpacked", "bytes", "wire/openai/stream.py"),
        ("answer_bytes", "size of a streamed answer", "bytes", "wire/openai/stream.py"),
        ("unread_tokens", "tokens that wait for the reader before the source is paused", "", "client/modes/race/plan.py"),
        ("lookahead", "reading time that a device runs ahead of a paced reader", "s", "config.py"),
    )),
    _Group(UPSTREAM, config.RetryPolicy(), "`RetryPolicy({name}=)`", (
        ("attempts", "further tries", "", "endpoints/retry.py"),
        ("backoff", "wait before the first of them; it doubles", "s", "endpoints/retry.py"),
        ("longest_wait", "`Retry-After` that is waited for", "s", "endpoints/retry.py"),
    )),
    _Group(UPSTREAM, wire_errors, "", (("_BODY_BYTES", "size read of an error's body", "bytes", "wire/openai/errors.py"),)),
    _Group(UPSTREAM, http, "", (("_MAX_REQUESTS", "requests in a row if each answer is a redirect", "", "endpoints/http.py"),)),
    _Group(UPSTREAM, lenient_decode, "", (
        ("_MAX_COUNT", "tokens that a usage may claim; one that claims more is ignored", "", "wire/openai/lenient_decode.py"),
        ("_MAX_LEVELS", "levels of nested JSON", "", "wire/openai/lenient_decode.py"),
    )),
    _Group(UPSTREAM, extended_decode, "", (
        ("_FREE_ELEMENTS", "elements of a provider's own fields in an answer; more are dropped", "", "wire/openai/extended_decode.py"),
        ("_BYTES_AN_ELEMENT", "size of the events that allows one element more", "bytes", "wire/openai/extended_decode.py"),
    )),
    _Group(UPSTREAM, openai_stream, "", (("_MAX_HELD", "chunks before the first content", "", "endpoints/openai_stream.py"),)),
    _Group(FILES, chat_template, "", (("MAX_SOURCE", "chat template of a model file", "characters", "engines/chat_template.py"),)),
    _Group(FILES, template_sandbox, "", (
        ("MAX_STEPS", "steps of a chat template", "", "engines/llamacpp/template_sandbox.py"),
        ("MAX_SECONDS", "time of a chat template", "s", "engines/llamacpp/template_sandbox.py"),
        ("MAX_SIZE", "text or elements that a chat template makes", "", "engines/llamacpp/template_sandbox.py"),
        ("MAX_SLOW", "text for a template's filter that takes quadratic time", "characters", "engines/llamacpp/template_sandbox.py"),
    )),
    _Group(FILES, profiles, "", (("MAX_BYTES", "size of a profile of latencies or step times", "bytes", "emulation/profiles.py"),)),
    _Group(FILES, yaml_document, "", (
        ("MAX_CHARACTERS", "size of an experiment", "characters", "sim/experiment/yaml_document.py"),
        ("MAX_VALUES", "values of an experiment, aliases expanded", "", "sim/experiment/yaml_document.py"),
        ("MAX_LEVELS", "levels of lists and mappings in an experiment", "", "sim/experiment/yaml_document.py"),
    )),
)  # fmt: skip

ROWS: tuple[Row, ...] = tuple(row for group in GROUPS for row in group)


def table() -> str:
    """Return the table as Markdown."""
    lines = []
    for title in dict.fromkeys(row.group for row in ROWS):
        lines += [f"| {title} | limit | where it is set | where it is checked |", "|---|---|---|---|"]
        for row in ROWS:
            if row.group == title:
                lines.append(f"| {row.what} | {_shown(row)} | {row.setting or 'fixed'} | `{row.checked}` |")
        lines.append("")
    return "\n".join(lines)


def _shown(row: Row) -> str:
    if row.value is None:
        return "none"
    if row.unit == "bytes":
        return _shown_size(int(row.value))
    number = f"{row.value:,}" if isinstance(row.value, int) else f"{row.value:g}"
    return f"{number} {row.unit}".strip()


def _shown_size(size: int) -> str:
    """Return a number of bytes in the largest unit that it is a whole number of."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and not size % unit:
            return f"{size // unit:,} {name}"
    return f"{size:,} bytes"


def render(page: str) -> str:
    """Return the page with the present table."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise AssertionError(f"docs/security.md: expected the marks {BEGIN.strip()} and {END.strip()}, got none")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    is_check = parser.parse_args().check
    present = PAGE.read_text()
    wanted = render(present)
    if not is_check:
        PAGE.write_text(wanted)
    return int(is_check and wanted != present)


if __name__ == "__main__":
    sys.exit(main())
