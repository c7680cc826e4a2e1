"""The page in a real browser: what it shows, what it sends, and what it can't be made to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright", reason="needs the package playwright")

from playwright.async_api import Browser, Error, expect

from streamco import MigrationOptions, QualityGate, Race
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.errors import EndpointConnectError, EndpointProtocolError
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from streamco.proxy.page.routes import PAGE_PATHS, PageExtras
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import ShapedDevice, device, server
from tests.client.speculating import PROMPT, World
from tests.proxy.page.browser import CHROMIUM, Visit, address, visiting
from tests.proxy.page.test_routes import contrast
from tests.proxy.support import proxying
from tests.server.support import until

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium"),
    pytest.mark.asyncio(loop_scope="module"),  # one browser for all tests; each has a tab with storage of its own
]

OWN_PATHS = PAGE_PATHS | {"/v1/models", "/v1/chat/completions"}
ATTACK = '<img src=x onerror="window.hit=1"><script>window.hit=1</script><svg onload="window.hit=1">'


def told(endpoint: ScriptedEndpoint) -> list[Any]:
    """The messages that the endpoint got last."""
    messages: list[Any] = list(endpoint.streams[-1].request.messages or [])
    return messages


def moving(story: Sequence[str]) -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
    """A device and a server; the server begins, and the device goes on because it is cheaper."""
    dear = server([(0.02 * number, word) for number, word in enumerate(story)], prices=TokenPrices(prompt=1e-6, completion=9e-6))
    script: list[tuple[float, Any]] = [(30.0 + 0.02 * number, word) for number, word in enumerate(story)]
    able = Capabilities(continuation="token_ids", pre_copy="append")
    return ShapedDevice("device", script, kind="device", tokens=10, capabilities=able), dear


async def test_both_sides_are_tinted_the_hand_over_stands_at_its_place_and_the_race_is_drawn(visit: Visit) -> None:
    story = [f"word{number} " for number in range(80)]
    race = Race(policy="both", migration=MigrationOptions(min_quality=0.0))
    async with proxying(*moving(story), dispatch=race, budget=1.0, pace=25, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Tell me a story")
        await visit.ended()
        (_, before), (_, mark), (_, after) = runs = await visit.runs()
        assert [name for name, _ in runs] == ["tint server", "handover", "tint device"]
        assert mark == "server → device"
        assert before + after == "".join(story).rstrip()
        sides = await visit.texts(".race .words")
        assert any("asked at once, first token" in words and "began the answer" in words and "stopped at" in words for words in sides)
        assert any("took over and went on" in words for words in sides)
        change, shown = await visit.texts(".race li")
        assert shown.startswith("the text was shown until ")
        assert change.startswith("hand-over at ")
        assert f"after token {len(before.split())}: server → device" in change
        assert "cheaper, saved $" in change
        (live,) = await visit.texts(".live")
        assert "tokens/s" in live
        for bar in await visit.page.locator(".track .bar").all():
            box = await bar.bounding_box()
            assert box is not None
            assert box["width"] >= 2
        assert await visit.page.locator(".track .first").count() >= 2


async def test_an_answer_of_the_devices_own_can_be_rated_and_the_score_is_shown(visit: Visit) -> None:
    gate = Race(policy="device-first", quality=QualityGate(min_score=0.5))
    local = device([(0.0, "Yes. ")], probability=0.91)
    async with proxying(local, server([(0.0, "No. ")]), dispatch=gate, budget=0.9, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Really?")
        await visit.ended()
        assert (await visit.texts(".live"))[0].startswith("done · sure, 0.91 · first token")
        await visit.page.reload()
        await visit.page.get_by_role("button", name="Not good enough").click()
        await expect(visit.page.locator(".thumbs")).to_have_text("Thank you: noted as not good enough.")
        await visit.page.reload()
        await expect(visit.page.locator(".answer")).to_have_count(1)
        assert await visit.page.locator(".thumbs").count() == 0
        local.probability = 0.34
        await visit.ask("And now?")
        await visit.ended()
        assert (await visit.texts(".live"))[1].startswith("done · the device was unsure, 0.34 · first token")
        assert await visit.page.locator(".thumbs").count() == 0


async def test_a_rating_that_teaches_nothing_or_can_not_be_sent_is_not_called_noted(browser: Browser) -> None:
    gate = Race(policy="device-first", quality=QualityGate(min_score=0.5))
    async with visiting(browser) as visit, proxying(device([(0.0, "Yes. ")]), dispatch=gate, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Really?")
        await visit.ended()
        await visit.page.get_by_role("button", name="Good answer").click()
        await expect(visit.page.locator(".thumbs")).to_have_text("Thank you. Nothing could be learned from it.")
        assert not visit.complaints
        await visit.ask("And now?")
        await visit.ended()
        await visit.page.route("**/streamco/ratings/*", lambda route: route.abort())
        await visit.page.get_by_role("button", name="Good answer").click()
        await expect(visit.page.locator(".thumbs").last).to_have_text("Your rating could not be sent: Failed to fetch")


async def test_a_speculated_answer_is_tinted_by_what_became_of_its_drafts(visit: Visit) -> None:
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier) as client, serving(client, ProxyOptions(page=True)) as url:
        await visit.open(url.removesuffix("/v1") + "/")
        await visit.ask(PROMPT)
        await visit.ended()
        runs = await visit.runs()
        words = await visit.texts(".race .words")
        bars = [str(await bar.get_attribute("class")) for bar in await visit.page.locator(".race .track .bar").all()]
        boxes = [await bar.bounding_box() for bar in await visit.page.locator(".race .track").first.locator(".bar").all()]
        track = await visit.page.locator(".race .track").first.bounding_box()
        hidden = [await each.get_attribute("aria-hidden") for each in await visit.page.locator(".race .track").all()]
    world.close()
    assert len("".join(text for _, text in runs).split()) == len(world.own(world.prompt_ids())), "sampled, but of the same length"
    assert {"tint accepted", "tint corrected"} <= {name for name, _ in runs} <= {"tint accepted", "tint corrected", "tint bonus"}
    assert any("drafted" in text for text in words)
    assert any("verified the drafts" in text for text in words)
    answer, drafts = words[:2]
    shares = [(int(count), int(share)) for count, share in re.findall(r"(\d+) (?:accepted|corrected|bonus) \((\d+) %\)", answer)]
    total = sum(count for count, _ in shares)
    assert answer.startswith(f"{total} tokens: ")
    assert all(abs(share - 100 * count / total) <= 0.5 for count, share in shares)
    assert re.fullmatch(r"\d+ tokens drafted: \d+ in the answer \(\d+ %\), \d+ not in it \(\d+ %\)", drafts)
    assert bars[: len(shares)] == [f"bar {name}" for name in ("accepted", "corrected", "bonus") if f"{name} (" in answer]
    assert bars[len(shares) :] == ["bar accepted", "bar waiting device"]
    assert track is not None
    for box, (count, _) in zip(boxes, shares, strict=True):
        assert box is not None
        assert box["width"] == pytest.approx(track["width"] * count / total, abs=2)
    assert hidden == ["true", "true"], "the words say the same"


async def test_figures_come_while_the_answer_does_and_the_race_is_seen(visit: Visit) -> None:
    side = server([(0.0, "one"), (60.0, "two")], prices=TokenPrices(prompt=1e-6, completion=2e-6))
    async with proxying(device([(90.0, "D")]), side, policy="both", page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        live = visit.page.locator(".live")
        await expect(live).to_contain_text("first token")
        await expect(live).to_contain_text("cost $")
        await expect(live).to_contain_text("budget left")
        await expect(visit.page.locator(".race .name")).to_have_count(2)
        await expect(visit.page.locator(".answer .text")).to_have_attribute("aria-busy", "true")
        await visit.page.click("#stop")
        await visit.ended("stopped")
        await expect(visit.page.locator(".answer .text")).to_have_attribute("aria-busy", "false")
        assert all("at work when you stopped it at " in words for words in await visit.texts(".race .words"))


@pytest.mark.parametrize("way", ["button", "key"])
async def test_stopping_an_answer_stops_the_work_at_both_sides(visit: Visit, way: str) -> None:
    near, far = device([(60.0, "n")]), server([(0.05, "one "), (60.0, "two")])
    async with proxying(near, far, policy="both", budget=1.0, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await expect(visit.page.locator(".answer .text")).to_have_text("one ")
        await (visit.page.click("#stop") if way == "button" else visit.page.press("#prompt", "Escape"))
        await visit.ended("stopped")
        await expect(visit.page.locator("#prompt")).to_be_focused()
        await until(lambda: near.active == 0 and far.active == 0)
        await until(lambda: proxy.proxy.active == 0)
        assert far.streams[0].is_cancelled
        far.script = [(0.0, "three")]
        await visit.ask("And now?")
        await visit.ended()
        asked, answered = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "one "}
        assert told(far) == [asked, answered, {"role": "user", "content": "And now?"}], "what was said stays in the conversation"


async def test_the_conversation_is_sent_whole_each_time_until_a_new_one_begins(visit: Visit) -> None:
    side = server([(0.0, "Yes"), (0.0, ".")])
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        for prompt in ("One?", "Two?"):
            await visit.ask(prompt)
            await visit.ended()
        assert [message["content"] for message in told(side)] == ["One?", "Yes.", "Two?"]
        await visit.page.click("#clear")
        await expect(visit.page.locator("article")).to_have_count(0)
        await visit.ask("Three?")
        await visit.ended()
        assert [message["content"] for message in told(side)] == ["Three?"]


async def test_a_reload_stops_the_answer_and_keeps_the_conversation_in_this_tab_alone(visit: Visit) -> None:
    side = server([(0.0, "one **two**"), (60.0, "three")])
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await expect(visit.page.locator(".answer strong")).to_have_text("two")
        await visit.page.reload()
        await until(lambda: side.active == 0 and proxy.proxy.active == 0)
        await visit.ended("stopped")
        assert await visit.texts(".user .text") == ["Hello"]
        assert await visit.runs() == [("tint server", "one two")]
        assert await visit.texts(".answer strong") == ["two"]
        assert await visit.texts(".race .name") == ["server"]
        other = await visit.page.context.new_page()
        await other.goto(address(proxy))
        await expect(other.locator("#prompt")).to_be_focused()
        assert await other.locator("article").count() == 0
        await other.close()
        side.script = [(0.0, "again")]
        await visit.ask("And now?")
        await visit.ended()
        assert [message["content"] for message in told(side)] == ["Hello", "one **two**", "And now?"]


async def test_the_button_clears_what_the_tab_keeps_of_the_conversation(visit: Visit) -> None:
    side = server([(0.0, "one"), (60.0, "two")])
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("A secret")
        await expect(visit.page.locator(".answer .text")).to_have_text("one")
        await visit.page.get_by_role("button", name="Clear conversation").click()
        await until(lambda: side.active == 0 and proxy.proxy.active == 0)
        assert await visit.page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
        await visit.page.reload()
        await expect(visit.page.locator("#empty")).to_be_visible()
        assert await visit.page.locator("article").count() == 0
        assert await visit.page.evaluate("sessionStorage.length") == 0, "nor is it kept again when the page is left"


@pytest.mark.parametrize(
    "kept", ["nonsense", "{}", "[1]", '[{"prompt": 1}]', '[{"prompt": "a", "pieces": [["x"]]}]', '[null, {"pieces": {}}]']
)
async def test_what_is_no_conversation_in_the_tabs_storage_is_left_out(visit: Visit, kept: str) -> None:
    async with proxying(server=server(), page=True) as proxy:
        await visit.open(address(proxy))
        await visit.page.evaluate("(kept) => sessionStorage.setItem('streamco-conversation', kept)", kept)
        await visit.page.reload()
        await expect(visit.page.locator("#prompt")).to_be_focused()
        assert await visit.page.locator("article").count() == 0


async def test_the_last_answer_can_be_made_again_and_stays_if_no_other_comes(browser: Browser) -> None:
    side = server([(0.0, "one")])
    async with visiting(browser) as visit, proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        for prompt in ("First?", "Second?"):
            await visit.ask(prompt)
            await visit.ended()
        again = visit.page.get_by_role("button", name="Regenerate")
        await expect(again).to_have_count(1)
        side.script = [(0.0, "two")]
        await again.click()
        await expect(visit.page.locator(".answer .text").last).to_have_text("two")
        await visit.ended()
        assert [message["content"] for message in told(side)] == ["First?", "one", "Second?"]
        assert await visit.texts(".answer .text") == ["one", "two"]
        side.script = [(0.0, EndpointConnectError("expected a connection, got it refused"))]
        await again.click()
        await expect(visit.page.locator(".failure")).to_have_text("server: expected a connection, got it refused")
        assert await visit.texts(".answer .text") == ["one", "two"]
        await visit.page.reload()
        await visit.ended()
        assert await visit.texts(".answer .text") == ["one", "two"]


async def test_an_answer_is_copied_as_markdown_and_its_code_as_code(visit: Visit) -> None:
    markdown = "# Title\n\n```py\nprint(1)\n\nprint(2)\n```\n"
    near = ScriptedEndpoint("device", [(0.0, markdown)], kind="device", capabilities=Capabilities(continuation="token_ids"))
    far = server([(0.0, "# Title\n\n```py\npri"), (0.0, EndpointProtocolError("expected the rest of the answer, got the connection cut"))])
    near.script = [(0.0, piece) for piece in ("# Title\n\n```py\npri", "nt(1)\n\nprint(2)\n```\n")]
    async with proxying(near, far, dispatch=Race(policy="server-first"), budget=1.0, page=True) as proxy:
        await visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visit.open(address(proxy))
        await visit.ask("Code, please")
        await visit.ended()
        assert "handover" in [name for name, _ in await visit.runs()], "its mark is inside the code"
        copied = []
        for name in ("Copy answer", "Copy"):
            await visit.page.get_by_role("button", name=name, exact=True).click()
            await expect(visit.page.get_by_role("button", name="Copied")).to_have_count(1)
            copied.append(await visit.page.evaluate("navigator.clipboard.readText()"))
            await expect(visit.page.get_by_role("button", name="Copied")).to_have_count(0)
    assert copied == [markdown, "print(1)\n\nprint(2)"]


async def test_a_demo_has_prompts_to_click_and_a_button_that_kills_the_server_while_it_writes(visit: Visit) -> None:
    killed, restarted = asyncio.Event(), asyncio.Event()

    async def kill() -> None:
        killed.set()
        await restarted.wait()

    near, far = device([(60.0, "D")]), server([(0.0, "one"), (60.0, "two")])
    extras = PageExtras(prompts={"What is tea?": None, "What is milk?": None}, kill_server=kill)
    async with proxying(near, far, policy="both", budget=1.0, page=True, extras=extras) as proxy:
        await visit.open(address(proxy))
        button, starters = visit.page.get_by_role("button", name="Kill the server"), visit.page.locator("#starters button:visible")
        await expect(button).to_be_disabled()
        await expect(starters).to_have_text(["What is tea?", "What is milk?"])
        await starters.first.click()
        await expect(starters).to_have_count(0)
        await expect(button).to_be_enabled()
        await button.click()
        await asyncio.wait_for(killed.wait(), 10)
        await expect(button).to_be_disabled()
        await expect(visit.page.get_by_role("status")).to_contain_text("was killed")
        restarted.set()
        await expect(visit.page.get_by_role("status")).to_have_text("The server is running again.")
        await expect(button).to_be_enabled()
        await visit.page.click("#stop")
        await visit.ended("stopped")
        await expect(button).to_be_disabled()
        assert told(far) == [{"role": "user", "content": "What is tea?"}]
        await expect(starters).to_have_text(["What is milk?"])
        await visit.page.click("#clear")
        await expect(starters).to_have_text(["What is tea?", "What is milk?"])


async def test_a_page_that_is_no_demo_has_neither(visit: Visit) -> None:
    async with proxying(server=server(), page=True) as proxy:
        await visit.open(address(proxy))
        await expect(visit.page.locator("#empty")).to_be_visible()
        assert await visit.page.locator("#starters button, #kill").count() == 0


async def test_an_origin_is_a_thin_line_and_no_block_of_colour(visit: Visit) -> None:
    async with proxying(server=server([(0.0, "one")]), page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await visit.ended()
        look = """element => {
          const { backgroundColor, textDecorationLine, textDecorationThickness } = getComputedStyle(element.querySelector(".tint"));
          const { backgroundSize } = getComputedStyle(element);
          return [backgroundColor, textDecorationLine, textDecorationThickness, backgroundSize];
        }"""
        block = visit.page.locator(".answer .block")
        assert await block.evaluate(look) == ["rgba(0, 0, 0, 0)", "underline", "1px", "3px 100%"]


async def test_markup_in_prompts_answers_names_and_errors_is_text(visit: Visit) -> None:
    broken = EndpointProtocolError(f"expected an answer, got {ATTACK}")
    side = server([(0.0, ATTACK), (0.0, " and more"), (0.1, broken)], name="<b>server</b>")
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask(ATTACK)
        await visit.ended("failed")
        assert await visit.texts(".user .text") == [ATTACK]
        assert await visit.texts(".answer .text") == [ATTACK + " and more"]
        assert ATTACK in (await visit.texts(".failure"))[0]
        assert await visit.texts(".race .name") == ["<b>server</b>"]
        assert await visit.page.locator("main img, main script, main svg, main b").count() == 0
        assert await visit.page.evaluate("window.hit ?? null") is None
        assert {urlsplit(url).path for url in visit.requests} <= OWN_PATHS


async def test_the_browser_is_given_the_policy_and_holds_the_page_to_it(browser: Browser) -> None:
    async with visiting(browser) as visit, proxying(server=server(), page=True) as proxy:
        response = await visit.page.goto(address(proxy))
        assert response is not None
        assert "default-src 'self'" in (await response.header_value("content-security-policy") or "")
        assert not visit.complaints
        with pytest.raises(Error, match="TrustedHTML"):
            await visit.page.evaluate("document.body.innerHTML = '<b>x</b>'")
        elsewhere = "fetch('http://127.0.0.1:9/').then(() => 'answered', () => 'refused')"
        assert await visit.page.evaluate(elsewhere) == "refused"
        assert any("Content Security Policy" in complaint for complaint in visit.complaints)
        await visit.page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))")
        await expect(visit.page.locator("img")).to_have_count(1)
        assert await visit.page.locator("img").evaluate("image => image.naturalWidth") == 0


async def test_enter_sends_and_shift_enter_begins_a_line(visit: Visit) -> None:
    side = server([(0.0, "ok")])
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.page.keyboard.press("Enter")
        assert not side.streams, "nothing was typed"
        await visit.page.keyboard.type("one")
        await visit.page.keyboard.press("Shift+Enter")
        await visit.page.keyboard.type("two")
        await visit.page.keyboard.press("Enter")
        await visit.ended()
        assert told(side) == [{"role": "user", "content": "one\ntwo"}]
        assert await visit.page.input_value("#prompt") == ""


async def test_every_control_is_reached_by_the_keyboard_and_shows_it(visit: Visit) -> None:
    side = server()
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        reached = []
        for key in ("Shift+Tab", "Tab", "Tab", "Tab"):
            await visit.page.keyboard.press(key)
            focused = visit.page.locator(":focus")
            reached.append(await focused.evaluate("element => element.id || element.tagName"))
            assert await focused.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
        await visit.page.fill("#prompt", "Hello")
        side.script = [(0.0, "one"), (60.0, "two")]
        await visit.page.press("#send", "Space")
        await expect(visit.page.locator("#stop")).to_be_focused()
        await expect(visit.page.locator(".answer .text")).to_have_text("one")
        await visit.page.keyboard.press("Space")
        await visit.ended("stopped")
        await expect(visit.page.locator("#prompt")).to_be_focused()
        for _ in range(5):
            await visit.page.keyboard.press("Shift+Tab")
            reached.append(await visit.page.locator(":focus").text_content())
    assert reached[:4] == ["clear", "prompt", "send", "limit"], "the stop button only while an answer comes"
    assert reached[4:] == ["Whole report", "Regenerate", "Copy answer", "What the lines mean", "Clear conversation"]


async def test_the_longest_answer_is_sent_if_it_is_given(visit: Visit) -> None:
    side = server([(0.0, "ok")])
    async with proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        for limit in ("7", ""):
            await visit.page.fill("#limit", limit)
            await visit.ask("Hello")
            await visit.ended()
    assert [stream.request.sampling.max_tokens for stream in side.streams] == [7, None]


async def test_a_key_is_asked_for_and_kept_in_this_tab_alone(browser: Browser) -> None:
    async with visiting(browser) as visit, proxying(server=server([(0.0, "ok")]), page=True, api_key="sk-proxy") as proxy:
        page = visit.page
        await visit.open(address(proxy))
        await expect(page.locator("#access")).to_be_visible()
        await visit.ask("Hello")
        await visit.ended("failed")
        assert await page.input_value("#prompt") == "Hello", "the prompt can be sent again"
        await expect(page.locator("#key")).to_be_focused()
        await page.keyboard.type("sk-proxy")
        await page.keyboard.press("Enter")
        await expect(page.locator("#access")).to_be_hidden()
        await expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.press("Enter")
        await visit.ended()
        await page.reload()
        await visit.ask("Again")
        await visit.ended()
        assert await page.evaluate("[sessionStorage['streamco-key'], localStorage.length, document.cookie]") == ["sk-proxy", 0, ""]
        assert "sk-proxy" not in await page.evaluate("sessionStorage['streamco-conversation']")
        assert not [url for url in visit.requests if "sk-proxy" in url]
        other = await page.context.new_page()
        await other.goto(address(proxy))
        await expect(other.locator("#access")).to_be_visible()


async def test_without_a_key_none_is_asked_for(visit: Visit) -> None:
    async with proxying(server=server(), page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await visit.ended()
        await expect(visit.page.locator("#access")).to_be_hidden()


async def test_an_answer_that_fails_says_why_and_the_chat_goes_on(browser: Browser) -> None:
    side = server([(0.0, EndpointConnectError("expected a connection, got it refused"))])
    async with visiting(browser) as visit, proxying(server=side, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await visit.ended("failed")
        assert await visit.texts(".failure") == ["server: expected a connection, got it refused"]
        side.script = [(0.0, "ok")]
        await visit.page.press("#prompt", "Enter")
        await visit.ended()
        assert told(side) == [{"role": "user", "content": "Hello"}]
        assert ["502" in complaint for complaint in visit.complaints] == [True]


async def test_it_fits_the_screen_and_its_text_can_be_read(visit: Visit) -> None:
    story = ["Supercalifragilisticexpialidocious" * 3 + " ", *(f"word{number} " for number in range(60))]
    async with proxying(*moving(story), policy="both", budget=1.0, pace=25, page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Tell me a story")
        await visit.ended()
        for width, scheme in LOOKS:
            await visit.page.set_viewport_size({"width": width, "height": 740})
            await visit.page.emulate_media(color_scheme=scheme)
            assert await visit.page.evaluate("document.documentElement.scrollWidth") <= width
            for selector in (".tint", ".live", ".race .words", ".handover", ".user .text", ".actions label", "#send"):
                for text, ground in await visit.page.locator(selector).evaluate_all(COLORS):
                    assert contrast(hexadecimal(text), hexadecimal(ground)) >= 4.5, (selector, width, scheme)


LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((360, "light"), (360, "dark"), (1280, "light"), (1280, "dark"))
COLORS = """elements => elements.map((element) => {
  let ground = element;
  while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
})"""


def hexadecimal(color: str) -> str:
    """``rgb(1, 2, 3)`` as ``#010203``."""
    return "#" + "".join(f"{int(part):02x}" for part in color.removeprefix("rgb(").removesuffix(")").split(","))
