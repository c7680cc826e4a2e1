"""Pictures: what is in them is read from the drawing, not from its dots."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'streamco[sim]'")


from matplotlib.figure import Figure

from streamco.errors import ConfigError
from streamco.sim.experiment.experiment import Experiment, read_experiment
from streamco.sim.experiment.plots import check_matplotlib, draw_plots
from streamco.sim.experiment.result_store import ResultStore
from streamco.sim.experiment.runner import run_sweep
from streamco.sim.experiment.scenario import KINDS
from streamco.sim.experiment.tables import Point, summarise
from tests.sim.toy_kind import LOCATION

TOY = """\
name: Does it pay when the server is far away?
about: Where the lines cross, it doesn't any more.
kind: toy
repeats: 2
world: {devices: 3}
sweep:
  world.link.rtt_ms: [10, 30, 60]
  who writes: {the server: {policy.window: 1}, both: {policy.window: 2}}
"""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every picture that is saved."""
    pictures: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: Any, **options: Any) -> None:
        pictures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return pictures


def finish(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[Experiment, list[Point]]:
    monkeypatch.setitem(KINDS, "toy", LOCATION)
    path = folder / "toy.yaml"
    path.write_text(text)
    experiment = read_experiment(path)
    store = ResultStore(folder / "done.jsonl", code="c")
    run_sweep(experiment.scenarios, store, jobs=1, progress=lambda _done, _total: None)
    return experiment, summarise(experiment, store)


def words(picture: Figure) -> str:
    """Every word outside of the panels, on one line."""
    legend = [text for each in picture.legends for text in (each.get_title(), *each.get_texts())]
    return " ".join(" ".join(text.get_text().split()) for text in [*picture.texts, *legend])


def test_a_picture_has_a_question_axes_with_units_a_legend_and_says_what_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]
) -> None:
    plot = "plot: {x: world.link.rtt_ms, y: seconds_mean, line: who writes}\n"
    experiment, points = finish(tmp_path, monkeypatch, TOY + plot)
    assert draw_plots(experiment, points, tmp_path) == [tmp_path / "plot.png"]
    (picture,) = drawn
    (ax,) = picture.axes
    assert ax.get_xlabel() == "round trip of the link (ms)"
    assert ax.get_ylabel() == "time to the whole answer, mean (ms)\nlower is better"
    text = words(picture)
    for part in (
        "Does it pay when the server is far away?",
        "Where the lines cross, it doesn't any more.",
        "Simulated: 3 devices, 4 requests.",
        "Dots are means of 2 repeats, whiskers the smallest and the largest of them.",
        "who writes the server both",
    ):
        assert part in text
    server, both = (container.lines[0] for container in ax.containers)  # type: ignore[attr-defined]
    assert list(server.get_xdata()) == [10, 30, 60]
    means = [point.metrics["seconds_mean"].mean * 1e3 for point in points]
    assert list(server.get_ydata()) == pytest.approx(means[::2])
    assert list(both.get_ydata()) == pytest.approx(means[1::2])
    assert (server.get_color(), server.get_marker()) != (both.get_color(), both.get_marker())
    assert ax.get_ylim()[0] == 0.0


def test_a_sweep_of_names_is_drawn_as_bars_and_panels_have_titles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]
) -> None:
    plot = "plot: {x: who writes, y: throughput, panels: world.link.rtt_ms, title: 'Who is faster?'}\n"
    experiment, points = finish(tmp_path, monkeypatch, TOY + plot)
    draw_plots(experiment, points, tmp_path)
    (picture,) = drawn
    assert [ax.get_title() for ax in picture.axes] == [f"round trip of the link (ms): {rtt}" for rtt in (10, 30, 60)]
    bars: list[Any] = list(picture.axes[0].patches)
    assert [bar.get_height() for bar in bars] == pytest.approx([p.metrics["throughput"].mean for p in points[:2]])
    assert [tick.get_text() for tick in picture.axes[0].get_xticklabels()] == ["the server", "both"]
    assert "Who is faster?" in words(picture)
    assert "Bars are means" in words(picture)


def test_a_legend_of_many_long_names_stands_beside_nothing_and_takes_no_room_from_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]
) -> None:
    names = "".join(f", drafts of {number} tokens each and drafting on meanwhile: {{policy.window: {number}}}" for number in range(3, 9))
    text = TOY.replace("both: {policy.window: 2}}", f"both: {{policy.window: 2}}{names}}}")
    plot = "plot: {x: world.link.rtt_ms, y: seconds_mean, line: who writes}\n"
    experiment, points = finish(tmp_path, monkeypatch, text + plot)
    draw_plots(experiment, points, tmp_path)
    (picture,) = drawn
    (ax,), (legend,) = picture.axes, picture.legends
    label, box = ax.yaxis.label.get_window_extent(), legend.get_window_extent()
    assert label.y1 <= box.y0
    assert box.x1 <= picture.bbox.x1
    assert ax.get_window_extent().height >= 3.0 * picture.dpi


def test_long_names_of_many_bars_do_not_cover_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]) -> None:
    values = ", ".join(f"gsm8k {number} drafters at 10 ms: {{world.devices: {number}}}" for number in range(2, 14))
    few = TOY.replace("world.link.rtt_ms: [10, 30, 60]", "case: {near: {world.link.rtt_ms: 10}, far: {world.link.rtt_ms: 60}}")
    many = TOY.replace("world.link.rtt_ms: [10, 30, 60]", f"case: {{{values}}}")
    for text in (few, many):
        draw_plots(*finish(tmp_path, monkeypatch, text), tmp_path)
        picture = drawn[-1]
        picture.canvas.draw()
        labels = [label for label in picture.axes[0].get_xticklabels() if label.get_text()]
        assert len(labels) == (2 if text is few else 12)
        assert all("\n" not in label.get_text() for label in labels)
        assert {label.get_rotation() for label in labels} == ({0.0} if text is few else {35.0})
        below = picture.bbox.y0
        assert all(label.get_window_extent().y0 > below for label in labels)
    spots = [label.get_window_extent() for label in labels]
    apart = [later.x1 - earlier.x1 for earlier, later in pairwise(spots)]
    assert min(apart) > 15.0, "each begins at its own bars"


def test_what_is_held_fast_is_said_and_other_values_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]
) -> None:
    held = "{x: world.link.rtt_ms, y: waiting, where: {who writes: both}}"
    plots = f"plot: [{held}, {{x: world.link.rtt_ms, y: throughput, line: who writes}}]\n"
    experiment, points = finish(tmp_path, monkeypatch, TOY + plots)
    assert [path.name for path in draw_plots(experiment, points, tmp_path)] == ["plot-1.png", "plot-2.png"]
    assert len(drawn[0].axes[0].containers) == 1
    assert "who writes: both." in words(drawn[0])


def test_an_axis_of_close_values_does_not_begin_at_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]) -> None:
    experiment, points = finish(tmp_path, monkeypatch, f"{TOY}plot: {{x: world.link.rtt_ms, y: completed, line: who writes}}\n")
    draw_plots(experiment, points, tmp_path)
    assert drawn[0].axes[0].get_ylim()[0] > 0.0


def test_the_same_points_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, points = finish(tmp_path, monkeypatch, TOY)
    (path,) = draw_plots(experiment, points, tmp_path)
    first = path.read_bytes()
    draw_plots(experiment, points, tmp_path)
    assert path.read_bytes() == first


def test_a_figure_that_nothing_was_measured_of_is_not_drawn_but_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, points = finish(tmp_path, monkeypatch, f"{TOY}plot: {{x: world.link.rtt_ms, y: acceptance, line: who writes}}\n")
    with pytest.raises(ConfigError, match="plot: expected a metric that was measured, got acceptance"):
        draw_plots(experiment, points, tmp_path)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_matplotlib()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"needs the package matplotlib: pip install 'streamco\[sim\]'"):
        check_matplotlib()
