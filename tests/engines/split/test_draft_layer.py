"""The draft layer in llama.cpp beside the same arithmetic in numpy, on the packaged model's parts with weights drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.draft_model import MATRICES, VECTORS, DraftMeta, pack_matrix, read_draft_weights
from streamco.engines.llamacpp.model_parts import EmbeddingTable, PartFiles, split_model
from streamco.engines.split import draft_layer
from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.layers import HeadPart
from streamco.errors import ConfigError, EngineError
from tests.engines.llamacpp.test_model_parts import write_model

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.long, pytest.mark.model]

WIDTH, INNER, HEADS, KV_HEADS, HEAD_WIDTH = 576, 1536, 9, 3, 64
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_v": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
    "fuse": (WIDTH, 2 * WIDTH),
}
CLOSE = 0.02  # relative: llama.cpp quantises the inputs of its products to 8 bits
ROWS = np.arange(5, 20_000, 7, dtype=np.uint32)
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    try:
        return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))
    except EngineError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def vocabulary(files: PartFiles) -> str:
    with HeadPart(files.head) as head:
        return head.model.info.vocabulary


def random_arrays(
    vocabulary: str, shapes: Mapping[str, tuple[int, int]] = SHAPES, rows: NDArray[Any] = ROWS, **meta: Any
) -> dict[str, NDArray[Any]]:
    about = DraftMeta(**{"model": "test", "vocabulary": vocabulary, "width": WIDTH, "input_layers": 2, **meta})
    arrays: dict[str, NDArray[Any]] = {"meta": np.frombuffer(msgspec.json.encode(about), np.uint8), "rows": rows}
    rng = np.random.default_rng(1)
    for name, shape in shapes.items():
        matrix = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.float32(shape[1]))
        arrays[name], arrays[f"{name}.scales"] = pack_matrix(matrix)
    for name in (*VECTORS, "norm"):
        arrays[name] = (1 + 0.1 * rng.standard_normal(about.width)).astype(np.float16)
    return arrays


def save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]  # its stub takes a name for an option


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, vocabulary: str) -> Path:
    path = tmp_path_factory.mktemp("draft") / "test.npz"
    save(path, random_arrays(vocabulary))
    return path


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def loaded(files: PartFiles, weights: Path, vocabulary: str) -> Iterator[DraftPart]:
    with DraftPart(weights, input_part=files.input, head_part=files.head, vocabulary=vocabulary, cells=64, sequences=2) as part:
        yield part


@pytest.fixture
def part(loaded: DraftPart) -> DraftPart:
    for sequence in (0, 1):
        loaded.truncate(0, sequence)
    return loaded


class Reference:
    """The same layer in numpy. Of a qwen2 model queries, keys and values have biases, and the halves of a head rotate together."""

    def __init__(self, files: PartFiles, weights: Path, *, is_qwen2: bool = False) -> None:
        found = dict(np.load(weights))
        self._matrices = {
            name: (found[name].reshape(len(found[name]), -1, 32) * found[f"{name}.scales"].astype(np.float32)[:, :, None]).reshape(
                found[name].shape
            )
            for name in (*MATRICES, "fuse")
        }
        self._vectors = {name: value.astype(np.float32) for name, value in found.items() if value.ndim == 1}
        self._head = EmbeddingTable(files.head).rows(found["rows"].astype(np.int64))
        self._is_qwen2 = is_qwen2

    def run(self, deep: Floats, shallow: Floats) -> tuple[Floats, Floats]:
        """The logits and the states of all rows of a sequence from its first."""
        states = np.concatenate([rms(deep), rms(shallow)], 1) @ self._matrices["fuse"].T
        normed = rms(states) * self._vectors["attn_norm"]
        query, key, value = (
            (normed @ self._matrices[name].T + self._vectors.get(f"{name}_bias", 0)).reshape(len(states), -1, HEAD_WIDTH)
            for name in MATRICES[:3]
        )
        query, key = (rotate(each, is_in_halves=self._is_qwen2) for each in (query, key))
        groups = query.shape[1] // key.shape[1]
        scores = np.einsum("thd,shd->hts", query, np.repeat(key, groups, 1)) / np.sqrt(np.float32(HEAD_WIDTH))
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hts,shd->thd", shares / shares.sum(-1, keepdims=True), np.repeat(value, groups, 1))
        states = states + attended.reshape(len(states), -1) @ self._matrices["attn_output"].T
        normed = rms(states) * self._vectors["ffn_norm"]
        gate = normed @ self._matrices["ffn_gate"].T
        states = states + (gate / (1 + np.exp(-gate)) * (normed @ self._matrices["ffn_up"].T)) @ self._matrices["ffn_down"].T
        made = (rms(states) * self._vectors["norm"]).astype(np.float32)
        return made @ self._head.T, made


def rms(values: Floats) -> Floats:
    scaled: Floats = values / np.sqrt(np.square(values).mean(-1, keepdims=True) + 1e-5)
    return scaled


def rotate(values: Floats, *, is_in_halves: bool) -> Floats:
    steps = 100_000.0 ** -(np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    angles = np.arange(len(values))[:, None, None] * steps
    half = HEAD_WIDTH // 2
    first, second = (values[..., :half], values[..., half:]) if is_in_halves else (values[..., 0::2], values[..., 1::2])
    turned = (first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles))
    joined = np.concatenate(turned, -1) if is_in_halves else np.stack(turned, -1).reshape(values.shape)
    return joined.astype(np.float32)


def some_states(count: int, seed: int = 0, width: int = WIDTH) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    deep, shallow = rng.standard_normal((2, count, width)).astype(np.float32)
    deep[:3] = 0.0  # a prompt's deep states are not known
    return deep, shallow


def distance(one: Floats, other: Floats) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def test_a_step_is_the_same_arithmetic_as_in_numpy(part: DraftPart, files: PartFiles, weights: Path) -> None:
    deep, shallow = some_states(20)
    logits, made = Reference(files, weights).run(deep, shallow)
    part.extend(deep[:10], shallow[:10], 0)
    agreed = 0
    for place in range(10, 20):
        step = part.step(deep[place], shallow[place], place)
        assert distance(step.deep, made[place]) < CLOSE
        shares = np.exp(logits[place] - logits[place].max())
        order = np.argsort(-logits[place])
        agreed += step.ids[0] == int(ROWS[order[0]])
        assert step.probabilities[0] == pytest.approx(shares.max() / shares.sum(), rel=0.1)
        assert list(step.probabilities) == sorted(step.probabilities, reverse=True)
        assert set(step.ids) <= part.vocabulary
    assert agreed >= 9


def test_a_qwen2_layer_with_biases_and_a_narrow_feed_forward_part_is_the_same_arithmetic(tmp_path: Path) -> None:
    fields = {"qwen2.attention.head_count": 4, "qwen2.attention.head_count_kv": 2, "feed_forward_length": 512}
    size, width, inner = 40, 4 * HEAD_WIDTH, 64
    whole = write_model(tmp_path / "m.gguf", "qwen2", fields=fields, width=width, vocabulary=size, rope_base=100_000.0)
    files = split_model(whole, tmp_path / "parts")
    shapes = {"attn_q": (width, width), "attn_k": (2 * HEAD_WIDTH, width), "attn_v": (2 * HEAD_WIDTH, width), "attn_output": (width, width)}
    shapes |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner), "fuse": (width, 2 * width)}
    arrays = random_arrays("any", shapes, np.arange(3, size, 2, dtype=np.uint32), width=width)
    rng = np.random.default_rng(5)
    for name in ("attn_q", "attn_k", "attn_v"):
        arrays[f"{name}_bias"] = rng.standard_normal(len(arrays[name])).astype(np.float16)
    save(path := tmp_path / "draft.npz", arrays)
    deep, shallow = some_states(12, width=width)
    logits, made = Reference(files, path, is_qwen2=True).run(deep, shallow)
    with DraftPart(path, input_part=files.input, head_part=files.head, cells=64) as part:
        part.extend(deep[:11], shallow[:11], 0)
        step = part.step(deep[11], shallow[11], 11)
    assert distance(step.deep, made[11]) < CLOSE
    assert step.ids[0] == int(arrays["rows"][logits[11].argmax()])


def test_rows_read_together_are_those_read_one_by_one(part: DraftPart) -> None:
    deep, shallow = some_states(12)
    part.extend(deep[:11], shallow[:11], 0, 0)
    for place in range(11):
        part.step(deep[place], shallow[place], place, 1)
    together, single = (part.step(deep[11], shallow[11], 11, sequence) for sequence in (0, 1))
    assert distance(together.deep, single.deep) < CLOSE


def test_few_rows_are_joined_as_many_are(part: DraftPart) -> None:
    deep, shallow = some_states(20)
    many = part._joined(deep, shallow)
    for rows in (slice(0, 1), slice(5, 9), slice(12, 20)):
        assert distance(part._joined(deep[rows], shallow[rows]), many[rows]) < 1e-5


def test_a_draft_is_forgotten_when_verified_rows_take_its_place(part: DraftPart) -> None:
    deep, shallow = some_states(10)
    part.extend(deep[:6], shallow[:6], 0)
    expected = part.step(deep[6], shallow[6], 6)
    guess = expected.deep
    for place in (7, 8, 9):
        guess = part.step(guess, shallow[place], place).deep
    part.extend(deep[4:6], shallow[4:6], 4)
    again = part.step(deep[6], shallow[6], 6)
    assert again.ids == expected.ids
    assert np.array_equal(again.deep, expected.deep)


def test_sequences_do_not_mix(part: DraftPart) -> None:
    one, other = some_states(8, 1), some_states(8, 2)
    part.extend(one[0][:7], one[1][:7], 0, 0)
    alone = part.step(one[0][7], one[1][7], 7, 0)
    part.truncate(7, 0)
    part.extend(other[0], other[1], 0, 1)
    assert np.array_equal(part.step(one[0][7], one[1][7], 7, 0).deep, alone.deep)


def test_positions_beyond_the_cells_are_refused(part: DraftPart) -> None:
    deep, shallow = some_states(1000)
    with pytest.raises(EngineError, match="expected positions up to"):
        part.extend(deep, shallow, 0)
    with pytest.raises(EngineError, match="expected positions up to"):
        part.step(deep[0], shallow[0], 900)


def test_deep_states_are_normed_as_the_model_does(part: DraftPart, files: PartFiles) -> None:
    with HeadPart(files.head) as head:
        raw = np.random.default_rng(3).standard_normal(WIDTH).astype(np.float32) * 50
        logits = head.logits(raw)
        table = EmbeddingTable(files.head).rows(np.arange(1000, dtype=np.int64))
        assert distance(table @ part.normed(raw), logits[:1000]) < CLOSE


def test_the_gguf_file_is_written_once(files: PartFiles, weights: Path) -> None:
    with DraftPart(weights, input_part=files.input, head_part=files.head) as part:
        path = part._model.path
    before = path.stat().st_mtime_ns
    with DraftPart(weights, input_part=files.input, head_part=files.head) as part:
        assert part._model.path == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(("field", "value"), [("width", 512), ("input_layers", 3), ("vocabulary", "other")])
def test_weights_of_another_model_are_refused(files: PartFiles, vocabulary: str, tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "other.npz"
    save(path, random_arrays(**{"vocabulary": vocabulary, field: value}))
    with pytest.raises(ConfigError, match="draft layer"):
        DraftPart(path, input_part=files.input, head_part=files.head, vocabulary=vocabulary)


@pytest.mark.parametrize(
    "damage", ["missing file", "no archive", "no meta", "a matrix missing", "rows that don't ascend", "a vector too short"]
)
def test_damaged_weights_are_refused(files: PartFiles, vocabulary: str, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.npz"
    arrays = random_arrays(vocabulary)
    match damage:
        case "no meta":
            del arrays["meta"]
        case "a matrix missing":
            del arrays["attn_q"]
        case "rows that don't ascend":
            arrays["rows"] = ROWS[::-1]
        case "a vector too short":
            arrays["norm"] = arrays["norm"][:-1]
    if damage == "no archive":
        path.write_bytes(b"nothing")
    elif damage != "missing file":
        save(path, arrays)
    with pytest.raises(ConfigError, match=r"damaged\.npz: expected weights"):
        DraftPart(path, input_part=files.input, head_part=files.head)


def test_the_packaged_layer_is_the_one_that_its_page_tells_of(vocabulary: str) -> None:
    folder = Path(draft_layer.__file__).parent / "draft_layers"
    page = (folder / "README.md").read_text()
    for path in folder.glob("*.npz"):
        data = path.read_bytes()
        assert len(data) <= 6_000_000
        assert f"{len(data) / 1e6:.1f} MB" in page
        assert sha256(data).hexdigest() in page
        found = read_draft_weights(path)
        assert (found.meta.vocabulary, found.meta.width, found.meta.input_layers) == (vocabulary, WIDTH, 2)
        assert f"{len(found.rows):,} rows" in page
        assert found.meta.model in page


def test_a_packed_matrix_is_within_half_a_step_of_the_matrix() -> None:
    matrix = np.random.default_rng(4).standard_normal((8, 96)).astype(np.float32)
    matrix[0, :32] = 0
    numbers, scales = pack_matrix(matrix)
    steps = scales.astype(np.float32)[:, :, None]
    back = numbers.reshape(8, -1, 32) * steps
    assert np.abs(back - matrix.reshape(8, -1, 32)).max() <= steps.max() * 0.51 + np.abs(matrix).max() * 2**-10
    assert not back[0, 0].any()
