from __future__ import annotations

from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment.plot_options import PlotOptions, read_plots
from streamco.sim.experiment.sweep_axes import read_axes
from streamco.sim.experiment.yaml_document import read_document
from tests.sim.toy_kind import KIND

SWEEP = """\
sweep:
  policy.window: [4, dynamic]
  world.link.rtt_ms: [10, 30, 60, 90, 120]
  who: {one: {}, both: {}}
"""


def plots(folder: Path, told: PlotOptions | tuple[PlotOptions, ...] | None, sweep: str = SWEEP) -> tuple[PlotOptions, ...]:
    path = folder / "toy.yaml"
    path.write_text(f"{sweep}plot: {{x: a}}\n")
    document = read_document(path)
    return read_plots(document, told, read_axes(document, document.data["sweep"]), KIND)


def test_a_picture_that_was_not_told_has_the_numbers_along_its_axis(tmp_path: Path) -> None:
    assert plots(tmp_path, None) == (PlotOptions(x="world.link.rtt_ms", y="throughput", line="policy.window", panels=("who",)),)
    assert plots(tmp_path, None, "sweep: {policy.window: [4, 5]}\n") == (PlotOptions(x="policy.window", y="throughput"),)
    assert plots(tmp_path, None, "sweep: {}\n") == ()


def test_a_sweep_that_is_nothing_else_has_panels(tmp_path: Path) -> None:
    (plot,) = plots(tmp_path, PlotOptions(x="world.link.rtt_ms", y="waiting"))
    assert plot.panels == ("policy.window", "who")
    first, second = plots(
        tmp_path,
        (
            PlotOptions(x="who", y="waiting", panels="policy.window", where={"world.link.rtt_ms": 30}),
            PlotOptions(x="who", y="waiting", where={"world.link.rtt_ms": 30, "policy.window": "dynamic"}),
        ),
    )
    assert (first.panels, second.panels) == (("policy.window",), ())


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (PlotOptions(x="world.link.rtt", y="waiting"), r"x: expected one of policy.window, .* did you mean world.link.rtt_ms\?; what is"),
        (PlotOptions(x="who", y="wating"), r"y: .* did you mean waiting\?"),
        (PlotOptions(x="who", y="waiting", line="whom"), r"line: .* did you mean who\?"),
        (PlotOptions(x="who", y="waiting", where={"world.link.rtt_ms": 31}), "where.world.link.rtt_ms: expected one of 10, 30, .*, got 31"),
    ],
)
def test_what_there_is_not_is_told(tmp_path: Path, plot: PlotOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"line 5: plot\.{message}"):
        plots(tmp_path, plot)


def test_too_many_panels_are_refused(tmp_path: Path) -> None:
    sweep = SWEEP.replace("[4, dynamic]", "[1, 2, 3, 4]")
    with pytest.raises(ConfigError, match=r"expected 16 panels at most, got 20: say in where which policy\.window, world\.link\.rtt_ms is"):
        plots(tmp_path, PlotOptions(x="who", y="waiting"), sweep)
