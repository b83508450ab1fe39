"""What the binding reads from fi_getinfo, against libfabric's own text of the same structs, and against fi_info."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import fabric_runs
import pytest

# Prints, per entry: libfabric's text, and our values under libfabric's names.
READ = r"""
import json, sys
from dataclasses import fields
from enum import IntEnum
from efaprof import libfabric as fi

PREFIX = {"caps": "FI_", "mode": "FI_", "op_flags": "FI_", "msg_order": "FI_ORDER_", "comp_order": "FI_ORDER_",
          "mr_mode": "FI_MR_", "type": "FI_EP_", "protocol": "FI_PROTO_", "threading": "FI_THREAD_",
          "control_progress": "FI_PROGRESS_", "data_progress": "FI_PROGRESS_", "resource_mgmt": "FI_RM_",
          "av_type": "FI_AV_", "addr_format": "FI_ADDR_"}

def plain(name, value):
    if hasattr(value, "names"):
        return [PREFIX[name] + one for one in value.names]
    if isinstance(value, IntEnum):
        return ("FI_" if value.name.startswith("SOCKADDR") else PREFIX[name]) + value.name
    return value

def all_of(group):
    return {one.name: plain(one.name, getattr(group, one.name)) for one in fields(group)}

library = fi.open(sys.argv[1])
out = []
for info in library.getinfo(mode=fi.Mode(2**64 - 1)):
    out.append({
        "text": library.text(info),
        "fi_info": {"caps": plain("caps", info.caps), "mode": plain("mode", info.mode),
                    "addr_format": plain("addr_format", info.addr_format), "src_addrlen": len(info.src_addr),
                    "dest_addrlen": len(info.dest_addr)},
        "fi_tx_attr": all_of(info.tx), "fi_rx_attr": all_of(info.rx), "fi_ep_attr": all_of(info.ep),
        "fi_domain_attr": all_of(info.domain), "fi_fabric_attr": all_of(info.fabric),
    })
print(json.dumps({"version": library.version, "infos": out}))
"""
NOT_COMPARED = {"src_addr", "dest_addr", "handle", "domain", "nic", "prov_version", "api_version", "fi_info"}
NOT_IN_TEXT = {"FI_ORDER_NONE", "FI_BUFFERED_RECV"}  # not a bit; printed by old versions alone
GROUPS = ("fi_info", "fi_tx_attr", "fi_rx_attr", "fi_ep_attr", "fi_domain_attr", "fi_fabric_attr")


def parsed(text: str) -> dict[str, dict[str, object]]:
    """libfabric's indented text: groups of `name: value`."""
    groups: dict[str, dict[str, object]] = {}
    group = ""
    for line in text.splitlines():
        name, _, value = line.strip().partition(": ")
        name = name.rstrip(":")
        if name in GROUPS:
            group = name
            groups[group] = {}
        elif name and group:
            groups[group][name] = value.strip()
    return groups


def meaning(name: str, text: str) -> object:
    """A value of the text as the binding has it."""
    if text.startswith("["):
        return sorted(one for one in text.strip("[] ").split(", ") if one and one not in NOT_IN_TEXT)
    if re.fullmatch(r"0x[0-9a-f]+|\d+", text) and not name.endswith("name"):
        return int(text, 0)
    return text


def ours(value: object, *, is_short: bool) -> object:
    """A value of the binding as the text has it, which may abbreviate the nine orders as one."""
    if not isinstance(value, list):
        return value
    orders = {f"FI_ORDER_{later}A{earlier}" for later in "RWS" for earlier in "RWS"}
    if is_short and orders <= set(value):
        value = [*(set(value) - orders), "FI_ORDER_STRICT"]
    return sorted(set(value) - NOT_IN_TEXT)


@pytest.mark.parametrize("libfabric", ["system", "wheel"])
def test_every_attribute_is_what_libfabrics_own_text_says(libfabric):
    done = fabric_runs.python(READ, fabric_runs.of(libfabric).path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    compared = 0
    for info in document["infos"]:
        for group, entries in parsed(info["text"]).items():
            for name, text in entries.items():
                # 2.x prints data_progress as progress, and what a library does not print is not compared
                key = "data_progress" if name == "progress" else name
                if key in NOT_COMPARED or key not in info[group]:
                    continue
                is_short = "FI_ORDER_STRICT" in text
                assert ours(info[group][key], is_short=is_short) == meaning(key, text), (group, name, info["text"])
                compared += 1
    assert compared > 60 * len(document["infos"])
    has_new = document["infos"][0]["fi_domain_attr"]["max_cntr_value"] is not None
    assert has_new == (tuple(document["version"]) >= (2, 5))


def test_fi_info_prints_the_same_of_the_same_provider():
    if shutil.which("fi_info") is None:
        pytest.skip("no fi_info (apt install libfabric-bin)")
    path = fabric_runs.system().path
    said = subprocess.run(["fi_info", "-v", "-p", "shm"], capture_output=True, text=True, check=True).stdout
    entry = parsed(said.split("---")[1])
    code = (
        "import sys; from efaprof import libfabric as fi; i = fi.open(sys.argv[1]).getinfo(provider='shm')[0];"
        "print(i.tx.inject_size, i.tx.iov_limit, i.tx.rma_iov_limit, i.domain.mr_key_size, i.domain.cq_data_size,"
        " i.ep.protocol.name, i.domain.threading.name, ','.join('FI_' + one for one in i.caps.names))"
    )
    got = fabric_runs.python(code, path).stdout.split()
    assert got[:5] == [
        entry["fi_tx_attr"][name] if group == "tx" else entry["fi_domain_attr"][name]
        for group, name in (
            ("tx", "inject_size"), ("tx", "iov_limit"), ("tx", "rma_iov_limit"), ("d", "mr_key_size"),
            ("d", "cq_data_size"),
        )
    ]  # fmt: skip
    assert entry["fi_ep_attr"]["protocol"] == f"FI_PROTO_{got[5]}"
    assert entry["fi_domain_attr"]["threading"] == f"FI_THREAD_{got[6]}"
    assert sorted(str(entry["fi_info"]["caps"]).strip("[] ").split(", ")) == sorted(got[7].split(","))
