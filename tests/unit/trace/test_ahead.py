"""Items made ahead in a thread."""

from __future__ import annotations

import threading

import pytest

from efaprof.trace.ahead import ahead


def test_items_come_whole_and_in_order():
    assert list(ahead(iter(range(1000)))) == list(range(1000))


def test_nothing_stays_nothing():
    assert list(ahead(iter(()))) == []


def test_an_error_comes_after_the_items_before_it():
    def broken():
        yield 1
        raise KeyError("two")

    items = ahead(broken())
    assert next(items) == 1
    with pytest.raises(KeyError, match="two"):
        next(items)


def test_at_most_one_item_waits():
    made = []

    def items():
        for number in range(100):
            made.append(number)
            yield number

    taken = ahead(items())
    next(taken)
    taken.close()
    assert len(made) <= 3


def test_no_thread_stays_behind_a_caller_that_leaves_early():
    before = threading.active_count()
    for item in ahead(iter(range(100))):
        if item == 3:
            break
    del item
    assert threading.active_count() == before
