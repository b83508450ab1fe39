from __future__ import annotations

import errno
import gzip
from pathlib import Path

import pytest

from efaprof.errors import UsageError
from efaprof.export import output
from efaprof.export.output import OutputFile


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(output, "COMPRESS_ABOVE_BYTES", 100)


def write(path: Path, *blocks: bytes, **options: bool) -> Path:
    with OutputFile(path, **options) as out:
        for block in blocks:
            out.write(block)
    return out.path


def test_the_file_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "trace.pftrace"
    with OutputFile(target) as out:
        out.write(b"abc")
        assert not target.exists()
        out.write(memoryview(b"def"))
    assert target.read_bytes() == b"abcdef"
    assert list(tmp_path.iterdir()) == [target]
    assert out.size_bytes == 6


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "trace.pftrace"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="half way"), OutputFile(target, force=True) as out:
        out.write(b"new")
        raise RuntimeError("half way")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_that_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pftrace.gz", b"x" * 1000)
    assert gzip.decompress(path.read_bytes()) == b"x" * 1000


def test_a_large_file_is_compressed_when_it_may_be(tmp_path: Path, small_limit) -> None:
    path = write(tmp_path / "a.pftrace", b"x" * 90, b"y" * 90, b"z" * 90, may_compress=True)
    assert path.name == "a.pftrace.gz"
    assert gzip.decompress(path.read_bytes()) == b"x" * 90 + b"y" * 90 + b"z" * 90
    assert list(tmp_path.iterdir()) == [path]


def test_a_large_file_keeps_the_name_that_was_asked_for(tmp_path: Path, small_limit) -> None:
    path = write(tmp_path / "a.pftrace", b"x" * 900)
    assert path.read_bytes() == b"x" * 900


def test_a_new_export_replaces_the_other_form_of_an_earlier_one(tmp_path: Path, small_limit) -> None:
    write(tmp_path / "a.pftrace", b"x" * 900, may_compress=True)
    path = write(tmp_path / "a.pftrace", b"x", may_compress=True, force=True)
    assert list(tmp_path.iterdir()) == [path]
    assert path.name == "a.pftrace"


@pytest.mark.parametrize("existing", ["a.pftrace", "a.pftrace.gz"])
def test_what_exists_is_kept_without_force(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"old")
    with pytest.raises(UsageError, match="exists") as raised:
        write(tmp_path / "a.pftrace", b"x", may_compress=True)
    assert "-f" in raised.value.hint
    assert (tmp_path / existing).read_bytes() == b"old"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        write(tmp_path, b"x", force=True)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none/a\.pftrace cannot be written: No such file"):
        write(tmp_path / "none" / "a.pftrace", b"x")


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    with pytest.raises(UsageError, match="No space left") as raised, OutputFile(tmp_path / "a.pftrace") as out:
        out._out.close()
        monkeypatch.setattr(out, "_out", Full())
        out.write(b"x")
    assert "free space" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
