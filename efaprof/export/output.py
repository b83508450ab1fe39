"""The file that an export writes: complete or absent, compressed when asked or when it grows large."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

COMPRESS_ABOVE_BYTES = 50_000_000
GZIP_LEVEL = 1  # four times smaller at a fraction of the time of level 6
_COPY_BYTES = 1 << 20


class OutputFile:
    """Bytes go to a hidden draft beside the target, which takes its place on a clean exit and vanishes otherwise.

    A target named .gz is compressed; with `may_compress` so is one that passes COMPRESS_ABOVE_BYTES, and `path` then
    ends with .gz.
    """

    def __init__(self, path: Path, *, may_compress: bool = False, force: bool = False) -> None:
        self.path = path
        self.size_bytes = 0  # before compression
        self._may_compress = may_compress and path.suffix != ".gz"
        self._force = force
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._out: BinaryIO

    def __enter__(self) -> OutputFile:
        taken = [path for path in self._candidates() if path.exists()]
        if taken and not self._force:
            raise UsageError(f"{taken[0]} exists", hint="write it anew with -f, or choose another -o")
        if self.path.is_dir():
            raise UsageError(f"{self.path} is a directory", hint="give a file name with -o")
        try:
            self._out = self._open(compressed=self.path.suffix == ".gz")
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}", hint="choose another -o") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._out.close()
            if kind is None:
                for path in self._candidates():
                    path.unlink(missing_ok=True)  # of an earlier export, compressed or not
                self._draft.replace(self.path)
        except OSError as failed:
            raise self._disk_error(failed) from failed
        finally:
            self._draft.unlink(missing_ok=True)

    def write(self, data: memoryview | bytes, /) -> None:
        """Append bytes."""
        try:
            self._out.write(data)
            self.size_bytes += len(data)
            if self._may_compress and self.size_bytes > COMPRESS_ABOVE_BYTES:
                self._compress()
        except OSError as error:
            raise self._disk_error(error) from error

    def _candidates(self) -> list[Path]:
        """Names that the file may end up with."""
        return [self.path, self.path.with_name(self.path.name + ".gz")] if self._may_compress else [self.path]

    def _open(self, *, compressed: bool) -> BinaryIO:
        if compressed:
            return cast("BinaryIO", gzip.GzipFile(self._draft, "wb", compresslevel=GZIP_LEVEL, mtime=0))
        return self._draft.open("wb")

    def _compress(self) -> None:
        """Go on in a compressed file, what was written first."""
        self._out.close()
        plain = self._draft
        self._draft = plain.with_name(plain.name + ".gz")
        self._out = self._open(compressed=True)
        with plain.open("rb") as written:
            shutil.copyfileobj(written, self._out, _COPY_BYTES)
        plain.unlink()
        self._may_compress = False
        self.path = self.path.with_name(self.path.name + ".gz")

    def _disk_error(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self.path} cannot be written: {error.strerror}", hint="free space, or choose another place with -o"
        )
