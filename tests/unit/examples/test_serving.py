"""The example server's scheduler and requests, and the load's outcomes, without ranks."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("batching", "load", "moe_rank", "serve"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def sequence(prompt, most):
    import batching

    return batching.Sequence(list(prompt), most)


def served(batcher, sequences):
    """Steps until all are answered; every token that is wanted is the position it stands on."""
    steps = []
    for one in sequences:
        batcher.add(one)
    while batcher.has_work:
        steps.append(batcher.next_step())
        found = [[step.work.positions[row] for row in step.work.wanted] for step in steps[-1]]
        batcher.take(found)
    return steps


def test_prompts_go_first_in_chunks_and_every_token_has_its_place():
    import batching

    batcher = batching.Batcher(ranks=2, slots=2, tokens=4)
    many = [sequence(range(length), 3) for length in (1, 6, 4)]
    steps = served(batcher, many)
    assert [step[0].kind for step in steps] == ["prefill", "prefill", "decode", "decode"]
    assert [one.made for one in many] == [[0, 1, 2], [5, 6, 7], [3, 4, 5]]
    for step in steps:
        assert {(one.number, one.kind, one.accepted) for one in step} == {
            (step[0].number, step[0].kind, step[0].accepted)
        }
        for work in (one.work for one in step):
            assert len(work.tokens) == len(work.slots) == len(work.positions) <= 4
    assert [one.work.tokens for one in steps[0]] == [(0, 0, 1, 2), (0, 1, 2, 3)]
    assert [one.accepted for one in (step[0] for step in steps)] == [1, 2, 3, 3]


def test_sequences_wait_for_a_slot_and_slots_are_used_again():
    import batching

    batcher = batching.Batcher(ranks=2, slots=1, tokens=4)
    many = [sequence([7], 2 + number) for number in range(5)]
    steps = served(batcher, many)
    assert [len(one.made) for one in many] == [2, 3, 4, 5, 6]
    assert all(set(one.work.slots) <= {0} for step in steps for one in step)
    assert max(len(one.work.tokens) for step in steps for one in step) == 1


def test_a_sequence_whose_client_is_gone_gives_its_slot_back():
    import batching

    batcher = batching.Batcher(ranks=1, slots=1, tokens=4)
    gone, next_one = sequence([1, 2], 50), sequence([3], 2)
    batcher.add(gone)
    batcher.next_step()
    batcher.take([[1]])
    gone.is_dropped = True
    served(batcher, [next_one])
    assert len(gone.made) == 2
    assert len(next_one.made) == 2


def test_a_pause_has_a_number_of_its_own():
    import batching

    batcher = batching.Batcher(ranks=2, slots=1, tokens=4)
    numbers = [batcher.pause()[0].number, *(step[0].number for step in served(batcher, [sequence([1], 2)]))]
    assert numbers == [0, 1, 2]
    assert [one.kind for one in batcher.pause()] == [None, None]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "text or a list"),
        ({"prompt": ""}, "not empty"),
        ({"prompt": [1, 256]}, "numbers below 256"),
        ({"prompt": ["a"]}, "numbers below 256"),
        ({"prompt": "a", "max_tokens": 0}, "at least 1"),
        ({"prompt": "a", "max_tokens": "4"}, "at least 1"),
        ({"prompt": "a" * 250, "max_tokens": 7}, "more than 256 tokens"),
    ],
)
def test_what_cannot_be_answered_is_a_bad_request(asked, said):
    import serve

    with pytest.raises(serve.BadRequest, match=said):
        serve.Server(None, serve.Shape())._sequence(asked)


def load_against(tmp_path, answer):
    """Outcomes and exports of three requests to a server that answers so."""
    import load

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asked = load.Load(
            host="127.0.0.1", port=port, model="m", concurrency=2, requests=3, warmup=0, isl=4, osl=2, seed=1,
            timeout_s=20.0,
        )  # fmt: skip
        outcomes = await load.run(asked, 0, 3)
        server.close()
        await server.wait_closed()
        load.export(asked, outcomes, [], load.datetime.now(load.UTC), tmp_path)
        return outcomes

    outcomes = asyncio.run(run())
    records = [json.loads(line) for line in (tmp_path / "profile_export.jsonl").read_text().splitlines()]
    return outcomes, records


def event(text):
    return f"data: {json.dumps({'choices': [{'text': text}]})}\n\n".encode()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def test_an_answer_is_timed_chunk_by_chunk(tmp_path):
    outcomes, records = load_against(tmp_path, HEAD + event("a") + event("b") + b"data: [DONE]\n\n")
    assert [(one.text, one.error, len(one.measured.gaps_ms)) for one in outcomes] == [("ab", None, 1)] * 3
    assert [one["metrics"]["output_sequence_length"]["value"] for one in records] == [2, 2, 2]
    assert (tmp_path / "profile_export_aiperf.json").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (HEAD + event("a") + b"data: [DONE]\n\n", "the stream ended after 1 of 2 tokens"),
        (HEAD + event("a"), "the stream ended after 1 of 2 tokens"),
        (b"HTTP/1.1 500 Oh\r\n\r\nbroken", "HTTP/1.1 500 Oh: broken"),
        (b"", "0 bytes read"),
    ],
)
def test_a_request_that_was_not_answered_in_full_is_exported_as_failed(tmp_path, answer, said):
    outcomes, records = load_against(tmp_path, answer)
    assert all(said in str(one.error) for one in outcomes)
    assert [said in one["error"]["message"] for one in records] == [True] * 3
    assert not (tmp_path / "profile_export_aiperf.json").exists()


@pytest.mark.parametrize(
    ("words", "has_graphs"),
    [([], False), (["--device", "cuda"], True), (["--device", "cuda", "--eager"], False), (["--eager"], False)],
)
def test_decode_is_by_graphs_on_a_gpu_unless_it_is_not_wanted(words, has_graphs, monkeypatch):
    import serve

    monkeypatch.setattr(sys, "argv", ["serve.py", *words])
    assert serve._options().cuda_graphs is has_graphs


@pytest.mark.parametrize("words", [["--cuda-graphs"], ["--device", "cuda", "--cuda-graphs", "--eager"]])
def test_graphs_where_there_can_be_none_are_refused(words, monkeypatch, capsys):
    import serve

    monkeypatch.setattr(sys, "argv", ["serve.py", *words])
    with pytest.raises(SystemExit):
        serve._options()
    assert "--cuda-graphs" in capsys.readouterr().err
