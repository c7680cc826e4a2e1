"""Chooses the siblings sent with a draft. Their rows must take less time than a hit saves (``drafts.tree_drafts``)."""

from __future__ import annotations

from collections.abc import Sequence

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.policies.drafts.tree_drafts import Sibling, choose_siblings
from streamco.policies.mode_switch import predict_rates

__all__ = ["siblings_for"]


def siblings_for(draft: Sequence[DraftToken], estimates: SpeculationEstimates, options: SpeculationMachineOptions) -> tuple[Sibling, ...]:
    """Return the siblings that pay. There are none if the verifier's row costs aren't known, or if not every draft is verified.

    Args:
        draft: tokens to send.
        estimates: acceptance, and how long rows take.
        options: limits how many siblings may be sent.
    """
    most = min(options.max_siblings, options.max_draft - len(draft))
    if most < 1 or not draft or not estimates.is_lossless:
        return ()
    known = estimates.conditions()
    rate = predict_rates(known).speculative
    if known.row_costs is None or rate <= 0.0:
        return ()
    return choose_siblings(
        estimates.forecast([token.confidence for token in draft]),
        [token.id for token in draft],
        [token.alternatives for token in draft],
        row_seconds=known.row_costs.seconds,
        token_seconds=1.0 / rate,
        max_siblings=most,
    )
