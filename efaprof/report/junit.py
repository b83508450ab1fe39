"""Gates as a JUnit file: one test case per gate, for any CI that shows test results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from efaprof.analyzers.limits import GateStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.limits import Gate

# What XML 1.0 cannot hold, however it is escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(suite: str, gates: Sequence[Gate]) -> str:
    """The file; a gate that cannot be told is a skipped case."""
    failures = sum(gate.status is GateStatus.FAILED for gate in gates)
    skipped = sum(gate.status in (GateStatus.INCONCLUSIVE, GateStatus.UNKNOWN) for gate in gates)
    counts = {"tests": str(len(gates)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    root = ElementTree.Element("testsuites", counts)
    one = ElementTree.SubElement(root, "testsuite", {"name": _clean(suite), **counts})
    for gate in gates:
        case = ElementTree.SubElement(one, "testcase", {"classname": _clean(suite), "name": _clean(gate.name)})
        if gate.status is GateStatus.FAILED:
            ElementTree.SubElement(case, "failure", {"message": _clean(gate.detail)}).text = _clean(gate.detail)
        elif gate.status is not GateStatus.PASSED:
            ElementTree.SubElement(case, "skipped", {"message": _clean(gate.detail)})
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(gate.detail)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
