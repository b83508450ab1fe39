from __future__ import annotations

import pytest

from efaprof.session.ringname import parse, ring_names


def test_a_host_name_may_hold_dots(tmp_path):
    ring = parse(tmp_path / "node-1.rack.example.4026531836.17.18.9f3a.ring")
    assert (ring.host, ring.pid_ns, ring.pid, ring.tid) == ("node-1.rack.example", 4026531836, 17, 18)


@pytest.mark.parametrize(
    "name", ["control", "h.1.2.3.ff", "h.1.x.3.ff.ring", "1.2.3.ff.ring", "h.1.²2.3.ff.ring", ".ring"]
)
def test_other_files_are_no_rings(tmp_path, name):
    assert parse(tmp_path / name) is None


def test_folders_that_do_not_exist_hold_no_rings(tmp_path):
    (tmp_path / "h.1.2.3.ff.ring").touch()
    (tmp_path / "control").touch()
    assert [ring.tid for ring in ring_names(tmp_path / "absent", tmp_path)] == [3]
