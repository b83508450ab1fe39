from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from efaprof import env
from efaprof.libfabric.find import ask, find_libfabrics

FAKE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
struct attr { void *fabric; const char *name, *prov_name; uint32_t versions[2]; };
struct info {
    struct info *next; uint64_t caps, mode; uint32_t format; size_t lens[2]; void *rest[7]; struct attr *fabric_attr;
};
static struct attr attrs[] = {{0, "f", "efa"}, {0, "f", "efa-direct"}, {0, "f", "efa"}};
static struct info infos[3];
uint32_t fi_version(void) { return 2u << 16 | 6; }
const char *fi_strerror(int code) { return code == 61 ? "No data available" : "?"; }
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints,
               struct info **into) {
    if (getenv("FAKE_CRASH")) abort();
    if (getenv("FAKE_EMPTY")) return -61;
    for (int i = 0; i < 3; ++i) { infos[i].fabric_attr = &attrs[i]; infos[i].next = i < 2 ? &infos[i + 1] : NULL; }
    *into = infos;
    return 0;
}
void fi_freeinfo(struct info *info) {}
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.c").write_text(FAKE)
    library = folder / "libfabric.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(folder / "fake.c")], check=True)
    return library


def test_version_and_providers_are_read_through_the_public_interface(fake):
    found = ask(str(fake))
    assert (found.path, found.version, found.providers, found.problem) == (str(fake), "2.6", ("efa", "efa-direct"), "")


def test_a_library_without_providers_says_so(fake, monkeypatch):
    monkeypatch.setenv("FAKE_EMPTY", "1")
    found = ask(str(fake))
    assert (found.version, found.problem) == ("2.6", "fi_getinfo: No data available (ENODATA)")


def test_a_provider_that_crashes_does_not_crash_us(fake, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "1")
    assert "killed by signal 6" in ask(str(fake)).problem


@pytest.mark.parametrize("name", ["/no/such/libfabric.so.1", "/etc/passwd", "libno-such-library.so.7"])
def test_what_is_no_library_is_a_problem_and_no_exception(name):
    assert ask(name).problem


def test_the_users_choice_stands_first(fake, monkeypatch):
    monkeypatch.setenv(env.LIBFABRIC, str(fake))
    assert find_libfabrics()[0].path == str(fake)


def test_a_choice_that_cannot_be_loaded_is_listed_with_its_problem(monkeypatch):
    monkeypatch.setenv(env.LIBFABRIC, "/no/such/libfabric.so.1")
    first = find_libfabrics()[0]
    assert (first.path, bool(first.problem)) == ("/no/such/libfabric.so.1", True)
