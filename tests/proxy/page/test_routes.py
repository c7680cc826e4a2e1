"""The page's files as they are served: what they are, what they may do, and which requests are refused."""

from __future__ import annotations

import re

import aiohttp
import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.core.report_parts import SpeculationFigures
from streamco.errors import EndpointConnectError, EndpointStatusError
from streamco.proxy.app import READER_HEADER, for_a_person, serving
from streamco.proxy.config import ProxyOptions
from streamco.proxy.page.routes import FILES, HEADERS, KILL_PATH, PageExtras, PageFile
from tests.client.helpers import device, server
from tests.proxy.support import CHAT, HELLO, proxying

MAX_BYTES = 85_000  # of all files together
SCRIPTS = tuple(file.name for file in FILES.values() if file.name.endswith(".js"))
TINTS = ("device", "server", "accepted", "corrected", "bonus")


def source(name: str) -> str:
    return next(file for file in FILES.values() if file.name == name).read().decode()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("path", "file"), FILES.items())
async def test_each_file_has_its_type_and_the_policy(path: str, file: PageFile) -> None:
    async with proxying(server=server(), page=True) as proxy, proxy.client.get(path) as response:
        assert response.status == 200
        assert await response.read() == file.read()
        assert response.headers["Content-Type"] == file.content_type
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_the_policy_allows_this_origin_alone() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split(";"))
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'self'", "'none'", "'self'")
    assert rules["frame-ancestors"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert HEADERS["X-DNS-Prefetch-Control"] == "off", "a link in an answer asks no name server"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("path", FILES)
async def test_without_the_option_there_is_no_page(path: str) -> None:
    async with proxying(server=server()) as proxy, proxy.client.get(path) as response:
        assert response.status == 404
        assert "Content-Security-Policy" not in response.headers


async def test_a_page_has_prompts_and_a_way_to_kill_its_server_only_if_it_is_given_them() -> None:
    failures: list[EndpointConnectError] = []
    killed: list[bool] = []

    async def kill() -> None:
        killed.append(True)
        if failures:
            raise failures[0]

    extras = PageExtras(prompts={"What is tea?": None}, kill_server=kill)
    async with proxying(server=server(), page=True, extras=extras) as proxy:
        async with proxy.client.get("/page.json") as response:
            assert await response.json() == {"prompts": ["What is tea?"], "kills_server": True}
            assert response.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
        assert (await proxy.post(KILL_PATH, {}, Origin="https://attacker.example"))[0] == 403
        assert not killed
        async with proxy.client.post(KILL_PATH) as response:
            assert response.status == 204
        assert killed == [True]
        failures.append(EndpointConnectError("expected a server that listens, got the end of its output", endpoint="server"))
        async with proxy.client.post(KILL_PATH) as response:
            assert response.status == 502
            assert "expected a server that listens" in (await response.json())["error"]["message"]
    async with proxying(server=server(), page=True) as proxy:
        async with proxy.client.get("/page.json") as response:
            assert await response.json() == {"prompts": [], "kills_server": False}
        async with proxy.client.post(KILL_PATH) as response:
            assert response.status == 404


async def test_a_prompt_of_the_page_is_answered_by_the_client_that_is_given_for_it() -> None:
    near, far = device([(0.0, "near")]), server([(0.0, "far")])
    async with Client(near, far, mode=Race(policy="device-only")) as client:
        extras = PageExtras(prompts={"Far?": client.with_options(mode=Race(policy="server-only")), "Near?": None})
        async with serving(client, ProxyOptions(page=True), extras) as url, aiohttp.ClientSession() as http:
            for prompt, reader, answer in (("Far?", "person", "far"), ("Near?", "person", "near"), ("Far?", "", "near")):
                body = {"messages": [{"role": "user", "content": prompt}], "stream": True}
                async with http.post(f"{url}/chat/completions", json=body, headers={READER_HEADER: reader}) as response:
                    assert f'"content":"{answer}"' in await response.text()


async def test_other_paths_are_as_they_were() -> None:
    async with proxying(server=server(), page=True) as proxy:
        for path in ("/page", "/index.html", "/routes.py", "/..%2froutes.py", "/streamco/proxy/page/routes.py"):
            async with proxy.client.get(path) as response:
                assert response.status == 404, path
        async with proxy.client.post("/", json={}) as response:
            assert response.status == 405
        async with proxy.client.get("/v1/models") as response:
            assert "Content-Security-Policy" not in response.headers


async def test_the_files_need_no_key_and_the_api_does() -> None:
    async with proxying(server=server(), page=True, api_key="sk-proxy") as proxy:
        for path in FILES:
            async with proxy.client.get(path) as response:
                assert response.status == 200
        for path in ("/v1/models", "/streamco/totals", "/metrics"):
            async with proxy.client.get(path) as response:
                assert response.status == 401
        assert (await proxy.post(CHAT, HELLO))[0] == 401


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("path", FILES)
async def test_without_a_key_only_a_loopback_name_gets_the_page(path: str) -> None:
    async with proxying(server=server(), page=True) as proxy:
        async with proxy.client.get(path, headers={"Host": "attacker.example"}) as response:
            assert response.status == 403
        async with proxy.client.get(path, headers={"Host": "localhost:8080"}) as response:
            assert response.status == 200


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("origin", ["https://attacker.example", "null", "http://127.0.0.1:1", "file://", "http://", "x" * 5000])
async def test_a_page_of_another_origin_can_not_make_work(origin: str) -> None:
    side = server()
    async with proxying(server=side, page=True) as proxy:
        status, body = await proxy.post(CHAT, HELLO, Origin=origin)
    assert (status, body["error"]["type"]) == (403, "permission_error")
    assert body["error"]["message"].startswith("origin: expected the page's own, 127.0.0.1:")
    assert len(body["error"]["message"]) < 500
    assert not side.streams


async def test_the_page_itself_programs_and_named_origins_can_make_work() -> None:
    async with proxying(server=server(), page=True, cors=("https://app.example",)) as proxy:
        own = f"http://127.0.0.1:{proxy.runner.addresses[0][1]}"
        assert (await proxy.post(CHAT, HELLO))[0] == 200
        assert (await proxy.post(CHAT, HELLO, Origin=own))[0] == 200
        assert (await proxy.post(CHAT, HELLO, Origin=own.replace("http:", "https:")))[0] == 200, "a proxy may add TLS"
        assert (await proxy.post(CHAT, HELLO, Origin="https://app.example"))[0] == 200
        assert (await proxy.post(CHAT, HELLO, Origin="https://app.example.org"))[0] == 403
        changed = {"Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}
        assert (await proxy.post(CHAT, HELLO, **changed))[0] == 200, "a proxy may change the host"
        assert (await proxy.post(CHAT, HELLO, **changed | {"Sec-Fetch-Site": "same-site"}))[0] == 403
    async with proxying(server=server(), page=True, cors=("*",), api_key="k") as proxy:
        assert (await proxy.post(CHAT, HELLO, Origin="https://any.example", Authorization="Bearer k"))[0] == 200


async def test_without_the_page_an_origin_is_no_matter() -> None:
    async with proxying(server=server()) as proxy:
        assert (await proxy.post(CHAT, HELLO, Origin="https://attacker.example"))[0] == 200, "a browser has asked by a preflight"


def test_the_files_are_small() -> None:
    assert sum(len(file.read()) for file in FILES.values()) < MAX_BYTES


def test_the_files_name_no_other_place() -> None:
    for name in ("index.html", "page.css", *SCRIPTS):
        places = r"//\w+\.|@import|url\(" if name == "markdown_inline.js" else r"https?:|//\w+\.|@import|url\("  # it has to know links
        assert not re.findall(places, source(name)), name
    assert re.findall(r"https?://[^\"]+", source("icon.svg")) == ["http://www.w3.org/2000/svg"]


def test_the_markup_has_no_inline_script_style_or_handler() -> None:
    page = source("index.html")
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page, re.IGNORECASE)


def test_the_code_makes_no_markup_and_no_code_of_text() -> None:
    code = "".join(map(source, SCRIPTS))
    for name in (
        "innerHTML",
        "insertAdjacentHTML",
        "setHTML",
        "createContextualFragment",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "DOMParser",
        "srcdoc",
        "localStorage",
    ):
        assert name not in code, name
    assert not re.findall(r"set(?:Timeout|Interval)\(\s*[\"'`]", code)
    assert not re.findall(r"createElement\(\s*[\"'`](?:script|style|iframe|object)", code)


def palettes() -> list[dict[str, str]]:
    """The colours of the light and the dark look."""
    blocks = re.findall(r":root \{(.*?)\}", source("page.css"), re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks[:2]]


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_can_be_read_and_lines_can_be_seen_in_both_looks() -> None:
    light, dark = palettes()
    for colors in (light, dark):
        for tint in TINTS:
            assert contrast(colors[f"{tint}-line"], colors["ground"]) >= 3, f"the lines of {tint}"
            assert contrast(colors[f"{tint}-line"], colors["raised"]) >= 3, f"the bar of {tint}, and its line below code"
        assert contrast(colors["text"], colors["ground"]) >= 7
        assert contrast(colors["text"], colors["raised"]) >= 7
        for name in ("text", "quiet", "failure"):
            assert contrast(colors[name], colors["ground"]) >= 4.5, name
        assert contrast(colors["quiet"], colors["raised"]) >= 4.5
        assert contrast(colors["accent"], colors["on-accent"]) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_bars_have_the_colour_of_their_tint() -> None:
    assert re.findall(r"^\.bar\.(\w+) \{ color: var\(--(\w+)-line\); \}", source("page.css"), re.MULTILINE) == [
        (tint, tint) for tint in TINTS
    ]


def test_the_shares_of_a_speculated_answer_are_all_that_its_report_has() -> None:
    table = re.search(r"const MADE = \[(.*?)\n\];", source("race.js"), re.DOTALL)
    assert table is not None
    rows = re.findall(r'\["(\w+)", "(\w+)", "[\w ]+"\]', table[1])
    assert {field for field, _ in rows} <= set(SpeculationFigures.__struct_fields__)
    assert sorted(tint for _, tint in rows) == sorted(TINTS)


def test_tints_differ_by_more_than_their_colour() -> None:
    styles = re.findall(r"^\.(\w+) \{[^}]*text-decoration-style: (\w+)", source("page.css"), re.MULTILINE)
    assert [tint for tint, _ in styles] == list(TINTS)
    assert len({style for _, style in styles}) == len(TINTS)


def test_the_legend_has_each_tint_in_words() -> None:
    assert re.findall(r'<span class="tint (\w+)">(\w+)</span> \w', source("index.html")) == [(tint, tint) for tint in TINTS]


async def test_a_person_gets_an_answer_and_a_note_where_a_program_gets_a_server_s_refusal() -> None:
    refusing = server([(0.0, EndpointStatusError("wrong key", status=401, endpoint="server"))])
    async with proxying(device(), refusing, policy="server-first", page=True) as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert response.status == 502
        async with proxy.client.post(CHAT, json={**HELLO, "stream": True}, headers={READER_HEADER: "person"}) as response:
            assert response.status == 200
            assert "server failed (EndpointStatusError 401): device answered" in await response.text()


def test_a_person_reads_evenly_unless_another_pace_is_set() -> None:
    client = Client(server=server())
    assert (for_a_person(client).pace, for_a_person(client).on_degraded) == ("smooth", "answer")
    strict = Client(server=server(), pace=7.0, on_degraded="raise")
    assert (for_a_person(strict).pace, for_a_person(strict).on_degraded) == (7.0, "raise")
    assert f'"{READER_HEADER}": "person"' in source("api.js")
