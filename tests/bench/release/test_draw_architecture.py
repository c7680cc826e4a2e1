"""The picture of the architecture: it is that of today's imports, and arrows point down."""

from __future__ import annotations

from bench.release import draw_architecture as picture


def test_the_picture_is_up_to_date() -> None:
    assert picture.TARGET.read_text() == picture.draw(), "run `make picture`"


def test_a_chain_of_arrows_makes_a_direct_one_superfluous() -> None:
    edges = {("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 5, ("a", "d"): 1}
    assert set(picture.reduce_transitively(edges)) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_every_arrow_points_down() -> None:
    rows = picture.layers()
    placed = picture.place(rows)
    folders = frozenset(box for row in rows for box in row) - {picture.GROUND}
    edges = picture.arrows(folders)
    assert edges
    assert all(placed[source].y + placed[source].height < placed[target].y for source, target in edges)


def test_the_arrows_of_a_box_leave_it_at_different_positions() -> None:
    placed = picture.place([["top"], ["left", "right"]])
    ends = picture.ports([("top", "left"), ("top", "right")], placed)
    assert ends["top", "left"][0] < ends["top", "right"][0]
