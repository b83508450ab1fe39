"""What commands with gates share: the files that a CI reads, the job's summary, and how they end."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.cli.optional_value import write_text
from efaprof.cli.quantities import parse_seconds
from efaprof.errors import GateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from efaprof.analyzers.limits import Gate
    from efaprof.report.sections import Section

SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub names a file there that it shows on the job's page


@dataclass(frozen=True, slots=True)
class CiFiles:
    """Values of --junit and --bench."""

    junit: Path | None
    bench: Path | None

    def write(self, suite: str, gates: Sequence[Gate], rows: Sequence[dict[str, Any]]) -> None:
        """Write what was asked for."""
        from efaprof.report.junit import junit_text

        if self.junit is not None:
            write_text(junit_text(suite, gates), str(self.junit))
        if self.bench is not None:
            write_text(json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n", str(self.bench))


class Gating:
    """Gates that were asked for on the command line of one report; UsageError for one that cannot be."""

    def __init__(
        self, expect: Sequence[str], fail_above: Sequence[str], files: CiFiles, *, is_compared: bool = False
    ) -> None:
        from efaprof.analyzers.limits import limit_on, parse_expectation

        self._expected = [parse_expectation(text) for text in expect]
        parts = [text.partition("=") for text in fail_above]
        self._limits = [limit_on(name, parse_seconds(time)) for name, _, time in parts]
        self._files = files
        self._is_compared = is_compared  # a comparison brings gates

    @property
    def is_asked(self) -> bool:
        """There is a gate, or a file for the outcome of gates."""
        return bool(self._expected or self._limits or self._is_compared or self._files.junit or self._files.bench)

    def judge(self, document: dict[str, Any], compared: Sequence[Gate] = ()) -> list[Gate]:
        """The gates' outcomes, those of a comparison last, also put into the document; none where none was asked."""
        from efaprof.analyzers.limits import gates_of
        from efaprof.report.gates_json import gate_rows

        gates = gates_of(document, expected=self._expected, limits=self._limits) if self.is_asked else []
        names = {gate.name for gate in gates}
        gates += [gate for gate in compared if gate.name not in names]
        document["gates"] = gate_rows(gates)
        return gates

    def with_gates(self, sections: list[Section], gates: Sequence[Gate]) -> list[Section]:
        """The report's sections, and gates before the last of them."""
        from efaprof.report.gates_json import gates_table

        return [*sections[:-1], gates_table(gates), sections[-1]] if gates else sections

    def finish(
        self,
        document: dict[str, Any],
        gates: Sequence[Gate],
        heading: str,
        sections: Sequence[Section],
        *,
        is_strict: bool,
    ) -> None:
        """Write the files and the job's summary; GateError when a gate failed."""
        from efaprof.report.benchmark_json import attribution_rows

        if not self.is_asked:
            return
        self._files.write("efaprof attribute", gates, attribution_rows(document))
        append_summary(heading, sections)
        end_with(gates, is_strict=is_strict)


def append_summary(heading: str, sections: Sequence[Section]) -> None:
    """Add the report to the job's summary where the CI has one."""
    from efaprof.report.sections import as_markdown

    target = os.environ.get(SUMMARY)
    if not target:
        return
    try:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(as_markdown(heading, sections) + "\n")
    except OSError as error:
        raise UsageError(f"${SUMMARY} cannot be written: {target}: {error.strerror}") from error


def end_with(
    gates: Sequence[Gate],
    *,
    is_strict: bool,
    hint: str = "the report names the layers; efaprof open RUN shows the operations",
) -> None:
    """GateError when a gate failed; what could not be told is named on stderr."""
    from efaprof.analyzers.limits import GateStatus, failed

    stopping = failed(gates, is_strict=is_strict)
    if stopping:
        raise GateError(
            "\n".join(f"gate {gate.status.value}: {gate.name}: {gate.detail}" for gate in stopping),
            hint=hint,
        )
    for gate in gates:
        if gate.status is GateStatus.INCONCLUSIVE:
            sys.stderr.write(f"gate inconclusive, passes: {gate.name}: {gate.detail}\n")
