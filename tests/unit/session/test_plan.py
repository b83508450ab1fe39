from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from efaprof.errors import RecordError, UsageError
from efaprof.session import cpu, nic, plan
from efaprof.session.elf import Program, inspect
from efaprof.session.probes import ProbeName, parse_probes
from efaprof.trace.manifest import ProbeState

EVERYTHING = frozenset(ProbeName)
NOTHING: frozenset[ProbeName] = frozenset()


@pytest.fixture
def interposer(tmp_path) -> Path:
    path = tmp_path / "libefaprof-fi.so"
    path.touch()
    return path


def make(
    interposer: Path, *, program: Program | None = None, selected=EVERYTHING, required=NOTHING, **options
) -> plan.Plan:
    return plan.make_plan(
        program or inspect(Path(sys.executable)), selected=selected, required=required, interposer=interposer, **options
    )


def states(made: plan.Plan) -> dict[str, ProbeState]:
    return {probe.name: probe.state for probe in made.probes}


OWN = inspect(Path(sys.executable)).elf


def program(**changes) -> Program:
    return Program(Path("/p"), replace(OWN, **changes), Path("/p"))


def test_a_dynamic_program_is_preloaded(interposer):
    made = make(interposer)
    assert states(made)["libfabric"] == ProbeState.ON
    assert made.preload == (interposer,)


def test_a_static_program_is_preloaded_for_the_sake_of_its_children(interposer):
    made = make(interposer, program=program(interpreter=""))
    assert states(made)["libfabric"] == ProbeState.DEGRADED
    assert made.preload == (interposer,)


@pytest.mark.parametrize(
    "odd", [program(bits=32), program(interpreter="/lib/ld-musl-x86_64.so.1"), program(machine=243)]
)
def test_where_the_loader_would_complain_nothing_is_preloaded(interposer, odd):
    made = make(interposer, program=odd)
    assert states(made)["libfabric"] == ProbeState.OFF
    assert made.preload == ()


def test_a_missing_interposer_is_off_with_the_line_to_type(tmp_path):
    (probe, *_) = make(tmp_path / "absent.so").probes
    assert (probe.state, "was not built" in probe.reason, "pip install" in probe.hint) == (ProbeState.OFF, True, True)


def test_a_required_probe_must_be_fully_on(interposer):
    required = frozenset({ProbeName.LIBFABRIC})
    assert make(interposer, required=required)
    with pytest.raises(RecordError, match="required probe libfabric") as caught:
        make(interposer, program=program(interpreter=""), required=required)
    assert (caught.value.exit_code, bool(caught.value.hint)) == (125, True)
    with pytest.raises(RecordError, match="not asked for"):
        make(interposer, selected=frozenset({ProbeName.CPU}), required=required)


def test_without_counters_and_delays_the_probes_are_off_and_say_why(interposer, monkeypatch):
    monkeypatch.setattr(nic, "find_devices", lambda: ())
    monkeypatch.setattr(cpu, "find_cgroup", lambda: None)
    monkeypatch.setattr(cpu, "has_run_delay", lambda: False)
    made = make(interposer)
    assert (states(made)["nic"], states(made)["cpu"]) == (ProbeState.OFF, ProbeState.OFF)
    assert all(probe.reason and probe.hint for probe in made.probes if probe.state == ProbeState.OFF)
    assert not made.records(ProbeName.NIC)


def test_a_line_rate_that_is_not_known_is_said(interposer, monkeypatch):
    monkeypatch.setattr(nic, "find_devices", lambda: (nic.Device("eth9", (), (), None), nic.Device("lo", (), (), None)))
    (probe,) = [probe for probe in make(interposer).probes if probe.name == "nic"]
    assert probe.reason == "counters of eth9, lo; line rate unknown for eth9"


def test_a_chosen_libfabric_is_preloaded_after_the_interposer(interposer):
    library = Path(sys.executable)  # any 64-bit ELF file will do here
    assert make(interposer, libfabric=library).preload == (interposer, library)
    assert make(interposer, selected=NOTHING, libfabric=library).preload == (library,)


def test_nvtx_loads_the_library_beside_the_interposer_when_it_was_built(interposer):
    made = make(interposer)
    assert (states(made)["nvtx"], made.nvtx) == (ProbeState.OFF, None)
    library = interposer.with_name("libefaprof-nvtx.so")
    library.touch()
    made = make(interposer)
    assert (states(made)["nvtx"], made.nvtx) == (ProbeState.ON, library)
    assert make(interposer, selected=frozenset({ProbeName.CPU})).nvtx is None


def test_probe_lists():
    assert parse_probes("auto") == EVERYTHING - {ProbeName.PYTHON}
    assert parse_probes(" nic, cpu,") == {ProbeName.NIC, ProbeName.CPU}
    assert parse_probes("") == NOTHING
    for wrong in ("gpu", "nic,auto", "NIC"):
        with pytest.raises(UsageError) as caught:
            parse_probes(wrong)
        assert "libfabric, nic, nvtx" in caught.value.hint
