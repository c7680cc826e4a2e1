"""What the bench tries unless it is asked for something else."""

from __future__ import annotations

import re
from pathlib import Path

from bench.counted.inversion import DEPTHS

WORDS = {"one": 1, "two": 2, "three": 3, "five": 5, "ten": 10}
DOCS = Path(__file__).parents[3] / "docs"


def test_every_depth_that_the_documentation_speaks_of_is_measured() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("split*.md"))
    rows = {int(depth) for depth in re.findall(r"^\| (\d+), (?:none|0\.\d) \|", pages, flags=re.MULTILINE)}
    words = {WORDS[word] for word in re.findall(rf"[Aa]fter ({'|'.join(WORDS)}) layers", pages)}
    assert rows >= {1, 2, 3, 5}
    assert rows | words <= set(DEPTHS)
