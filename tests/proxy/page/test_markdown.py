"""Markdown to a tree, by the page's own script in a real browser; the page itself has no part in it."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the package playwright")

from tests.proxy.page.browser import CHROMIUM, Visit

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium"),
    pytest.mark.asyncio(loop_scope="module"),
]

PARSE = "async ([source, isOpen]) => (await import('/markdown.js')).parse(source, { isOpen })"
MEGABYTE = 1_000_000
SLOW = 10_000  # milliseconds; what isn't linear takes minutes


def outline(node: Any) -> str:
    """A tree as one line, to be compared."""
    if isinstance(node, list):
        return "".join(map(outline, node))
    if "nodes" in node:
        href = f" {node['href']}" if node["kind"] == "link" else ""
        return f"<{'a' if href else node['kind']}{href}>{outline(node['nodes'])}</{'a' if href else node['kind']}>"
    return block_outline(node)


def block_outline(node: Any) -> str:
    """A block, or a node without others inside."""
    match node:
        case {"kind": "text", "text": text}:
            return str(text)
        case {"kind": "code", "leaves": leaves}:
            tag, language = ("pre", f" {node['language']}") if "language" in node else ("code", "")
            return f"<{tag}{language}>{''.join(leaf['text'] for leaf in leaves)}</{tag}>"
        case {"kind": "image", "alt": alt, "address": place, "href": href}:
            return f"<image {alt}|{place}|{href}>"
        case {"kind": "heading", "level": level, "inline": inline}:
            return f"<h{level}>{outline(inline)}</h{level}>"
        case {"kind": "paragraph", "inline": inline}:
            return f"<p>{outline(inline)}</p>"
        case {"kind": "list", "start": start, "items": items}:
            return f"<{'ul' if start is None else f'ol {start}'}>{''.join(f'<li>{outline(item)}</li>' for item in items)}</list>"
        case {"kind": "quote", "blocks": blocks}:
            return f"<quote>{outline(blocks)}</quote>"
        case {"kind": "table", "head": head, "rows": rows}:
            return "<table>" + "/".join("|".join(map(outline, row)) for row in [head, *rows]) + "</table>"
    return f"<{node['kind']}>"


async def parsed(tab: Visit, source: str, *, is_open: bool = False) -> Any:
    return await tab.page.evaluate(PARSE, [source, is_open])


CASES = {
    "# One #\n### Three\n#no heading\n####### nor this": "<h1>One</h1><h3>Three</h3><p>#no heading<break>####### nor this</p>",
    "one\ntwo\n\nthree": "<p>one<break>two</p><p>three</p>",
    "**b** *i* _i_ __b__ ~~s~~ ***both***": "<p><strong>b</strong> <emphasis>i</emphasis> <emphasis>i</emphasis> <strong>b</strong> "
    "<strike>s</strike> <emphasis><strong>both</strong></emphasis></p>",
    "**a *b* c** and *a **b** c*": "<p><strong>a <emphasis>b</emphasis> c</strong> and <emphasis>a <strong>b</strong> c</emphasis></p>",
    "snake_case_name, 2 * 3 * 4, **open, a_": "<p>snake_case_name, 2 * 3 * 4, **open, a_</p>",
    "`a` ``b ` c`` `**d**` `open": "<p><code>a</code> <code>b ` c</code> <code>**d**</code> `open</p>",
    r"\*a\* &lt;b&gt; &#65; &copy; &none; \q": r"<p>*a* <b> A © &none; \q</p>",
    "```py title\na\n\n  *b*\n```\nc": "<pre py>a\n\n  *b*</pre><p>c</p>",
    "~~~\n```\n~~~": "<pre >```</pre>",
    "````md\n```\nx\n```\n````": "<pre md>```\nx\n```</pre>",
    "```\nnever closed": "<pre >never closed</pre>",
    "- a\n  b\n- c\n\n  d\n  - e\n    - f\n- g": "<ul><li><p>a<break>b</p></li><li><p>c</p><p>d</p>"
    "<ul><li><p>e</p><ul><li><p>f</p></li></list></li></list></li><li><p>g</p></li></list>",
    "3. a\n4. b\n- c": "<ol 3><li><p>a</p></li><li><p>b</p></li></list><ul><li><p>c</p></li></list>",
    "1. a\n  - two spaces\n10. b": "<ol 1><li><p>a</p><ul><li><p>two spaces</p></li></list></li><li><p>b</p></li></list>",
    "1. a\n   ```sh\n   ls\n     -l\n   ```\n   b": "<ol 1><li><p>a</p><pre sh>ls\n  -l</pre><p>b</p></li></list>",
    "in\n1999. no list": "<p>in<break>1999. no list</p>",
    "> a\nlazy\n> > b\n> - c\n\nd": "<quote><p>a<break>lazy</p><quote><p>b</p></quote><ul><li><p>c</p></li></list></quote><p>d</p>",
    "Here:\n| a | b |\n|:--|--:|\n| `x` | **y** | more |\n| z\nout": "<p>Here:</p>"
    "<table>a|b/<code>x</code>|<strong>y</strong>/z</table><p>out</p>",
    "a | b\n--- | ---\n1 | 2 \\| 3": "<table>a|b/1|2 | 3</table>",
    "a | b\n---": "<p>a | b</p><rule>",
    "---\n* * *\n___": "<rule><rule><rule>",
    "[a](http://x.y/z_(1) 'title') <https://q.r/> https://w.x/a_b.": "<p><a http://x.y/z_(1)>a</a> "
    "<a https://q.r/>https://q.r/</a> <a https://w.x/a_b>https://w.x/a_b</a>.</p>",
    "(see https://w.x/a)": "<p>(see <a https://w.x/a>https://w.x/a</a>)</p>",
    "[**b** [in](http://i.j/) out](http://o.p/)": "<p>[<strong>b</strong> <a http://i.j/>in</a> out](<a http://o.p/>http://o.p/</a>)</p>",
    "![alt *x*](http://x.y/p.png) [![b](q.svg)](http://l.m/)": "<p><image alt *x*|http://x.y/p.png|http://x.y/p.png> "
    "<a http://l.m/><image b|q.svg|None></a></p>",
    "<b onclick=x>text</b>\n<script>\nalert(1)\n</script>": "<p><b onclick=x>text</b><break><script><break>alert(1)<break></script></p>",
    "a\r\nb\r\n": "<p>a<break>b</p>",
    "": "",
}


@pytest.mark.parametrize("source", CASES)
async def test_a_text_becomes_its_tree(tab: Visit, source: str) -> None:
    assert outline(await parsed(tab, source)) == CASES[source]


OPEN = {
    "a **bo": "<p>a <strong>bo</strong></p>",
    "a **bold*": "<p>a <strong>bold</strong></p>",
    "a **": "<p>a </p>",
    "2*3 is": "<p>2*3 is</p>",
    "x `co": "<p>x <code>co</code></p>",
    "see [tex": "<p>see tex</p>",
    "see [text](http://a": "<p>see text</p>",
    "list[0": "<p>list[0</p>",
    "- a\n-": "<ul><li><p>a</p></li></list>",
    "a\n##": "<p>a</p>",
    "``": "",
    "```py\nfoo\n``": "<pre py>foo</pre>",
    "```py\nfoo\n- ": "<pre py>foo\n- </pre>",
    "| a | b": "<table>a|b</table>",
    "x\n| a | b |\n|-": "<p>x</p><table>a|b</table>",
    "| a |\n|---|\n| **c": "<table>a/<strong>c</strong></table>",
    "**a**\n\n*b": "<p><strong>a</strong></p><p><emphasis>b</emphasis></p>",
    "**a\n\nb": "<p>**a</p><p>b</p>",
}


@pytest.mark.parametrize("source", OPEN)
async def test_what_is_open_at_the_cut_is_shown_as_if_it_ended_well(tab: Visit, source: str) -> None:
    assert outline(await parsed(tab, source, is_open=True)) == OPEN[source]


BAD_ADDRESSES = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "java&#10;script:alert(1)",
    "&#106;avascript:alert(1)",
    "&#x6A;avascript&#x3a;alert(1)",
    "javascript&colon;alert(1)",
    "\x01javascript:alert(1)",
    "\u00a0javascript:alert(1)",
    "http\n://a.b",
    "data:text/html,<script>alert(1)</script>",
    "data:text/html;base64,PHNjcmlwdD4=",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:http://127.0.0.1/x",
    "ftp://a.b",
    "//a.b/c",
    "/v1/models",
    "page.js",
    "#top",
    "",
    "http:",
    "http://",
    "http://a b",
    "http://[",
    "https:a.b",
    "http://a.b/\x7f",
    "http://" + "a" * 5000,
)


@pytest.mark.parametrize("bad", BAD_ADDRESSES)
async def test_an_address_that_is_not_one_of_the_web_makes_no_link(tab: Visit, bad: str) -> None:
    for source in (f"[click]({bad})", f"[click](<{bad}>)", f"[click]({bad} 'title')", f"<{bad}>", f"[![click](x)]({bad})"):
        links = re.findall(r"<a (\S*?)>(.*?)</a>", outline(await parsed(tab, source)))
        assert all(href.startswith(("http://", "https://")) and words.startswith("http") for href, words in links), "what stands there bare"
    assert await tab.page.evaluate("async (text) => (await import('/markdown_inline.js')).safeAddress(text)", bad) is None


async def test_each_leaf_knows_where_it_stands_in_the_source(tab: Visit) -> None:
    source = "# A **b**\n\n> - c `d`\n>   e\n\n| f | g |\n|---|---|\n| h | *i* |\n\n1. x\n   ```\n   k\n     l\n   ```\n"
    leaves: list[tuple[str, int]] = []

    def collect(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                collect(each)
        elif isinstance(node, dict):
            if "text" in node:
                leaves.append((node["text"], node["at"]))
            else:
                collect([each for each in node.values() if isinstance(each, list | dict)])

    collect(await parsed(tab, source))
    assert "".join(text for text, _ in leaves).replace("\n", "") == "A bc defghixk  l"
    for text, at in leaves:
        assert source[at:].startswith(text) or text[0] in "\n ", (text, at)


NESTED = "".join(f"{' ' * (2 * depth)}- a\n" for depth in range(1000))
HUGE = {
    "a megabyte of nested lists": NESTED,
    "a megabyte of nested lists in one line": "- " * (MEGABYTE // 2),
    "list items": "- a\n" * (MEGABYTE // 4),
    "deep quotes": ">" * MEGABYTE,
    "deeper and deeper quotes": "".join(">" * depth + "a\n" for depth in range(1400)),
    "backticks": "`" * MEGABYTE,
    "runs of backticks": "".join("`" * length + " " for length in range(1400)),
    "single backticks": "a`" * (MEGABYTE // 2),
    "brackets": "[" * MEGABYTE,
    "nested brackets": "[" * (MEGABYTE // 2) + "]" * (MEGABYTE // 2),
    "nested links": "[" * 90_000 + "](http://a)" * 90_000,
    "nested images": "![" * 150_000 + "](x)" * 150_000,
    "links without an end": "[a](" * (MEGABYTE // 4),
    "titles without an end": '[](a "' * (MEGABYTE // 6),
    "spaces in a link": "[a](" + " " * MEGABYTE + "x",
    "nested emphasis": "*" * (MEGABYTE // 2) + "a" + "*" * (MEGABYTE // 2),
    "emphasis that stays open": "*a " * (MEGABYTE // 3),
    "marks of several kinds": "_a*b~~c " * (MEGABYTE // 8),
    "table columns": "|" * 500_000 + "\n" + "|-" * 250_000,
    "table rows": "|a|\n|-|\n" + "|b|\n" * (MEGABYTE // 4),
    "half of a table": "a|b\n" * (MEGABYTE // 4),
    "spaces before a dash": "|a|\n|" + " " * MEGABYTE + "-",
    "addresses in one": "https://" * (MEGABYTE // 8),
    "addresses": "http://a.b) " * (MEGABYTE // 12),
    "fences": "```\n" * (MEGABYTE // 4),
    "entities": "&#" * (MEGABYTE // 2),
    "backslashes": "\\" * MEGABYTE,
    "spaces": " " * MEGABYTE + "x",
    "newlines": "\n" * MEGABYTE,
    "rules that are none": "- " * (MEGABYTE // 2) + "x",
}


@pytest.mark.parametrize("name", HUGE)
async def test_a_megabyte_of_anything_takes_linear_time_and_bounded_depth(tab: Visit, name: str) -> None:
    measure = """async ([source, isOpen]) => {
      const { parse } = await import("/markdown.js");
      const began = performance.now();
      const blocks = parse(source, { isOpen });
      const took = performance.now() - began;
      let deepest = 0;
      for (const pending = [[blocks, 0]]; pending.length > 0; ) {
        const [node, depth] = pending.pop();
        deepest = Math.max(deepest, depth);
        for (const each of Object.values(node)) if (typeof each === "object" && each !== null) pending.push([each, depth + 1]);
      }
      return [took, deepest];
    }"""
    for is_open in (False, True):
        took, deepest = await tab.page.evaluate(measure, [HUGE[name], is_open])
        assert took < SLOW
        assert deepest < 100
