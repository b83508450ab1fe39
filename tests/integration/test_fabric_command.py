"""`efaprof fabric` as a user runs it: text, JSON, an emulated device, providers that are missing or that crash."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import fabric_runs
import jsonschema
import pytest
from softefa_runs import need_softefa, on_softefa

PROPERTIES = 8


def document(*arguments: str, **options) -> dict:
    done = fabric_runs.fabric(*arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return checked(done.stdout)


def checked(text: str) -> dict:
    value = json.loads(text)
    schema = resources.files("efaprof.report").joinpath("schemas", "efaprof.fabric.1.json").read_text(encoding="utf-8")
    jsonschema.validate(value, json.loads(schema))
    return value


def values(provider: dict) -> dict[str, str]:
    return {row["property"]: row["value"] for row in provider["properties"]}


def normalised(text: str) -> str:
    return re.sub(r"libfabric \d+\.\d+ · \S+", "libfabric VERSION · PATH", text)


def need_1_17() -> None:
    fabric_runs.need_shim()
    path = fabric_runs.system().path
    said = fabric_runs.python("import sys; from efaprof import libfabric as fi; print(fi.open(sys.argv[1]))", path)
    if "version 1.17" not in said.stdout:
        pytest.skip(f"the golden text is that of Debian's libfabric 1.17, here is {said.stdout.strip()}")


def test_the_screen_of_a_provider(golden):
    need_1_17()
    done = fabric_runs.fabric("--libfabric", "libfabric.so.1", "--provider", "shm")
    assert (done.returncode, done.stderr) == (0, "")
    golden("fabric_shm.txt", normalised(done.stdout))


def test_the_screen_of_a_device_that_is_not_here_is_documented_and_marked_so(golden):
    path = fabric_runs.system().path
    done = fabric_runs.fabric("--libfabric", path, "--provider", "efa")
    if "not here" not in done.stdout:
        pytest.skip("this machine has an EFA device")
    golden("fabric_efa_absent.txt", normalised(done.stdout))
    provider = document("--libfabric", path, "--provider", "efa")["providers"][0]
    assert {row["provenance"] for row in provider["properties"]} == {"assumed"}
    assert (provider["is_present"], provider["reported"]) == (False, None)


@pytest.mark.parametrize("libfabric", ["system", "wheel"])
def test_every_provider_has_its_screen_and_its_document(libfabric):
    one = fabric_runs.of(libfabric)
    value = document("--libfabric", one.path)
    names = [provider["provider"] for provider in value["providers"]]
    assert {"shm", "tcp", one.tcp} <= set(names)
    assert value["emulated"] == []
    for provider in value["providers"]:
        assert [row["property"] for row in provider["properties"]] == [row["property"] for row in value["references"]]
        assert provider["is_present"] or provider["provider"] == "efa-direct"
    shm = next(provider for provider in value["providers"] if provider["provider"] == "shm")
    assert shm["reported"]["info"]["tx"]["inject_size"] == 4096
    assert shm["reported"]["info"]["tx"]["msg_order"] == ["SAS"]
    assert [one["pairs"] for one in shm["reported"]["atomics"]] == [110, 121, 70]
    assert (shm["reported"]["info"]["domain"]["max_cntr_value"] is None) == (one.name == "system")
    shown = fabric_runs.fabric("--libfabric", one.path)
    assert all(f"\n{name}  " in shown.stdout for name in names)


def test_a_screen_fits_a_terminal():
    path = fabric_runs.system().path
    done = fabric_runs.fabric("--libfabric", path, "--provider", "shm")
    lines = done.stdout.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 140


def test_layers_of_a_provider_are_found_by_their_name():
    path = fabric_runs.system().path
    names = [one["provider"] for one in document("--libfabric", path, "--provider", "ofi_rxd")["providers"]]
    assert names == ["udp;ofi_rxd"]


def test_the_text_can_go_to_files_and_markdown_to_stdout(tmp_path):
    path = fabric_runs.system().path
    arguments = ("--libfabric", path, "--provider", "shm")
    done = fabric_runs.fabric(*arguments, "--json", str(tmp_path / "f.json"), "--markdown", str(tmp_path / "f.md"))
    assert done.stdout.startswith("efaprof fabric · libfabric ")
    assert checked((tmp_path / "f.json").read_text())["providers"][0]["provider"] == "shm"
    assert (tmp_path / "f.md").read_text() == fabric_runs.fabric(*arguments, "--markdown").stdout
    assert (tmp_path / "f.md").read_text().startswith("### efaprof fabric")


def test_the_variable_names_the_library_too():
    wheel = fabric_runs.wheel()
    value = document("--provider", "shm", environment={"EFAPROF_LIBFABRIC": wheel.path})
    assert value["libfabric"]["version"] == "2.5"


@pytest.mark.parametrize("provider", ["efa", "efa-direct"])
def test_an_emulated_device_is_asked_through_the_real_provider_and_labelled(provider):
    need_softefa()
    fabric_runs.need_shim()
    command = (sys.executable, "-m", "efaprof", "fabric", "--libfabric", fabric_runs.wheel().path)
    done = on_softefa(*command, "--provider", provider, "--json")
    assert done.returncode == 0, done.stderr
    value = checked(done.stdout)
    assert value["emulated"] == ["device: softefa"]
    (one,) = value["providers"]
    assert (one["provider"], one["is_present"]) == (provider, True)
    said = values(one)
    info = one["reported"]["info"]
    assert info["nic"]["speed_bits_s"] > 0
    assert info["domain"]["mr_key_size"] == 4
    assert "RMA" in info["caps"]
    assert info["mode"] == (["CONTEXT2", "RX_CQ_DATA"] if provider == "efa-direct" else [])
    if provider == "efa-direct":
        assert (said["ordering"], said["atomics"]) == ("none", "none")
        assert said["write with immediate"].startswith("4 B, takes ")
    else:
        assert said["ordering"] == "SAS"
        assert "11 base" in said["atomics"]
    shown = on_softefa(*command, "--provider", provider)
    assert "emulated: device: softefa" in shown.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--provider", "nosuch"), 2, "offers no provider nosuch"),
        (("--libfabric", "/no/such/libfabric.so.1"), 1, "cannot be loaded"),
        (("--libfabric", "/etc/passwd"), 1, "cannot be loaded"),
        (("--json", "--markdown"), 2, "cannot both go to stdout"),
    ],
)
def test_errors_are_one_line_and_a_hint(arguments, code, words):
    fabric_runs.system()
    done = fabric_runs.fabric(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


# A libfabric of two providers, of which one kills the process that opens it and one refuses.
FAKE = r"""
#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static struct fi_info *one(const char *name, struct fi_info *next) {
    struct fi_info *info = calloc(1, sizeof *info);
    info->next = next;
    info->tx_attr = calloc(1, sizeof *info->tx_attr);
    info->rx_attr = calloc(1, sizeof *info->rx_attr);
    info->ep_attr = calloc(1, sizeof *info->ep_attr);
    info->domain_attr = calloc(1, sizeof *info->domain_attr);
    info->fabric_attr = calloc(1, sizeof *info->fabric_attr);
    info->ep_attr->type = FI_EP_RDM;
    info->caps = FI_MSG | FI_RMA;
    info->fabric_attr->prov_name = name ? strdup(name) : NULL;
    info->fabric_attr->name = strdup("nowhere");
    info->domain_attr->name = strdup("none0");
    return info;
}
uint32_t fi_version(void) { return FI_VERSION(1, 17); }
const char *fi_strerror(int code) { return code == 38 ? "Function not implemented" : "something else"; }
int fi_getinfo(uint32_t v, const char *n, const char *s, uint64_t f, const struct fi_info *h, struct fi_info **into) {
    *into = one("calm", one("fierce", one("late", NULL)));
    return 0;
}
void fi_freeinfo(struct fi_info *info) {}
struct fi_info *fi_dupinfo(const struct fi_info *info) {
    return one(info ? info->fabric_attr->prov_name : NULL, NULL);
}
int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
    if (!strcmp(attr->prov_name, "fierce")) abort();
    return -38;
}
"""


def test_a_provider_that_crashes_is_named_and_the_others_are_shown(tmp_path):
    if shutil.which("gcc") is None or not Path("/usr/include/rdma/fabric.h").is_file():
        pytest.skip("no gcc or no libfabric headers (apt install gcc libfabric-dev)")
    fabric_runs.need_shim()
    (tmp_path / "fake.c").write_text(FAKE)
    library = tmp_path / "libfabric.so.1"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "fake.c")], check=True)
    value = document("--libfabric", str(library))
    present = [one["provider"] for one in value["providers"] if one["is_present"]]
    assert present == ["calm", "late"]
    assert value["warnings"][0] == "fierce: asking it failed: killed by signal 6"
    calm = value["providers"][0]
    assert calm["reported"]["problem"] == "fi_fabric: Function not implemented (ENOSYS)"
    assert calm["reported"]["atomics"] is None
    assert values(calm)["atomics"].startswith("not asked")
