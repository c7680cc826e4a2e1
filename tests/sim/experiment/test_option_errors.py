from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.option_errors import convert_options, pick
from streamco.sim.experiment.yaml_document import Location


class Pool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0)]
    model: str = "m"

    def __post_init__(self) -> None:
        if self.model == "bad":
            raise ConfigError("pools: expected a good model, got a bad one")


class Arrivals(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    poisson_per_s: float


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    devices: int
    pools: tuple[Pool, ...] = ()
    window: Annotated[int, Meta(ge=1)] | Literal["dynamic", "adaptive"] = 4
    arrivals: Literal["trace"] | Arrivals = "trace"
    rate: float | None = None
    more: dict[str, int] = {}


def where(location: Location) -> str:
    return "/".join(map(str, location))


def test_data_that_fits_becomes_options() -> None:
    data = {"devices": 3, "pools": [{"share": 1}], "window": "dynamic", "arrivals": {"poisson_per_s": 2}, "rate": 3}
    options = convert_options(data, Options, where)
    assert options == Options(devices=3, pools=(Pool(share=1.0),), window="dynamic", arrivals=Arrivals(poisson_per_s=2.0), rate=3.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "devices: expected a whole number, got nothing"),
        (
            {"device": 3},
            "device: expected one of devices, pools, window, arrivals, rate, more, got a key that is unknown; did you mean devices?",
        ),
        ({"devices": "three"}, "devices: expected a whole number, got 'three'"),
        ({"devices": None}, "devices: expected a whole number, got nothing"),
        ({"devices": 1, "pools": {"share": 1}}, "pools: expected a list of settings (share, model) each, got {'share': 1}"),
        ({"devices": 1, "pools": [{"share": 1}, {"shore": 1}]}, "pools/1/shore: expected one of share, model, got a key that is unknown"),
        ({"devices": 1, "pools": [{"model": "m"}]}, "pools/0/share: expected a number above 0, got nothing"),
        ({"devices": 1, "pools": [{"share": -1}]}, "pools/0/share: expected a number above 0, got -1"),
        ({"devices": 1, "pools": [{"share": 1, "model": "bad"}]}, "pools/0: pools: expected a good model, got a bad one"),
        ({"devices": 1, "window": "dynamc"}, "got 'dynamc'; did you mean dynamic?"),
        ({"devices": 1, "window": 2.5}, "window: expected a whole number of 1 or more, dynamic or adaptive, got 2.5"),
        ({"devices": 1, "window": 0}, "window: expected a whole number of 1 or more, dynamic or adaptive, got 0"),
        ({"devices": 1, "arrivals": "never"}, "arrivals: expected trace or settings (poisson_per_s), got 'never'"),
        ({"devices": 1, "arrivals": {"poison_per_s": 1}}, "arrivals/poison_per_s: expected poisson_per_s, got a key that is unknown"),
        ({"devices": 1, "rate": "1e3"}, "rate: expected a number, got '1e3'; YAML takes it for a string"),
        ({"devices": 1, "more": {"a": "x"}}, "more"),
        ({"devices": 1, "rate": "x" * 200}, f"got '{'x' * 59}..."),
    ],
)
def test_what_does_not_fit_is_told_with_its_place_what_was_expected_and_what_was_got(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_options(data, Options, where)
    assert message in str(caught.value)
    assert "`" not in str(caught.value)


def test_a_choice_is_told_with_what_was_probably_meant() -> None:
    assert pick("throughputs", ("throughput", "ttft")) == "expected one of throughput, ttft, got 'throughputs'; did you mean throughput?"
    assert pick("zzz", {"one": 1}) == "expected one, got 'zzz'"
    assert pick("zzz", ()) == "expected nothing, got 'zzz'"
