from __future__ import annotations

import pytest

from efaprof.errors import UsageError
from efaprof.session.size import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4MiB", 4 << 20), ("64M", 64 << 20), ("1GiB", 1 << 30), ("1.5k", 1536), (" 2 gb ", 2 << 30),
     ("3T", 3 << 40), ("7B", 7)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "4X", "-1", "4 MiB extra", "0", "0.1B", "1i", "1e3", "٤", "nan"])
def test_what_is_no_size_is_refused_with_a_hint(text):
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (5 << 40, "5.0 TiB")]
)
def test_a_size_is_shown_in_its_largest_unit(size, text):
    assert format_size(size) == text
