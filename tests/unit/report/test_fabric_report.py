from __future__ import annotations

import dataclasses

import pytest

from efaprof.report.fabric_known import DOCUMENTED, RC, SRD
from efaprof.report.fabric_report import meaning
from efaprof.report.fabric_traits import Paths, Property, Traits
from efaprof.trace.layers import Provenance

DIRECT = DOCUMENTED["efa-direct"][1]


def test_every_property_has_a_reference_for_both_transports_with_its_source():
    for table in (RC, SRD, *(values for values, _ in DOCUMENTED.values())):
        assert set(table) == set(Property)
        assert all(value.text and value.source for value in table.values())


def test_what_is_documented_is_never_called_measured():
    tables = (RC, SRD, *(values for values, _ in DOCUMENTED.values()))
    assert {value.provenance for table in tables for value in table.values()} == {Provenance.ASSUMED}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({}, Property.ORDERING, "can overtake"),
        ({"keeps_writes": True}, Property.ORDERING, "lands after"),
        ({"keeps_sends": True}, Property.ORDERING, "sent as a message"),
        ({}, Property.ATOMICS, "no remote counters"),
        ({"adds": None}, Property.ATOMICS, "not known"),
        ({"adds": True}, Property.ATOMICS, "can be added to"),
        ({}, Property.IMMEDIATE, "nothing to post"),
        ({"immediate_takes_receive": True}, Property.IMMEDIATE, "keep a receive posted"),
        ({"immediate_bytes": 0}, Property.IMMEDIATE, "two operations"),
        ({"confirms_delivery": False}, Property.COMPLETION, "only it can confirm"),
        ({}, Property.GPU, "path gdaki"),
        ({"posts_from_gpu": False}, Property.GPU, "path proxy"),
        ({"posts_from_gpu": None}, Property.GPU, "not known"),
        ({"registers_by_endpoint": True}, Property.MEMORY, "once per endpoint"),
        ({"needs_local_registration": False}, Property.MEMORY, "write through"),
        ({}, Property.GATHER, "packed first"),
        ({"pieces": 4}, Property.GATHER, "up to 4 pieces"),
        ({"paths": Paths.SINGLE}, Property.MULTIPATH, "several connections"),
    ],
)
def test_a_trait_decides_what_a_property_means(change, name, words):
    assert words in meaning(name, dataclasses.replace(DIRECT, **change))


def test_an_unreliable_endpoint_is_never_said_to_confirm():
    assert "may be lost" in meaning(Property.COMPLETION, DIRECT, is_reliable=False)


def test_every_meaning_is_one_line_that_fits():
    for _, traits in DOCUMENTED.values():
        assert isinstance(traits, Traits)
        for name in Property:
            text = meaning(name, traits)
            assert "\n" not in text
            assert len(text) <= 115
