"""The tables of docs/research/fidelity.md are what the kept runs say."""

from __future__ import annotations

from bench.page_tables import DOCS, render
from bench.report import Row
from bench.runs import Run
from bench.timed.fidelity_figures import FIGURES, Deviation
from bench.timed.fidelity_tables import lines_of


def row(case: str, contender: str, metric: str, value: float) -> tuple[tuple[str, str, str], Row]:
    found = Row("fidelity", case, contender, f"{metric}: off by", "share", value, value, value)
    return (case, f"{metric}: off by [share]", contender), found


def test_the_page_has_the_kept_runs() -> None:
    page = DOCS / "research" / "fidelity.md"
    assert page.read_text(encoding="utf-8") == render()[page], "python -m bench.page"


def test_a_figure_is_wrong_if_it_is_off_by_more_than_a_tenth_and_than_the_live_runs_differ() -> None:
    assert [str(Deviation(*each)) for each in ((0.104, 0.06), (-0.4, 1.57), (0.1, 0.0), (-0.004, 0.0))] == [
        "**+10 (6)**",
        "-40 (157)",
        "+10 (0)",
        "0 (0)",
    ]


def test_a_table_has_a_load_in_each_line_and_counts_what_is_right() -> None:
    drafting, alone = (f"2 devices, {how}, llama2-70b-a100x2, RTT 10 ms" for how in ("drafting", "the target alone"))
    errors = {(drafting, "TTFT"): (0.01, 0.0), (alone, "TTFT"): (-0.2, 0.1), (drafting, "acceptance"): (0.0, 0.0)}
    rows = dict(
        row(case, who, name, value)
        for (case, name), values in errors.items()
        for who, value in zip(("simulated", "live"), values, strict=True)
    )
    head, _, first, second, right = lines_of(Run({}, rows))
    assert head == f"| load | {' | '.join(FIGURES)} |"
    assert first == "| 2 devices, drafting, RTT 10 ms | +1 (0) |  |  |  | 0 (0) |  |  |  |"
    assert second == "| 2 devices, the target alone, RTT 10 ms | **-20 (10)** |  |  |  |  |  |  |  |"
    assert right == "| right | 1 of 2 | 0 of 0 | 0 of 0 | 0 of 0 | 1 of 1 | 0 of 0 | 0 of 0 | 0 of 0 |"
