"""Bottlenecks made on an emulated device: each is called by its name, or the verdict abstains with a reason.

On few cores the polling threads wait for a core, and abstaining is all that is right.
"""

from __future__ import annotations

import pytest
from softefa_cases import CASES, attribute, calibrate, record
from softefa_runs import need_softefa

PROVIDER = "efa"  # the one that every libfabric with EFA has
STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Profiles and runs; cases on equal devices share a profile."""
    need_softefa()
    return tmp_path_factory.mktemp("cases")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_made_bottleneck_is_named_or_the_verdict_abstains(case, folder):
    profile = calibrate(case.emulate, folder, provider=PROVIDER, duration_ms=100)
    run = folder / case.name.replace(" ", "-")
    record(case, run, provider=PROVIDER, steps=STEPS)
    found = attribute(run, profile)
    if found is None:
        return
    assert not case.is_wrong(found.verdict.path), found.features
    if found.verdict.path.startswith("inconclusive"):
        assert found.verdict.next_experiment
