"""efaprof/trace/layout.py against format.h, field by field, through a C program that prints what the compiler sees."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from efaprof.trace import layout
from efaprof.trace.layout import Clock, ObjectKind, OpClass, Shape

REPO = Path(__file__).resolve().parents[3]
STRUCTS = {"HEADER": "header", "HEAD": "head", "CQE": "cqe", **{s.name: s.name.lower() for s in layout.RECORDS}}
STRUCTS["CLOCK"] = "clock_sample"
HEAD_FIELDS = layout.HEAD.names or ()


def dtype_of(name: str) -> np.dtype:
    return getattr(layout, name)


def member(name: str, field: str) -> str:
    return f"h.{field}" if name not in ("HEADER", "HEAD", "CQE") and field in HEAD_FIELDS else field


def function_name(cls: OpClass, function: str) -> str:
    if cls is OpClass.ATOMIC:
        return f"EFAPROF_FN_A{function.upper()}"
    if cls is OpClass.RMA and function.startswith("inject"):
        return f"EFAPROF_FN_RMA_{function.upper()}"
    return f"EFAPROF_FN_{function.upper()}"


def expressions() -> dict[str, int]:
    """C expression → what the Python mirror says it is."""
    wanted: dict[str, int] = {
        "EFAPROF_MAGIC": layout.MAGIC,
        "EFAPROF_FORMAT_VERSION": layout.FORMAT_VERSION,
        "EFAPROF_SLOT_BYTES": layout.SLOT_BYTES,
        "EFAPROF_HEADER_BYTES": layout.HEADER_BYTES,
        "EFAPROF_NAME_MAX": layout.NAME_MAX,
        "EFAPROF_CQ_MAX": layout.CQ_MAX,
        "EFAPROF_RINGS_APART": layout.RINGS_APART,
        "EFAPROF_OBJ_CLOSED": layout.CLOSED,
        "EFAPROF_CQ_IDLE": layout.CQ_IDLE,
        "EFAPROF_EVERY_STREAM": layout.EVERY_STREAM,
    }
    for name, struct in STRUCTS.items():
        dtype = dtype_of(name)
        wanted[f"sizeof(struct efaprof_{struct})"] = dtype.itemsize
        for field, (kind, at, *_) in (dtype.fields or {}).items():
            path = member(name, field)
            wanted[f"offsetof(struct efaprof_{struct}, {path})"] = at
            wanted[f"sizeof(((struct efaprof_{struct} *)0)->{path})"] = kind.itemsize
    wanted |= {f"EFAPROF_SHAPE_{shape.name}": shape for shape in Shape}
    wanted |= {f"EFAPROF_CLOCK_{clock.name}": clock for clock in Clock}
    wanted |= {f"EFAPROF_OBJ_{kind.name}": kind for kind in ObjectKind}
    wanted |= {f"EFAPROF_OP_{cls.name}": cls for cls in OpClass}
    wanted |= {f"EFAPROF_SPAN_{kind.name}": kind for kind in layout.Span}
    wanted |= {f"EFAPROF_DEVICE_{kind.name}": kind for kind in layout.Device}
    wanted |= {f"EFAPROF_SOURCE_{source.name}": source for source in layout.Source}
    wanted |= {f"EFAPROF_STEP_{kind.name}": kind for kind in layout.AnnotatedStep}
    wanted |= {f"EFAPROF_PAYLOAD_{kind.name}": kind for kind in layout.Payload}
    for cls, functions in layout.OP_FUNCTIONS.items():
        if cls is not OpClass.EP:
            wanted |= {function_name(cls, function): at for at, function in enumerate(functions)}
    for shape, dtype in layout.RECORDS.items():
        wanted[f"efaprof_slots(EFAPROF_KIND({shape:#x}, 1), 0)"] = dtype.itemsize // layout.SLOT_BYTES
    wanted[f"efaprof_slots(EFAPROF_KIND({Shape.NAME:#x}, 0), 33)"] = 3
    wanted[f"efaprof_slots(EFAPROF_KIND({Shape.NAME:#x}, 0), {layout.NAME_MAX + 1})"] = 0
    wanted[f"efaprof_slots(EFAPROF_KIND({Shape.CQ:#x}, 1), {layout.CQ_MAX})"] = 1 + layout.CQ_MAX
    wanted[f"efaprof_slots(EFAPROF_KIND({Shape.CQ:#x}, 1), {layout.CQ_MAX + 1})"] = 0
    wanted["efaprof_slots(EFAPROF_PAD, 7)"] = 7
    wanted["efaprof_slots(0, 7)"] = 0
    return wanted


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("layout")
    lines = [
        f'printf("%s\\n  \\"%s\\": %llu", comma, "{e}", (unsigned long long)({e})); comma = ",";' for e in expressions()
    ]
    source = folder / "layout.c"
    body = "\n    ".join(lines)
    source.write_text(
        "#include <efaprof/drain.h>\n#include <efaprof/trace.h>\n#include <stdio.h>\n"
        f'int main(void) {{\n    const char *comma = "{{";\n    {body}\n    puts("}}");\n    return 0;\n}}\n'
    )
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{REPO}/native/include"]
    subprocess.run([compiler, *flags, source, "-o", folder / "layout"], check=True)
    printed = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout
    return json.loads(printed)


def test_the_mirror_says_what_the_compiler_says(compiled: dict[str, int]) -> None:
    wrong = {e: (compiled[e], int(says)) for e, says in expressions().items() if compiled[e] != says}
    assert wrong == {}, "C expression: (compiler, layout.py)"


def test_every_record_of_the_header_is_mirrored() -> None:
    text = (REPO / "native/include/efaprof/format.h").read_text()
    structs = {
        line.split()[1].removeprefix("efaprof_") for line in text.splitlines() if line.startswith("struct efaprof_")
    }
    assert structs == set(STRUCTS.values())


def test_the_magic_reads_efr1() -> None:
    assert layout.MAGIC.to_bytes(4, "little") == b"EFR1"


@pytest.mark.parametrize("text", [b"", b"a", b"efa-direct", bytes(range(128)), b"x" * 300])
def test_name_ids_agree_with_native_code(text: bytes) -> None:
    from efaprof import native

    assert native.name_id(text) == layout.name_id(text)
