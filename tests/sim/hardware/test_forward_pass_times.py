"""Predicted forward passes: what arithmetic says of them, how they grow, and how far they are from measured ones."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from bench.counted.hardware import FITTED, SHORT, errors, kernels, measured, packaged
from streamco.errors import ConfigError
from streamco.sim.hardware.forward_pass_times import ForwardPassShape, Hardware, Op, describe, gpus, memory_tokens, predict, predictor
from streamco.sim.hardware.operators import MODELS, Gpu, all_reduce_seconds, forward_pass

SERVER = Hardware(model="llama2-70b", gpu="a100", tensor_parallel=4)
MACHINES = [
    SERVER,
    replace(SERVER, engine="graphs"),
    Hardware(model="qwen-72b", gpu="a6000", tensor_parallel=8),
    Hardware(model="llama3.1-8b", gpu="v100", tensor_parallel=2),
    Hardware(model="llama2-7b", gpu="a40"),
    Hardware(model="phi-2", gpu="h100"),
]


def bare(**fields: Any) -> Gpu:
    """A GPU that costs nothing but what is given; a layer's linear operators take a second for every 1000 tokens."""
    nothing: dict[str, Any] = {"name": "bare", "title": "", "source": "", "license": "", "note": "", "memory": 1e9, "layer_ms": {}}
    free = {"bandwidth": math.inf, "link": math.inf, "gap": 0.0, "host_decode": 0.0, "host_prefill": 0.0, "host_row": 0.0}
    return Gpu(**{**nothing, **free, "all_reduce": ((1e6, 1.0),), "tokens": (1, 1000), **fields})


def test_the_sizes_of_models_give_their_known_parameters_and_caches() -> None:
    billions = {name: round(model.weight_bytes / 2e9, 1) for name, model in MODELS.items()}
    assert billions["llama2-70b"] == 69.0
    assert billions["llama3-8b"] == 8.0
    assert billions["llama2-7b"] == 6.7
    assert 72 < billions["qwen-72b"] < 73
    assert 2.7 < billions["phi-2"] < 2.9
    assert MODELS["llama2-70b"].cache_bytes == 320 * 1024, "eight heads of keys and values"
    assert MODELS["llama2-7b"].cache_bytes == 512 * 1024, "a head of them for each"


def test_decoding_reads_the_cache_at_the_memorys_bandwidth() -> None:
    model = MODELS["llama2-70b"]
    seconds = forward_pass(bare(bandwidth=1e12), model, (1.0, 1000.0), 4)
    assert seconds(8, 0, 50_000) - seconds(8, 0, 0) == pytest.approx(50_000 * model.cache_bytes / 4 / 1e12)


def test_attention_of_a_prompt_is_four_l_squared_d_at_the_rate_of_the_linear_operators() -> None:
    model = MODELS["llama2-7b"]
    seconds = forward_pass(bare(), model, (1.0, 1000.0), 1)  # infinite bandwidth: nothing but arithmetic is left
    rate = 2.0 * model.layer_weights * 1000.0  # FLOP/s
    linear = 500 * model.layers / 1000.0
    assert seconds(0, 500, 0) - linear == pytest.approx(4 * 500**2 * model.width * model.layers / rate)
    assert seconds(0, 500, 0, 5) - linear == pytest.approx(4 * 100**2 * 5 * model.width * model.layers / rate), (
        "prompts don't see each other"
    )
    assert seconds(0, 500, 1500) - linear == pytest.approx(4 * 500 * 2000 * model.width * model.layers / rate), "behind a cache"


def test_a_draft_behind_a_long_cache_costs_the_reading_of_it() -> None:
    model = MODELS["llama2-70b"]
    seconds = forward_pass(bare(bandwidth=1e12), model, (1.0, 1.001), 4)
    read = 32 * 4000 * model.cache_bytes / 4 / 1e12
    assert seconds(0, 32 * 5, 32 * 4000, 32) - seconds(0, 32 * 5, 0, 32) == pytest.approx(read, rel=0.01)


def test_a_ring_moves_the_state_twice_but_for_a_part_and_slower_where_messages_are_large() -> None:
    gpu = bare(link=1e9, all_reduce=((1e6, 0.5), (2e6, 0.25)))
    assert all_reduce_seconds(gpu, 1e6, 1) == 0.0
    assert all_reduce_seconds(gpu, 5e5, 4) == pytest.approx(1.5 * 5e5 / 0.5e9)
    assert all_reduce_seconds(gpu, 2e6, 2) == pytest.approx(2e6 / 0.25e9)
    assert all_reduce_seconds(gpu, 1.5e6, 2) == pytest.approx((2e6 + 8e6) / 2 / 1e9), "in between, time is a line"


def test_a_pass_takes_as_long_as_the_slower_of_gpu_and_host() -> None:
    model = MODELS["llama2-7b"]
    gpu = bare(host_decode=0.1, host_prefill=0.2, host_row=0.01)
    eager, graphs = (forward_pass(gpu, model, (1.0, 1000.0), 1, engine) for engine in ("eager", "graphs"))
    assert eager(2, 0, 0) == pytest.approx(0.1 * model.layers + 2 * 0.01), "two tokens take the GPU 2 ms a layer"
    assert eager(2, 4, 0, 3) == pytest.approx(0.2 * model.layers + 5 * 0.01)
    assert eager(300, 0, 0) == pytest.approx(0.3 * model.layers + 300 * 0.01)
    assert graphs(2, 0, 0) == pytest.approx(0.002 * model.layers)
    assert eager(0, 0, 0) == graphs(0, 0, 100) == 0.0


@pytest.mark.parametrize("hardware", MACHINES, ids=str)
def test_more_of_anything_takes_longer(hardware: Hardware) -> None:
    seconds = predictor(hardware)
    counts = [1, 2, 5, 31, 32, 33, 64, 100, 128, 250, 256, 300, 512, 777, 1024, 2048, 2049, 3000, 4096, 5000, 9000, 40_000]
    for few, many in pairwise(counts):
        assert seconds(few, 0, 1000) <= seconds(many, 0, 1000)
        assert seconds(few, 0, few * 300) < seconds(many, 0, many * 300)
        assert seconds(8, few, 1000) <= seconds(8, many, 1000)
        assert seconds(0, few, 0) <= seconds(0, many, 0)
        for rows, tokens in ((4, 0), (0, 4), (4, 512)):
            assert seconds(rows, tokens, few) <= seconds(rows, tokens, many)
    assert seconds(0, 40_000, 0) > seconds(0, 9000, 0)
    assert seconds(4, 0, 1_000_000) > seconds(4, 0, 1)


@pytest.mark.parametrize("hardware", MACHINES, ids=str)
def test_the_fast_form_says_what_predict_says(hardware: Hardware) -> None:
    seconds = predictor(hardware)
    for tokens in (1, 7, 130, 2048, 6000):
        assert predict("decode", ForwardPassShape(tokens=tokens, sequences=tokens, context=900), hardware) == seconds(tokens, 0, 900)
        assert predict("prefill", ForwardPassShape(tokens=tokens, context=900), hardware) == seconds(0, tokens, 900)
        assert predict("prefill", ForwardPassShape(tokens=tokens, sequences=(tokens + 1) // 2, context=900), hardware) == seconds(
            0, tokens, 900, (tokens + 1) // 2
        )


@pytest.mark.parametrize("model", ["llama2-70b", "qwen-72b", "llama2-7b", "llama3-8b"])
@pytest.mark.parametrize("gpu", ["a100", "h100", "v100"])
def test_two_gpus_read_a_prompt_sooner_than_one_and_graphs_are_never_slower(model: str, gpu: str) -> None:
    one, prompt = Hardware(model=model, gpu=gpu), ForwardPassShape(tokens=1024)
    two = replace(one, tensor_parallel=2)
    assert predict("prefill", prompt, replace(two, engine="graphs")) <= predict("prefill", prompt, two) < predict("prefill", prompt, one)


def test_what_memory_holds_is_counted_beside_the_weights() -> None:
    model = MODELS["llama2-70b"]
    assert memory_tokens(SERVER, usable=1.0) == int((4 * 80e9 - model.weight_bytes) // model.cache_bytes)
    assert memory_tokens(SERVER) < memory_tokens(SERVER, usable=1.0) < memory_tokens(replace(SERVER, tensor_parallel=8))
    with pytest.raises(ConfigError, match=r"llama2-70b on 1 a100: expected memory for 138 GB of weights and a cache, got 72 GB"):
        memory_tokens(replace(SERVER, tensor_parallel=1))


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        (replace(SERVER, gpu="tpu"), r"expected a gpu of a100, a40, a6000, h100, v100, got 'tpu'"),
        (replace(SERVER, model="gpt-4"), r"expected a model of llama2-70b, llama3-70b, .* on a100, got 'gpt-4'"),
        (replace(SERVER, tensor_parallel=3), r"llama2-70b on a100: expected tensor_parallel of 1, 2, 4, 8, got 3"),
        (Hardware(model="phi-2", gpu="a40", tensor_parallel=2), r"phi-2 on a40: expected tensor_parallel of 1, got 2"),
    ],
)
def test_unknown_hardware_is_an_error_that_lists_what_there_is(hardware: Hardware, text: str) -> None:
    for function in (predictor, memory_tokens, describe):
        with pytest.raises(ConfigError, match=text):
            function(hardware)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("decode", ForwardPassShape(tokens=2)),
        ("decode", ForwardPassShape(tokens=0, sequences=0)),
        ("prefill", ForwardPassShape(tokens=2, sequences=3)),
        ("prefill", ForwardPassShape(tokens=2, context=-1)),
    ],
)
def test_an_impossible_shape_is_an_error(op: Op, shape: ForwardPassShape) -> None:
    with pytest.raises(ConfigError, match=f"{op}: expected"):
        predict(op, shape, SERVER)


def test_each_packaged_gpu_names_its_source_and_says_what_was_not_measured() -> None:
    assert sorted(gpus()) == ["a100", "a40", "a6000", "h100", "v100"]
    for name, gpu in gpus().items():
        assert gpu.license == "MIT"
        assert "microsoft/vidur" in gpu.source
        assert gpu.note
        assert set(gpu.layer_ms) == {"llama2-70b", "qwen-72b", "llama2-7b", "llama3-8b", "phi-2"}
        for tables in gpu.layer_ms.values():
            assert all(len(row) == len(gpu.tokens) and list(row) == sorted(row) for row in tables.values())
        assert ("nobody measured whole passes" in gpu.note) == (name not in {"a100", "h100"})
    text = describe(Hardware(model="llama3-70b", gpu="v100", tensor_parallel=8))
    assert "A40's by published bandwidth" in text
    assert "llama3-70b: the layers of llama2-70b" in text


def test_predictions_are_as_near_to_machines_that_were_held_out_as_the_docs_say() -> None:
    try:
        points = measured()
    except (SystemExit, FileNotFoundError) as missing:
        pytest.skip(f"no recorded data: {missing}")
    held_out = [point for point in points if (point.gpu, point.ways) not in FITTED]
    off: dict[Op, list[float]] = {op: errors([each for each in held_out if each.op == op], packaged) for op in ("prefill", "decode")}
    assert len(off["prefill"]) == len(off["decode"]) == 38
    assert fmean(map(abs, off["prefill"])) < 8.5
    assert fmean(map(abs, off["decode"])) < 3.6
    assert max(map(abs, off["decode"])) < 7.5
    short = errors([each for each in held_out if each.op == "prefill" and each.shape.tokens <= SHORT], packaged)
    assert fmean(map(abs, short)) < 7.2
    alone = errors(held_out, kernels)
    assert max(alone) < 0.0, "kernels alone are always too fast"
