"""A tax from two printed rates: 1000/slow − 1000/fast, and how far the rounding of the inputs lets it move."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from efaprof.errors import UsageError

# The published serving comparison, tok/s per user as printed, and the tax that the page prints from them.
PUBLISHED_ARM_TOK_S = "19.6"
PUBLISHED_BASELINE_TOK_S = "27.6"
PUBLISHED_TAX_MS = "14.7"


@dataclass(frozen=True, slots=True)
class RateTax:
    """Tax per token from two rates that were printed with a limited number of digits."""

    arm_tok_s: str
    baseline_tok_s: str
    arm_itl_ms: float
    baseline_itl_ms: float
    tax_ms: float
    lowest_ms: float  # over all inputs that print as these
    highest_ms: float
    ratio: float


def tax_of_rates(arm_tok_s: str, baseline_tok_s: str) -> RateTax:
    """Tax of an arm that prints `arm_tok_s` tokens per second and user against one that prints `baseline_tok_s`."""
    arm, baseline = _rate(arm_tok_s), _rate(baseline_tok_s)
    arm_half, baseline_half = _half_digit(arm), _half_digit(baseline)
    return RateTax(
        arm_tok_s=arm_tok_s,
        baseline_tok_s=baseline_tok_s,
        arm_itl_ms=1000 / float(arm),
        baseline_itl_ms=1000 / float(baseline),
        tax_ms=1000 / float(arm) - 1000 / float(baseline),
        lowest_ms=1000 / float(arm + arm_half) - 1000 / float(baseline - baseline_half),
        highest_ms=1000 / float(arm - arm_half) - 1000 / float(baseline + baseline_half),
        ratio=float(arm) / float(baseline),
    )


def prints_as(value: float, printed: str) -> bool:
    """Whether `value` rounds to `printed` at its number of digits."""
    return abs(value - float(printed)) <= float(_half_digit(Decimal(printed)))


def _rate(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{text!r} is no rate", hint="give tokens per second and user, as printed: 19.6") from None
    if not value.is_finite() or value - _half_digit(value) <= 0:
        raise UsageError(f"{text} is no rate above 0", hint="give tokens per second and user, as printed: 19.6")
    return value


def _half_digit(value: Decimal) -> Decimal:
    exponent = value.as_tuple().exponent
    return Decimal(5).scaleb(exponent - 1) if isinstance(exponent, int) else Decimal(0)
