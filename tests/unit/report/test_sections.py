from __future__ import annotations

from efaprof.report.sections import Notes, Table, as_markdown, as_terminal

TABLE = Table("layer", ("layer", "µs"), (("proxy", "12.5"), ("nic", "7")), frozenset({"layer"}))


def test_columns_line_up_and_numbers_are_flush_right():
    assert as_terminal("head", [TABLE]).splitlines() == ["head", "", "layer    µs", "proxy  12.5", "nic       7"]


def test_notes_stand_under_their_word():
    text = as_terminal("head", [Notes("because", ("one", "two"))])
    assert text.splitlines()[2:] == ["because  one", "         two"]


def test_no_line_ends_in_spaces():
    table = Table("a", ("a", "b"), (("long name", ""),), frozenset({"a", "b"}))
    assert all(line == line.rstrip() for line in as_terminal("head", [table]).splitlines())


def test_markdown_has_a_rule_and_escapes_pipes():
    lines = as_markdown("head", [Table("t", ("a", "b"), (("x|y", "1"),), frozenset({"a"}))]).splitlines()
    assert lines == ["### head", "", "**t**", "", "| a | b |", "| :-- | --: |", "| x\\|y | 1 |"]


def test_several_notes_are_a_list_in_markdown():
    assert as_markdown("h", [Notes("w", ("one",))]).splitlines()[-1] == "**w**: one"
    assert as_markdown("h", [Notes("w", ("one", "two"))]).splitlines()[-2:] == ["- one", "- two"]
