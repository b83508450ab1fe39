"""Plan of a dispatch run: command line, fingerprint, prediction, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument import dispatch
from efaprof.instrument.dispatch import (
    Completion,
    DispatchOptions,
    Injection,
    Lateness,
    OperationCounts,
    Posting,
    QueueSource,
    SignalMode,
)
from efaprof.trace.layers import DispatchPath, Layer


def test_arguments_name_every_option_of_the_program():
    options = DispatchOptions(
        provider="shm", ranks=3, threads=3, compute_us=7, signal=SignalMode.FENCE_BATCH, experts=12,
        inject=(Injection(Layer.PROXY, 200_000), Injection(Layer.RX, 5)),
    )  # fmt: skip
    words = options.arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given["--provider"], given["--ranks"], given["--threads"]) == ("shm", "3", "3")
    assert (given["--compute-us"], given["--signal"], given["--experts"]) == ("7", "fence-batch", "12")
    assert [words[i + 1] for i, word in enumerate(words) if word == "--inject"] == ["proxy=200000ns", "rx=5ns"]
    assert "auto" in DispatchOptions().arguments()


def test_the_dense_path_is_told_only_what_means_something_to_it():
    options = DispatchOptions(path=DispatchPath.DENSE, provider="auto", ranks=3, experts=12, late=(Lateness(1, 5_000),))
    words = options.arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given["--ranks"], given["--provider"], given["--late"]) == ("3", "auto", "1=5000ns")
    assert "--ring" not in given
    assert "--window" not in given
    # To each peer a gather and a scatter a layer, whatever the routing says.
    assert {counts.total for counts in options.step_counts(7)} == {2 * 2 * options.layers}
    assert DispatchOptions.from_fingerprint(json.loads(json.dumps(options.fingerprint()))) == options


POSTED: dict[str, Any] = {"path": DispatchPath.GDAKI, "provider": "efa-direct"}


def test_proxies_are_named_where_there_are_several():
    options = DispatchOptions(proxies=2)
    words = options.arguments()
    assert words[words.index("--proxies") + 1] == "2"
    assert "--proxies" not in DispatchOptions().arguments()
    assert "proxies" not in DispatchOptions().fingerprint()  # runs of before there was the option are comparable
    assert DispatchOptions.from_fingerprint(json.loads(json.dumps(options.fingerprint()))) == options
    assert DispatchOptions.from_fingerprint(DispatchOptions().fingerprint()) == DispatchOptions()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"proxies": 5}, "there are 4 channels"),
        ({"proxies": 9, "channels": 16}, "--proxies 9 is not from 1 to 8"),
        ({"proxies": 0}, "--proxies 0 is not from 1 to 8"),
        (POSTED | {"proxies": 2}, "--path gdaki has no proxies"),
        ({"path": DispatchPath.DENSE, "provider": "gloo", "proxies": 2}, "--path dense has no proxies"),
    ],
)
def test_proxies_that_cannot_be_are_refused_by_name(options, said):
    with pytest.raises(UsageError) as caught:
        DispatchOptions(**options)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_kernel_that_posts_by_itself_says_how():
    posting = Posting(queues=QueueSource.VERBS, completion=Completion.COUNTER, batch=4, send_queue=32)
    options = DispatchOptions(**POSTED, signal=SignalMode.FENCE, posting=posting)
    words = options.arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given["--path"], given["--queues"], given["--completion"]) == ("gdaki", "verbs", "counter")
    assert (given["--batch"], given["--send-queue"]) == ("4", "32")
    assert "--send-queue" not in DispatchOptions(**POSTED).arguments()
    assert "--path" not in DispatchOptions().arguments()
    fingerprint = json.loads(json.dumps(options.fingerprint()))
    assert fingerprint["posting"] == {"queues": "verbs", "completion": "counter", "batch": 4, "send_queue": 32}
    assert DispatchOptions.from_fingerprint(fingerprint) == options
    assert "posting" not in DispatchOptions().fingerprint()  # runs of before there was such a path are comparable


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (POSTED | {"provider": "tcp"}, "not through provider tcp"),
        (POSTED | {"inject": (Injection(Layer.RING, 1),)}, "nothing can be injected into ring on path gdaki"),
        (POSTED | {"posting": Posting(completion=Completion.COUNTER)}, "reads no completion queue"),
        ({"posting": Posting(batch=2)}, "only a kernel that posts by itself has such queues"),
    ],
)
def test_what_a_kernel_that_posts_by_itself_cannot_have_is_refused(options, said):
    with pytest.raises(UsageError, match=said) as error:
        DispatchOptions(**options)
    assert error.value.hint


def test_nothing_can_be_injected_into_a_layer_that_has_no_operations():
    with pytest.raises(UsageError, match="compute"):
        Injection(Layer.COMPUTE, 1)


def test_the_fingerprint_is_json_leaves_out_the_number_of_steps_and_leads_back():
    options = DispatchOptions(ranks=4, inject=(Injection(Layer.NIC, 1000),), signal=SignalMode.FENCE, threads=2)
    fingerprint = json.loads(json.dumps(options.fingerprint()))
    assert fingerprint["inject"] == {"nic": 1000}
    assert not {"steps", "warmup"} & fingerprint.keys()
    assert DispatchOptions(ranks=4, steps=7).fingerprint() == DispatchOptions(ranks=4, steps=9).fingerprint()
    assert DispatchOptions.from_fingerprint({"cpus": 2, **fingerprint}) == options
    assert DispatchOptions.from_fingerprint({"cpus": 2}) is None


def test_the_kernel_is_always_called_emulated_and_a_nic_that_is_none_too():
    assert DispatchOptions(provider="efa-direct").emulated() == ("kernel: a CPU thread",)
    assert DispatchOptions(provider="shm").emulated() == ("kernel: a CPU thread", "nic: provider shm on one host")


def test_fixed_operations_follow_from_the_shape():
    # Per layer and peer: a barrier and a tail per channel in each phase, two notices.
    options = DispatchOptions(ranks=4, layers=5, channels=16, experts=16, tokens=3)
    for counts in options.step_counts(0):
        assert (counts.barrier, counts.notify, counts.signal) == (2 * 3 * 5, 2 * 3 * 5, 2 * 3 * 5 * 16)


def test_puts_are_bounded_by_routing_and_balance_over_the_ranks():
    # With as many choices as experts every token goes everywhere: one put out per peer, one sum back.
    everywhere = DispatchOptions(ranks=3, layers=2, tokens=5, topk=6, experts=6)
    assert [counts.put for counts in everywhere.step_counts(9)] == [2 * (5 * 2 + 5 * 2)] * 3
    # In all, each token that travels costs one put out and one back.
    options = DispatchOptions(ranks=4, layers=3, tokens=6, topk=2, experts=8)
    assert sum(counts.put for counts in options.step_counts(1)) % 2 == 0


def test_counts_of_a_run_are_those_of_its_steps():
    options = DispatchOptions(ranks=3, layers=2, tokens=4, experts=12, steps=4, warmup=2)
    steps = [options.step_counts(step) for step in range(6)]
    for rank, counts in enumerate(options.run_counts()):
        assert counts == OperationCounts(
            *(sum(getattr(step[rank], kind) for step in steps) for kind in ("put", "notify", "signal", "barrier"))
        )
        assert counts.total == sum(step[rank].total for step in steps)


def test_an_installation_without_the_program_says_what_to_install(monkeypatch):
    def missing(name: str):
        raise EfaprofError(f"{name} is not part of this installation of efaprof")

    monkeypatch.delenv("EFAPROF_LIB_DIR", raising=False)
    monkeypatch.setattr(dispatch.native, "lib_path", missing)
    with pytest.raises(EfaprofError, match="libfabric was not there") as caught:
        dispatch.binary()
    assert "libfabric-dev" in (caught.value.hint or "")


def test_a_developer_is_told_which_file_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("EFAPROF_LIB_DIR", str(tmp_path))
    with pytest.raises(EfaprofError, match=f"{tmp_path}/efaprof-dispatch does not exist"):
        dispatch.binary()
