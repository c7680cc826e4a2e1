"""Verifiers for ``Speculate(verifier=...)``, which check the device's drafts, and policies that decide how long a draft is."""

from __future__ import annotations

from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.sglang import SGLangVerifier
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.policies.window import Dynamic, Threshold, WindowPolicy

__all__ = [
    "Dynamic",
    "SGLangVerifier",
    "SpeculationTuning",
    "Threshold",
    "VLLMVerifier",
    "VerifierEndpoint",
    "VerifierPool",
    "WindowPolicy",
]
