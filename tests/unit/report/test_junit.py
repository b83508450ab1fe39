"""Gates as JUnit: counted, escaped, and parsed again."""

from __future__ import annotations

from xml.etree import ElementTree

from efaprof.analyzers.limits import Gate, GateStatus
from efaprof.report.junit import junit_text

GATES = [
    Gate("fine", GateStatus.PASSED, "1 < 2"),
    Gate('broken "<&>"', GateStatus.FAILED, "\x1b[31mred\x00 & <b>"),
    Gate("open", GateStatus.INCONCLUSIVE, "cannot be told"),
    Gate("never", GateStatus.UNKNOWN, "not measured"),
]


def test_every_gate_is_a_case_with_its_outcome():
    root = ElementTree.fromstring(junit_text("efaprof", GATES))
    (suite,) = root
    for element in (root, suite):
        counts = {name: element.get(name) for name in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": "4", "failures": "1", "errors": "0", "skipped": "2"}
    assert [[child.tag for child in case] for case in suite] == [["system-out"], ["failure"], ["skipped"], ["skipped"]]


def test_what_xml_cannot_hold_is_replaced_and_the_rest_escaped():
    (suite,) = ElementTree.fromstring(junit_text("efaprof", GATES))
    assert suite[1].get("name") == 'broken "<&>"'
    assert suite[1][0].text == "\ufffd[31mred\ufffd & <b>"
