"""The types of a client's reports, on one answer (``stream.report``) and on all answers so far (``client.totals``)."""

from __future__ import annotations

from streamco.core.report import Opening, Report
from streamco.core.report_parts import (
    AnswerPlan,
    AnswerUsage,
    DispatchReport,
    EndpointReport,
    Grade,
    ShadowReport,
    SpeculationFigures,
    SplitFigures,
)
from streamco.core.totals import EndpointTotals, ShadowTotals, Totals
from streamco.policies.ways import Way

__all__ = [
    "AnswerPlan",
    "AnswerUsage",
    "DispatchReport",
    "EndpointReport",
    "EndpointTotals",
    "Grade",
    "Opening",
    "Report",
    "ShadowReport",
    "ShadowTotals",
    "SpeculationFigures",
    "SplitFigures",
    "Totals",
    "Way",
]
