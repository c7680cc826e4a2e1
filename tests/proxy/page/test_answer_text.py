"""An answer's text as elements, in a real browser: what is drawn, who wrote it, what stays as it is, and what text can't do."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright", reason="needs the package playwright")

from playwright.async_api import expect

from streamco.proxy.page.routes import PAGE_PATHS
from tests.client.helpers import server
from tests.proxy.page.browser import CHROMIUM, Visit, address
from tests.proxy.page.test_markdown import BAD_ADDRESSES, MEGABYTE, NESTED
from tests.proxy.support import proxying

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

DRAW = """async (pieces) => {
  const { AnswerText } = await import("/answer_text.js");
  const root = document.createElement("div");
  const answer = new AnswerText(root);
  for (const [text, origin] of pieces) {
    answer.add(text, origin, origin);
    answer.draw(true);
  }
  answer.end();
  return root.innerHTML;
}"""
RUNS = """async (pieces) => {
  const { AnswerText } = await import("/answer_text.js");
  const root = document.createElement("div");
  const answer = new AnswerText(root);
  pieces.forEach(([text, origin], place) => {
    if (place > 0) answer.mark(`${pieces[place - 1][1]} → ${origin}`);
    answer.add(text, origin, "");
  });
  answer.end();
  return [...root.children].map((block) => [
    block.firstChild.tagName,
    block.style.getPropertyValue("--side"),
    [...block.querySelectorAll("span[class]:not(.label span)")].map((piece) => [piece.className, piece.textContent]),
  ]);
}"""
ALPHABET = (
    *("- ", "1. ", "> ", "#", "**", "*", "_", "`", "```", "\n", "\n\n", "  ", "|", "|--|"),
    *("[a](http://b.c)", "![", "](", "a", "word ", "~~", "\\", "&lt;"),
)


async def test_an_answer_looks_the_same_however_it_was_cut_into_pieces(tab: Visit) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        source = "".join(rng.choices(ALPHABET, k=60))
        half = len(source) // 2
        whole = await tab.page.evaluate(DRAW, [[source[:half], "server"], [source[half:], "device"]])
        single = [[char, "server" if place < half else "device"] for place, char in enumerate(source)]
        assert await tab.page.evaluate(DRAW, single) == whole, f"seed {seed}: {source!r}"


async def test_pieces_of_both_sides_are_told_apart_inside_every_kind_of_block(tab: Visit) -> None:
    both = "linear-gradient(var(--server-line) 0.0% 50.0%, var(--device-line) 50.0% 100.0%)"
    mark = ["handover", "server → device"]
    cases: dict[tuple[str, str], tuple[str, list[list[str]]]] = {
        ("one", " two"): ("P", [["tint server", "one"], mark, ["tint device", " two"]]),
        ("**bo", "ld**"): ("P", [["tint server", "bo"], mark, ["tint device", "ld"]]),
        ("`co", "de`"): ("P", [["tint server", "co"], mark, ["tint device", "de"]]),
        ("[te", "xt](http://a.b)"): ("P", [["tint server", "te"], mark, ["tint device", "xt"]]),
        ("```\na\nb", "c\nd\n```"): ("DIV", [["tint server", "a"], ["tint server", "b"], mark, ["tint device", "c"], ["tint device", "d"]]),
        ("|a|\n|--", "|\n|b|"): ("DIV", [["tint server", "a"], mark, ["tint device", "b"]]),
        ("- a\n", "- b"): ("UL", [["tint server", "a"], mark, ["tint device", "b"]]),
        ("# a", "b"): ("H3", [["tint server", "a"], mark, ["tint device", "b"]]),
        ("> a\n> ", "b"): ("BLOCKQUOTE", [["tint server", "a"], mark, ["tint device", "b"]]),
    }
    for (first, second), (tag, runs) in cases.items():
        ((got_tag, side, got),) = await tab.page.evaluate(RUNS, [[first, "server"], [second, "device"]])
        assert (got_tag, got) == (tag, runs), first
        if len(runs) == 3 and len(runs[0][1]) == len(runs[2][1]):
            assert side == both
    ((_, side, _),) = await tab.page.evaluate(RUNS, [["# a", "server"], ["b", "device"]])
    assert side == both


async def test_only_the_last_block_is_touched_when_text_comes_and_what_is_in_it_stays(tab: Visit) -> None:
    watch = """async () => {
      const { AnswerText } = await import("/answer_text.js");
      const root = document.createElement("div");
      root.className = "text";
      document.body.append(root);
      const answer = new AnswerText(root);
      answer.add("# Title\\n\\nA **paragraph**.\\n\\n```js\\nlet long = '" + "x".repeat(500) + "';\\n", "device", "");
      answer.draw(true);
      const [, , code] = root.children;
      const pre = code.querySelector("pre");
      const line = pre.querySelector(".tint");
      pre.scrollLeft = 100;
      getSelection().selectAllChildren(line);
      const touched = new Set();
      const placeOf = (target) => [...root.children].findIndex((block) => block.contains(target));
      const observer = new MutationObserver((records) => records.forEach(({ target }) => touched.add(placeOf(target))));
      observer.observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
      for (let i = 0; i < 50; i++) {
        answer.add(`more(${i});\\n`, i % 2 ? "device" : "server", "");
        answer.draw(true);
      }
      await new Promise((resolve) => setTimeout(resolve));
      const selected = getSelection().toString().length;
      const isSame = pre === root.querySelector("pre");
      const result = [[...touched], code.isConnected, pre.scrollLeft, selected, isSame, root.children.length];
      root.remove();
      return result;
    }"""
    assert await tab.page.evaluate(watch) == [[2], True, 100, 514, True, 3]


async def test_the_work_for_each_piece_does_not_grow_with_the_answer(tab: Visit) -> None:
    measure = """async () => {
      const { AnswerText } = await import("/answer_text.js");
      const answer = new AnswerText(document.createElement("div"));
      const lengths = [];
      for (let i = 0; i < 2000; i++) {
        answer.add(`Paragraph ${i} has **some** text.\\n\\n`, "device", "");
        answer.draw(true);
        lengths.push(answer.source.length - answer.closed.at);
      }
      return Math.max(...lengths);
    }"""
    assert await tab.page.evaluate(measure) < 200, "characters that are read again"


RIGHT_TO_LEFT = """async () => {
  const { AnswerText } = await import("/answer_text.js");
  const root = document.createElement("div");
  document.body.append(root);
  const answer = new AnswerText(root);
  answer.add("\\u0645\\u0631\\u062d\\u0628\\u0627\\n\\n- `code` \\u0639\\u0646\\u0635\\u0631\\n- an item\\n\\n> ", "server", "");
  answer.mark("server \\u2192 device");
  answer.add("\\u0627\\u0642\\u062a\\u0628\\u0627\\u0633\\n\\n| ![a](b) \\u0627\\u0633\\u0645 |\\n|---|\\n| b |\\n\\n", "device", "");
  answer.add("```\\n\\u0645\\n```\\n\\nlast", "device", "");
  answer.end();
  const directions = [...root.children].map((block) => getComputedStyle(block.firstChild).direction);
  const [, second] = root.querySelectorAll("li");
  const align = getComputedStyle(second).textAlign;
  root.remove();
  return [directions, align];
}"""


async def test_right_to_left_blocks_begin_at_the_right_whatever_marks_and_code_they_begin_with(tab: Visit) -> None:
    directions, align = await tab.page.evaluate(RIGHT_TO_LEFT)
    assert directions == ["rtl", "rtl", "rtl", "rtl", "ltr", "ltr"]
    assert align == "right", "the items of a list stand below each other"


TAGS = {"div", "p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "pre", "hr", "br"}
TAGS |= {"span", "code", "em", "strong", "s", "a", "button"}
ATTRIBUTES = {"class", "style", "dir", "title", "href", "target", "rel", "tabindex", "type", "start"}
LOOK = """() => [...document.querySelectorAll(".answer .text *")].map((element) => [
  element.tagName.toLowerCase(), Object.fromEntries([...element.attributes].map(({ name, value }) => [name, value])),
])"""
HIT = "window.hit=1"
ATTACKS = (
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg/onload={HIT}><math><mtext></table><img src onerror={HIT}>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    "<style>@import 'http://127.0.0.1:9/x';</style><link rel=stylesheet href=http://127.0.0.1:9/y><base href=http://127.0.0.1:9/>",
    f"<a href='javascript:{HIT}'>x</a>",
    f"```html\n<script>{HIT}</script>\n```",
    f'```"><img src=x onerror={HIT}>\ncode\n```',
    f"`<img src=x onerror={HIT}>`",
    f"| <img src=x onerror={HIT}> |\n|---|\n| <script>{HIT}</script> |",
    "![x](http://127.0.0.1:9/pixel.png) ![](http://127.0.0.1:9/none.png)",
    "[![x](http://127.0.0.1:9/pixel.png)](http://127.0.0.1:9/page)",
    f'![x" onerror="{HIT}](x" onerror="{HIT})',
    f'[x](http://a.b/"onmouseover="{HIT}) [y](http://a.b/ "title\\" onmouseover={HIT}")',
    f"[[[[x](javascript:{HIT})](javascript:{HIT})](javascript:{HIT})](javascript:{HIT})",
    f"<javascript:{HIT}> <data:text/html,<script>{HIT}</script>>",
    f"1. <b>\n   > - [x](javascript:{HIT})\n   >   <img src=x onerror={HIT}>",
    "http://127.0.0.1:9/bare and <http://127.0.0.1:9/angled>",
    "\x00<scr\x00ipt>\u202e\u2066[x](javascript\u200b:x)",
    *(f"[x]({bad}) ![y]({bad})" for bad in BAD_ADDRESSES if len(bad) < 100),
)


@pytest.mark.parametrize("cut", [0, 3])
async def test_no_text_becomes_markup_code_or_a_request(visit: Visit, cut: int) -> None:
    source = "\n\n".join(ATTACKS)
    pieces = [source[at : at + cut] for at in range(0, len(source), cut)] if cut else [source]
    async with proxying(server=server([(0.0, piece) for piece in pieces]), page=True) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        await visit.ended()
        elements = await visit.page.evaluate(LOOK)
        links = [attributes for tag, attributes in elements if tag == "a"]
        await visit.page.reload()
        await expect(visit.page.locator(".answer .live")).to_contain_text("done")
        assert await visit.page.evaluate(LOOK) == elements, "a kept conversation is drawn in the same way"
        assert await visit.page.evaluate("window.hit ?? null") is None
        assert {urlsplit(url).path for url in visit.requests} <= PAGE_PATHS | {"/v1/models", "/v1/chat/completions"}
    assert {tag for tag, _ in elements} <= TAGS
    assert {name for _, attributes in elements for name in attributes} <= ATTRIBUTES
    assert links
    for attributes in links:
        assert attributes["href"].startswith(("http://", "https://"))
        assert (attributes["rel"], attributes["target"]) == ("noopener noreferrer", "_blank")
    assert {attributes["style"].split(":")[0] for _, attributes in elements if "style" in attributes} == {"--side"}


LARGE: dict[str, str] = {
    "a megabyte of nested lists": NESTED,
    "list items": "- a\n" * (MEGABYTE // 4),
    "100,000 backticks": "`" * 100_000,
    "emphasis": "*a* " * (MEGABYTE // 4),
    "pieces of code": "`a` " * (MEGABYTE // 4),
    "links": "[a](http://b.c) " * (MEGABYTE // 16),
    "deep quotes": ">" * MEGABYTE,
    "one block of code": "```\n" + "code();\n" * (MEGABYTE // 8),
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("name", LARGE)
async def test_a_megabyte_that_streams_does_not_hang_the_page(visit: Visit, name: str) -> None:
    source = LARGE[name]
    pieces = [source[at : at + 5000] for at in range(0, len(source), 5000)]
    async with proxying(server=server([(0.005 * place, piece) for place, piece in enumerate(pieces)]), page=True, pace=None) as proxy:
        await visit.open(address(proxy))
        await visit.ask("Hello")
        for _ in range(3):
            assert await visit.page.evaluate("1 + 1") == 2, "it answers while the text comes"
        await expect(visit.page.locator(".answer .live")).to_contain_text("done ·", timeout=60_000)
        depth: Any = await visit.page.evaluate(
            """() => {
              let deepest = 0;
              for (const pending = [[document.querySelector(".answer .text"), 0]]; pending.length > 0; ) {
                const [element, depth] = pending.pop();
                deepest = Math.max(deepest, depth);
                for (const child of element.children) pending.push([child, depth + 1]);
              }
              return deepest;
            }"""
        )
        assert depth < 60
