"""What became of operations, in a scratch file."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.errors import TraceError
from efaprof.trace import outcomes
from efaprof.trace.outcomes import Outcomes


def test_released_rows_keep_what_was_written_and_can_be_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "_KEPT_ROWS", 1000)
    with Outcomes(50_000, tmp_path) as scratch:
        scratch.done_ns[:] = np.arange(50_000)
        scratch.error[:] = 7
        scratch.state[:] = 3
        scratch.release(40_000)
        scratch.done_ns[5] = -1
        scratch.release(49_000)
        assert scratch.done_ns[5] == -1
        assert scratch.done_ns[[0, 39_999, 49_999]].tolist() == [0, 39_999, 49_999]
        assert (scratch.error == 7).all()
        assert (scratch.state == 3).all()


def test_the_scratch_file_has_no_name_and_leaves_nothing(tmp_path):
    with Outcomes(10, tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_no_operations_need_no_room(tmp_path):
    with Outcomes(0, tmp_path) as scratch:
        assert len(scratch.state) == 0


def test_a_folder_without_room_is_said_with_what_is_needed(tmp_path):
    with pytest.raises(TraceError, match="has no room for a scratch file"):
        Outcomes(1 << 50, tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        Outcomes(1, tmp_path / "gone")
