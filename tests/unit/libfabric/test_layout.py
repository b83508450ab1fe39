"""The structs that the binding declares, against the compiler's view of libfabric's own headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from efaprof.libfabric.cdef import APPENDED_TO_DOMAIN, ffi

STRUCTS = {
    "fi_tx_attr": (), "fi_rx_attr": (), "fi_ep_attr": (), "fi_domain_attr": (), "fi_fabric_attr": (), "fi_info": (),
    "fi_device_attr": (), "fi_link_attr": (), "fid": (), "fid_nic": (), "fi_cq_tagged_entry": (),
}  # fmt: skip


def include_dirs() -> list[Path]:
    """Folders with libfabric's headers: the system's, and others that a developer names."""
    named = [Path(one) for one in os.environ.get("EFAPROF_TEST_FABRIC_INCLUDES", "").split(":") if one]
    return [one for one in (Path("/usr/include"), Path("/opt/amazon/efa/include"), *named) if (one / "rdma").is_dir()]


def version_of(folder: Path) -> tuple[int, int]:
    text = (folder / "rdma" / "fabric.h").read_text()
    major, minor = (re.search(rf"FI_{part}_VERSION (\d+)", text) for part in ("MAJOR", "MINOR"))
    assert major is not None
    assert minor is not None
    return int(major[1]), int(minor[1])


@pytest.fixture(params=include_dirs() or [None], ids=str)
def headers(request) -> Path:
    if request.param is None or shutil.which("gcc") is None:
        pytest.skip("no libfabric headers or no gcc (apt install libfabric-dev gcc)")
    if not (request.param / "rdma" / "fabric.h").is_file():
        pytest.skip(f"no libfabric headers in {request.param} (apt install libfabric-dev)")
    return request.param


def test_every_field_lies_where_the_compiler_puts_it(headers, tmp_path):
    version = version_of(headers)
    absent = {name for name, since in APPENDED_TO_DOMAIN.items() if version < since}
    fields = [
        (struct, field)
        for struct in STRUCTS
        for field, _ in ffi().typeof(f"struct {struct}").fields
        if not (struct == "fi_domain_attr" and field in absent)
    ]
    lines = [
        f'printf("%zu %zu\\n", offsetof(struct {struct}, {field}), sizeof(((struct {struct} *)0)->{field}));'
        for struct, field in fields
    ]
    source = tmp_path / "layout.c"
    includes = "\n".join(f"#include <{name}>" for name in ("stddef.h", "stdio.h", "rdma/fabric.h", "rdma/fi_eq.h"))
    source.write_text(f"{includes}\nint main(void) {{\n{chr(10).join(lines)}\nreturn 0; }}\n")
    program = tmp_path / "layout"
    subprocess.run(["gcc", "-w", "-isystem", str(headers), "-o", str(program), str(source)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    compiled = {one: tuple(map(int, line.split())) for one, line in zip(fields, said, strict=True)}
    declared = {}
    for struct, field in fields:
        kind = dict(ffi().typeof(f"struct {struct}").fields)[field]
        declared[struct, field] = (kind.offset, ffi().sizeof(kind.type))
    assert declared == compiled


def test_flag_values_are_the_headers(headers, tmp_path):
    from efaprof.libfabric import AddrFormat, AtomicKind, Cap, EpType, Mode, MrMode, Op, Order, Protocol, Threading

    newest = version_of(headers) >= (2, 0)
    prefixes = {Cap: "FI_", Mode: "FI_", Op: "FI_", Order: "FI_ORDER_", MrMode: "FI_MR_", EpType: "FI_EP_",
                Threading: "FI_THREAD_", Protocol: "FI_PROTO_", AtomicKind: "FI_"}  # fmt: skip
    renamed = {"FI_BASE", "FI_NONE", "FI_ORDER_NONE", "FI_MR_NONE", "FI_PROTO_COLL", "FI_DATA", "FI_ORDER_DATA"}
    spelled = {"FETCH": "FI_FETCH_ATOMIC", "COMPARE": "FI_COMPARE_ATOMIC"}
    known = (
        "".join(path.read_text() for path in sorted((headers / "rdma").glob("fi*.h")))
        + (headers / "rdma" / "fabric.h").read_text()
    )
    pairs = []
    for words, prefix in prefixes.items():
        for member in words.__members__.values():
            name = spelled.get(member.name, prefix + member.name)
            # A name is checked where the headers have it, live: newer ones are missing in old headers, and back.
            if name not in renamed and re.search(rf"^(#define\s+|\t){name}\b", known, re.MULTILINE):
                pairs.append((name, int(member)))
    for member in AddrFormat:
        name = f"FI_{member.name}" if member.name.startswith("SOCKADDR") else f"FI_ADDR_{member.name}"
        if re.search(rf"^\t{name}\b", known, re.MULTILINE):
            pairs.append((name, int(member)))
    assert len(pairs) > (110 if newest else 100)
    source = tmp_path / "flags.c"
    names = ("stdio.h", "rdma/fabric.h", "rdma/fi_domain.h", "rdma/fi_atomic.h", "rdma/fi_eq.h")
    includes = "\n".join(f"#include <{name}>" for name in names)
    lines = "\n".join(f'printf("%llu\\n", (unsigned long long)({name}));' for name, _ in pairs)
    source.write_text(f"{includes}\nint main(void) {{\n{lines}\nreturn 0; }}\n")
    program = tmp_path / "flags"
    subprocess.run(["gcc", "-w", "-isystem", str(headers), "-o", str(program), str(source)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    removed = {"FI_VARIABLE_MSG", "FI_NOTIFY_FLAGS_ONLY", "FI_RESTRICTED_COMP", "FI_EP_SOCK_STREAM"}  # defined as 0 now
    wrong = [(n, v, int(s)) for (n, v), s in zip(pairs, said, strict=True) if v != int(s) and n not in removed]
    assert wrong == []


def test_a_context_has_the_room_that_fi_context2_has(headers, tmp_path):
    source = tmp_path / "context.c"
    source.write_text('#include <rdma/fabric.h>\n_Static_assert(sizeof(struct fi_context2) == 64, "");\n')
    subprocess.run(["gcc", "-w", "-isystem", str(headers), "-c", "-o", os.devnull, str(source)], check=True)
    assert ffi().sizeof("struct efaprof_fi_context") == 64
