"""What `efaprof model` prints, as one value: inputs, arms, and the published arithmetic beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers import rates

if TYPE_CHECKING:
    from efaprof.analyzers.dispatch_model import ArmModel, ModelInputs
    from efaprof.analyzers.op_time import OpTime
    from efaprof.analyzers.rates import RateTax


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Everything that `efaprof model` prints."""

    inputs: ModelInputs
    op_time: OpTime | None  # None: t_op was solved from a tax
    arms: tuple[ArmModel, ...]
    rate_tax: RateTax
    printed_tax_ms: str | None  # what the source of the rates prints as their tax
    warnings: tuple[str, ...] = ()


def rate_statement(report: ModelReport) -> str:
    """The arithmetic of two printed rates in one sentence, and whether their source's own result follows from them."""
    tax = report.rate_tax
    text = (
        f"1000/{tax.arm_tok_s} − 1000/{tax.baseline_tok_s} = {tax.arm_itl_ms:.3f} − {tax.baseline_itl_ms:.3f} = "
        f"{tax.tax_ms:.3f} ms/token; rounding of the inputs alone allows {tax.lowest_ms:.2f}–{tax.highest_ms:.2f}"
    )
    printed = report.printed_tax_ms
    if printed is None or rates.prints_as(tax.tax_ms, printed):
        return text
    return f"{text}. The page prints {printed}, which is not what its two inputs give"
