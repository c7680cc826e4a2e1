"""What a client reports: of one answer (``stream.report``), and of all answers so far (``client.totals``)."""

from __future__ import annotations

from streamco.core.report import Opening, Report
from streamco.core.report_parts import AnswerUsage, DispatchReport, EndpointReport, Grade, SpeculationFigures, SplitFigures
from streamco.core.totals import EndpointTotals, Totals

__all__ = [
    "AnswerUsage",
    "DispatchReport",
    "EndpointReport",
    "EndpointTotals",
    "Grade",
    "Opening",
    "Report",
    "SpeculationFigures",
    "SplitFigures",
    "Totals",
]
