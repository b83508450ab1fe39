"""Dispatch runs that cannot be, or that end badly: one line that says why, a code, nobody left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from dispatch_runs import drain, finish, run, start
from raw_files import read_raw
from recording import wait_until

from efaprof.instrument.dispatch import DispatchOptions, SignalMode
from efaprof.trace.layout import HEADER

SMALL = DispatchOptions(layers=2, tokens=4, hidden=64, steps=5, warmup=1, compute_us=0)
LONG = DispatchOptions(layers=2, tokens=4, hidden=64, steps=1_000_000, warmup=0, compute_us=0, threads=2)


def small(**changes) -> DispatchOptions:
    return DispatchOptions(
        **{"layers": 2, "tokens": 4, "hidden": 64, "steps": 5, "warmup": 1, "compute_us": 0, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"topk": 20}, "--topk 20 is more than the 16 experts"),
        ({"ranks": 3}, "--experts 16 cannot be shared out evenly over 3 ranks"),
        ({"provider": "nosuch"}, "offers no provider nosuch here; it has: "),
        ({"hidden": 1 << 30}, "a token of 4294967360 bytes is over the limit of a command"),
        ({"tokens": 65_536, "hidden": 1 << 24}, "are over the reach of a command, 64 GiB"),
        ({"channels": 255}, "--channels must be a whole number from 1 to 254, not 255"),
        ({"ring": 1000}, "--ring must be a power of two, not 1000"),
        ({"window": 512}, "--window must be a whole number from 1 to 256, not 512"),
        ({"steps": 0}, "--steps must be a whole number from 1 "),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(changes, said):
    done = run(small(**changes))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("efaprof-dispatch: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--inject", "wire=1us"], "--inject must be LAYER=TIME"),
        (["--inject", "proxy"], "--inject must be LAYER=TIME"),
        (["--inject", "proxy=5"], "--inject must be a time up to 60s, such as 200us, not 5"),
        (["--inject", "proxy=-5us"], "--inject must be a time"),
        (["--inject", "rx=2000s"], "--inject must be a time"),
        (["--late", "1"], "--late must be RANK=TIME"),
        (["--late", "-1=1us"], "--late must be RANK=TIME"),
        (["--late", "9=1us"], "--late 9=…: there are 2 ranks"),
        (["--late", "1=1"], "--late must be a time up to 60s"),
        (["--signal", "flag"], "--signal must be imm, fence or fence-batch, not flag"),
        (["--threads", "4"], "--threads must be a whole number from 2 to 3, not 4"),
        (["--nonsense"], "--nonsense is not an option"),
        (["--seed"], "--seed needs a value"),
        (["extra"], "extra is not an option"),
    ],
)
def test_a_wrong_word_is_named(words, said):
    done = run(SMALL, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_provider_without_remote_writes_is_told_from_an_absent_one(monkeypatch):
    monkeypatch.setenv("FI_PROVIDER", "^ofi_rxd")  # what else would put reliability and remote writes on top
    done = run(small(provider="udp"))
    assert done.returncode == 2
    assert done.stderr == (
        "efaprof-dispatch: provider udp cannot do remote writes (FI_RMA) on reliable datagram endpoints here\n"
    )


@pytest.mark.parametrize(("limit", "is_refused"), [(321, False), (320, False), (319, True), (1, True)])
def test_a_token_over_the_providers_own_limit_is_refused(limit, is_refused, build_dir, monkeypatch):
    """Every provider here takes any size; its libfabric is told of a limit on the way."""
    monkeypatch.setenv("LD_PRELOAD", str(build_dir / "fakes/libsmall_limit.so"))
    monkeypatch.setenv("EFAPROF_TEST_LIMIT", str(limit))
    done = run(small(hidden=64))
    assert done.returncode == (2 if is_refused else 0)
    if is_refused:
        assert done.stderr == (
            f"efaprof-dispatch: a token of 320 bytes is over the limit of provider tcp;ofi_rxm, {limit} bytes: "
            "lower --hidden\n"
        )


def test_immediates_are_refused_where_the_provider_carries_none():
    done = run(small(), "--no-imm")
    assert done.returncode == 2
    assert "carries no immediate data: use --signal fence or fence-batch" in done.stderr


@pytest.mark.parametrize("provider", ["tcp", "shm"])
@pytest.mark.parametrize("mode", list(SignalMode))
def test_a_flipped_bit_fails_the_run_and_names_the_token(provider, mode, tmp_path):
    process = start(small(provider=provider, signal=mode), "--corrupt", "3", rings=tmp_path)
    done = finish(process)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("efaprof-dispatch: rank 0: data does not verify: step 3 layer 0 rank 0 token ")
    assert "the reference is " in done.stderr
    assert all(read_raw(path).producer == "dispatch" for path in drain(tmp_path))


def ranks_of(process) -> dict[str, int]:
    """Process id of each rank that has taken its name."""
    names = {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            name = Path(f"/proc/{child}/comm").read_text().strip()
            if name.startswith("lane"):
                names[name] = int(child)
    return names


def running(pids) -> list[int]:
    """Those that still run; a zombie whose parent is gone does not."""
    alive = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            alive.append(pid)
    return alive


def started(options: DispatchOptions, folder: Path):
    """A long run under way: both threads of every rank have recorded steps."""
    process = start(options, rings=folder)
    ranks = wait_until(lambda: len(found := ranks_of(process)) == options.ranks and found)
    wait_until(lambda: len(busy_rings(folder / "rings")) == 2 * options.ranks)
    return process, ranks


def busy_rings(folder: Path) -> list[Path]:
    """Rings that hold a few steps' worth of records."""
    found = []
    for path in folder.iterdir():
        with path.open("rb") as file:
            header = file.read(HEADER.itemsize)
        if len(header) == HEADER.itemsize and int(np.frombuffer(header, HEADER)[0]["head"]) > 200:
            found.append(path)
    return found


@pytest.mark.parametrize("provider", ["tcp", "shm"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_stops_the_others_and_is_named(provider, victim, tmp_path):
    process, ranks = started(DispatchOptions(**{**fields(LONG), "provider": provider}), tmp_path)
    os.kill(ranks[f"lane{victim}"], signal.SIGKILL)
    begun = time.monotonic()
    done = finish(process)
    assert time.monotonic() - begun < 30  # "within seconds", on a machine with other things to do
    assert done.returncode == 1
    assert done.stderr == (
        f"efaprof-dispatch: rank {victim} (pid {ranks[f'lane{victim}']}) was killed by signal 9 (Killed);"
        " the others were stopped\n"
    )
    assert running(ranks.values()) == []
    assert not [path.name for path in Path("/dev/shm").iterdir() if path.name.split(":")[0] in map(str, ranks.values())]
    files = drain(tmp_path)
    assert len(files) >= 4  # the killed rank's rings too
    assert all(read_raw(path).producer == "dispatch" for path in files)


def test_a_rank_that_hangs_is_killed_with_the_rest(tmp_path):
    process, ranks = started(DispatchOptions(**{**fields(LONG), "ranks": 4}), tmp_path)
    os.kill(ranks["lane2"], signal.SIGSTOP)
    os.kill(ranks["lane3"], signal.SIGKILL)
    done = finish(process)
    assert done.returncode == 1
    assert "rank 3 (pid" in done.stderr
    assert running(ranks.values()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_the_ranks(number, tmp_path):
    process, ranks = started(LONG, tmp_path)
    process.send_signal(number)
    done = finish(process)
    assert done.returncode == 128 + number
    assert done.stderr.startswith(f"efaprof-dispatch: stopped by signal {int(number)} (")
    assert running(ranks.values()) == []


def test_ranks_end_with_a_killed_launcher(tmp_path):
    process, ranks = started(LONG, tmp_path)
    process.kill()
    process.communicate()
    wait_until(lambda: not running(ranks.values()))


def test_a_lane_that_waits_too_long_says_for_whom():
    # With a window of one and an arrival held back longer than the patience, nothing can go on.
    done = run(small(window=1), "--timeout", "1", "--inject", "rx=20s")
    assert done.returncode == 1
    assert "step 0 layer 0: waited 1 s for a barrier (rank " in done.stderr


def fields(options: DispatchOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}
