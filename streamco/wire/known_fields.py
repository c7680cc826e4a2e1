"""Known fields of a request's body: some leave the text of an answer unchanged, and others ask for a different text.

The names come from OpenAI, vLLM, SGLang, llama.cpp's server, Ollama, LM Studio, text-generation-webui, KoboldCpp and TabbyAPI. A model on
this machine honours few of them. A request with a field that it can't honour is sent to a server, or refused with an error that
names the field. Front ends send long lists of such fields with values that ask for nothing, and these are let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FIELDS_WITHOUT_EFFECT", "NEUTRAL_VALUES", "is_asked"]

# Names, billing, routing, storage; and details of settings that ask for nothing by themselves
FIELDS_WITHOUT_EFFECT = frozenset(
    {
        *("cache_prompt", "keep_alive", "metadata", "models", "priority", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "provider", "request_id", "return_token_ids", "route", "safety_identifier", "service_tier", "store"),
        *("stream", "stream_options", "usage", "user"),
        *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "guided_decoding_backend"),
        *(
            "guided_whitespace_pattern",
            "include_reasoning",
            "mirostat_eta",
            "mirostat_tau",
            "repeat_last_n",
            "smoothing_curve",
            "xtc_threshold",
        ),
    }
)

_NO_SCHEMA: tuple[Any, ...] = ("",)  # {} is a schema: any JSON
_NO_LIMIT = (-1, -2)  # Ollama's -2 fills the context
_OFF, _ONE = (0,), (1,)

NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's
    "audio": ({},),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "modalities": (["text"], []),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
    # A format that the answer must have
    **dict.fromkeys(("ebnf", "grammar", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"), _NO_SCHEMA),
    "guided_choice": ([], ""),
    "guided_decoding": ({},),
    "structural_tag": ("", {}),
    "structured_outputs": ({},),
    # Tokens and words that it must not contain, or that end it
    **dict.fromkeys(("allowed_token_ids", "bad_words", "banned_strings", "stop_token_ids"), ([],)),
    **dict.fromkeys(("banned_tokens", "custom_token_bans"), ([], "")),
    "ban_eos_token": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "stop_regex": ("", []),
    # Its length
    **dict.fromkeys(("max_gen_len", "max_new_tokens", "n_predict", "num_predict"), _NO_LIMIT),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), _OFF),
    # How its tokens are drawn
    **dict.fromkeys(("encoder_repetition_penalty", "repeat_penalty", "repetition_penalty"), _ONE),
    **dict.fromkeys(("tfs", "tfs_z", "typical", "typical_p"), _ONE),
    **dict.fromkeys(("dry_multiplier", "dynatemp_range", "epsilon_cutoff", "eta_cutoff", "mirostat", "mirostat_mode"), _OFF),
    **dict.fromkeys(("no_repeat_ngram_size", "penalty_alpha", "smoothing_factor", "top_a", "xtc_probability"), _OFF),
    "top_n_sigma": (-1, 0),
    "do_sample": (True,),
    "dynamic_temperature": (False,),
    **dict.fromkeys(("beam_width", "length_penalty", "num_beams"), _ONE),
    "use_beam_search": (False,),
    **dict.fromkeys(("samplers", "sampler_order", "sampler_priority"), ([], "")),
    # What the model reads, and how it thinks
    "chat_template": ("",),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "enable_thinking": (),
    "lora": ([],),
    "negative_prompt": ("",),
    "guidance_scale": _ONE,
    "reasoning": ({}, {"effort": "none"}, {"enabled": False}),
    "reasoning_budget": (-1,),
    "thinking": ({}, False, {"type": "disabled"}),
    "thinking_budget": (-1,),
    "thinking_budget_tokens": (-1,),
    "truncate_prompt_tokens": (),
}
"""Fields that can change an answer, each with the values that don't. The value None never does."""


def is_asked(name: str, value: object) -> bool:
    """Return True if a field asks for a different answer. An unknown field does, unless its value is None."""
    return value is not None and name not in FIELDS_WITHOUT_EFFECT and value not in NEUTRAL_VALUES.get(name, ())
