from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof import env
from efaprof.session.environment import (
    NVTX_INJECTION,
    PROVIDER_PATH,
    Wiring,
    inherited,
    merge_preload,
    preloadable,
    wired,
)

OURS = ("/opt/e/libefaprof-fi.so",)


@pytest.mark.parametrize(
    ("theirs", "merged"),
    [
        ("", "/opt/e/libefaprof-fi.so"),
        ("/a/libj.so", "/opt/e/libefaprof-fi.so:/a/libj.so"),
        ("/a/libj.so /b/libk.so", "/opt/e/libefaprof-fi.so:/a/libj.so /b/libk.so"),
        ("/a/libj.so:/b/libk.so", "/opt/e/libefaprof-fi.so:/a/libj.so:/b/libk.so"),
        ("libasan.so.8:/b/libk.so", "libasan.so.8:/opt/e/libefaprof-fi.so:/b/libk.so"),
        ("/x/libclang_rt.asan-x86_64.so", "/x/libclang_rt.asan-x86_64.so:/opt/e/libefaprof-fi.so"),
        ("/usr/lib/libtsan.so.2 /b/libk.so", "/usr/lib/libtsan.so.2:/opt/e/libefaprof-fi.so:/b/libk.so"),
        ("/opt/e/libefaprof-fi.so:/b/libk.so", "/opt/e/libefaprof-fi.so:/b/libk.so"),
        ("/opt/e/libefaprof-fi.so.bak", "/opt/e/libefaprof-fi.so:/opt/e/libefaprof-fi.so.bak"),
        (" : ", "/opt/e/libefaprof-fi.so"),
    ],
)
def test_the_users_preloads_are_kept(theirs, merged):
    assert merge_preload(OURS, theirs) == merged


@given(st.lists(st.sampled_from(["/a/x.so", "/b/libasan.so.6", "y.so", "/opt/e/libefaprof-fi.so"]), max_size=5),
       st.sampled_from([":", " ", "::", " :"]))  # fmt: skip
def test_merging_keeps_every_library_in_order_and_adds_ours_once(theirs, separator):
    merged = merge_preload(OURS, separator.join(theirs)).replace(" ", ":").split(":")
    named = [word for word in merged if word]
    assert named.count(OURS[0]) == max(theirs.count(OURS[0]), 1)
    assert [word for word in named if word != OURS[0]] == [word for word in theirs if word != OURS[0]]
    assert merge_preload(OURS, ":".join(named)) == ":".join(named)


@pytest.mark.parametrize("folder", ["my project", "a:b"])
def test_a_library_below_a_folder_with_a_separator_is_linked_to(tmp_path, folder):
    library = tmp_path / folder / "libx.so"
    library.parent.mkdir()
    library.touch()
    links = tmp_path / "links"
    links.mkdir()
    for _ in range(2):
        path = preloadable(library, links)
        assert (path, Path(path).resolve()) == (str(links / "libx.so"), library)
    assert preloadable(Path("/plain/libx.so"), links) == "/plain/libx.so"


def wiring(**changes) -> Wiring:
    values = {"run": Path("/r"), "ring_dir": Path("/s"), "spill_dir": Path("/r/rings"), "buffer": None,
              "buffer_total": 99, "preload": OURS} | changes  # fmt: skip
    return Wiring(**values)


def test_the_programs_environment_is_the_users_and_ours():
    base = {"HOME": "/h", "LD_PRELOAD": "/a.so", env.BUFFER: "123", env.RING_DIR: "/outer"}
    result = wired(base, wiring())
    assert result == base | {
        "LD_PRELOAD": f"{OURS[0]}:/a.so", env.RING_DIR: "/s", env.SPILL_DIR: "/r/rings", env.RUN_DIR: "/r",
        env.BUFFER_TOTAL: "99",
    }  # fmt: skip
    assert wired(base, wiring(buffer=4096))[env.BUFFER] == "4096"


OUR_NVTX = Path("/o/libefaprof-nvtx.so")


@pytest.mark.parametrize(
    ("users", "told"),
    [
        ({}, {}),
        ({NVTX_INJECTION: ""}, {}),
        ({NVTX_INJECTION: "/tool.so"}, {env.NVTX_NEXT: "/tool.so"}),
        ({NVTX_INJECTION: "/other/libefaprof-nvtx.so", env.NVTX_NEXT: "/tool.so"}, {}),  # record under record
    ],
)
def test_nvtx_loads_our_library_which_knows_of_the_users_tool(users, told):
    assert wired(users, wiring(preload=(), nvtx=OUR_NVTX)) == {
        **wired(users, wiring(preload=())), NVTX_INJECTION: str(OUR_NVTX), **told
    }  # fmt: skip


def test_steps_are_counted_as_this_recorder_says_not_as_an_outer_one():
    outer = {env.STEPS: "3", env.STEP: "x", env.WARMUP_STEPS: "9"}
    assert wired(outer, wiring(steps={env.STEPS: "5"})) == wired({}, wiring()) | {env.STEPS: "5"}


def test_a_chosen_libfabric_brings_its_own_providers_unless_the_user_named_some(tmp_path):
    library = tmp_path / "libfabric.so.1"
    (tmp_path / "libfabric").mkdir()
    assert wired({}, wiring(libfabric=library))[env.LIBFABRIC] == str(library)
    assert PROVIDER_PATH not in wired({}, wiring(libfabric=library))
    (tmp_path / "libfabric" / "libefa-fi.so").touch()
    assert wired({}, wiring(libfabric=library))[PROVIDER_PATH] == str(tmp_path / "libfabric")
    assert wired({PROVIDER_PATH: "/theirs"}, wiring(libfabric=library))[PROVIDER_PATH] == "/theirs"


def test_without_a_preloaded_probe_the_users_preload_is_not_touched():
    assert "LD_PRELOAD" not in wired({}, wiring(preload=()))
    assert wired({"LD_PRELOAD": " /a.so"}, wiring(preload=()))["LD_PRELOAD"] == " /a.so"


@pytest.mark.parametrize(("given", "expected"), [({}, "None"), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8")])
def test_what_the_interpreter_adds_in_the_c_locale_does_not_reach_the_program(given, expected):
    code = "from efaprof.session.environment import inherited; print(inherited().get('LC_CTYPE'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
    assert inherited() == dict(os.environ)
