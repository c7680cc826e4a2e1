"""What request bodies of other APIs have in common."""

from __future__ import annotations

import pytest

from streamco.config import SamplingOptions
from streamco.wire.translated_body import further_fields, joined_text, logit_bias_field, sampling_fields


def test_only_options_that_are_set_become_fields() -> None:
    assert sampling_fields(SamplingOptions()) == {}
    assert sampling_fields(SamplingOptions(temperature=0.0, top_k=5)) == {"temperature": 0.0, "top_k": 5}
    assert logit_bias_field(SamplingOptions()) == {}
    assert logit_bias_field(SamplingOptions(logit_bias=((7, -1.5),))) == {"logit_bias": {"7": -1.5}}


def test_fields_without_a_value_or_a_meaning_are_left_out_of_a_copy() -> None:
    extra: dict[str, object] = {"user": "me", "seed": None, "stream": True, "stream_options": {}}
    fields = further_fields(extra)
    assert fields == {"user": "me"}
    fields.clear()
    assert extra["user"] == "me"
    assert further_fields(None) == {}


def test_parts_of_text_are_joined_and_others_are_refused() -> None:
    assert joined_text(None) == ""
    assert joined_text("plain") == "plain"
    assert joined_text([{"type": "text", "text": "a"}, {"type": "text"}, {"type": "text", "text": "b"}]) == "ab"
    with pytest.raises(ValueError, match="expected parts of type text in this message, got 'image_url'"):
        joined_text([{"type": "image_url"}])
