"""What goes wrong through the binding arrives as an exception with libfabric's words, in a process that goes on."""

from __future__ import annotations

import fabric_runs
import pytest

# Opens a self-connected endpoint over the provider named second; what follows sees it.
SETUP = r"""
import sys, time
from efaprof import libfabric as fi
library = fi.open(sys.argv[1])
provider = sys.argv[2]
info = library.getinfo(provider=provider, caps=fi.Cap.MSG | fi.Cap.RMA | fi.Cap.TAGGED, ep_type=fi.EpType.RDM)[0]
memory = bytearray(8192)

def raised(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except fi.FabricError as error:
        return error
    raise AssertionError("nothing was raised")

def poll(cq, matches=lambda one: True):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for one in cq.read():
            if matches(one):
                return one
    raise AssertionError("waited in vain")

def again(cq, post, *arguments, **named):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            return post(*arguments, **named)
        except fi.TryAgain as error:
            assert error.errno == 11
            cq.read()
    raise AssertionError("queues stay full")

with (
    library.fabric(info) as fabric, fabric.domain() as domain, domain.cq() as cq, domain.av() as av,
    domain.endpoint(av=av, cq=cq) as endpoint, domain.register(memory) as region,
):
    me = av.insert(endpoint.address)
"""


def run(body: str, libfabric: str = "system", provider: str = "shm") -> str:
    """Run `body` inside the setup's block; what it printed."""
    fabric_runs.need_shim()
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    done = fabric_runs.python(SETUP + indented, fabric_runs.of(libfabric).path, provider)
    assert done.returncode == 0, done.stderr
    return done.stdout


both = pytest.mark.parametrize("libfabric", ["system", "wheel"])


@both
def test_a_provider_that_is_not_there_is_no_data_and_named(libfabric):
    run(
        """
error = raised(library.getinfo, provider="nosuch")
assert isinstance(error, fi.NothingOffered), error
assert (error.errno, error.text) == (61, "No data available")
assert error.message == "fi_getinfo for provider nosuch: No data available (ENODATA)"
""",
        libfabric,
    )


def test_a_wish_that_a_provider_cannot_fulfil_is_no_data():
    run('assert raised(library.getinfo, provider="shm", caps=fi.Cap.MULTICAST).errno == 61')


@pytest.mark.parametrize("path", ["/no/such/libfabric.so.1", "/etc/passwd", "libno-such-library.so.7"])
def test_a_library_that_cannot_be_loaded_is_named(path):
    code = (
        "import sys; from efaprof import libfabric as fi\n"
        "try: fi.open(sys.argv[1])\n"
        "except fi.NoLibfabric as error: print(error.message, '|', error.hint)"
    )
    said = fabric_runs.python(code, path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{path} cannot be loaded: ")
    assert "libfabric.so.1" in said.stdout.split("|")[1]


def test_a_library_that_is_no_libfabric_is_named():
    code = (
        "from efaprof import libfabric as fi\n"
        "try: fi.open('libc.so.6')\n"
        "except fi.NoLibfabric as error: print(error.message)"
    )
    assert fabric_runs.python(code).stdout.startswith("libc.so.6 is no libfabric: ")


def test_no_libfabric_with_the_provider_lists_what_was_tried():
    fabric_runs.system()
    code = (
        "from efaprof import libfabric as fi\n"
        "try: fi.open(provider='nosuch')\n"
        "except fi.NoLibfabric as error: print(error.message)"
    )
    said = fabric_runs.python(code).stdout
    assert said.startswith("no libfabric here offers provider nosuch\n")
    assert "shm" in said


@both
def test_closing_what_others_need_is_refused_and_says_by_what(libfabric):
    run(
        """
error = raised(cq.close)
assert isinstance(error, fi.StillInUse)
assert error.message == "the completion queue is still needed by the endpoint"
assert "endpoint" in raised(av.close).message
assert "address vector" in raised(domain.close).message and "domain" in raised(fabric.close).message
assert cq.is_open and cq.read() == []
""",
        libfabric,
    )


@both
def test_a_closed_object_refuses_every_use(libfabric):
    run(
        """
region.close(); endpoint.close(); cq.close()
for call in (lambda: endpoint.send(b"x", to=me), lambda: endpoint.inject(b"x", to=me), lambda: endpoint.address,
             cq.read, lambda: region.remote, lambda: domain.endpoint(av=av, cq=cq)):
    error = raised(call)
    assert isinstance(error, fi.Closed) and "closed" in error.message, error
endpoint.close()  # once more does nothing
# Peers of its own: shm of 1.17 looks for those of the closed endpoint, and crashes.
with domain.cq() as queue, domain.av() as peers, domain.endpoint(av=peers, cq=queue) as second:
    assert second.address
""",
        libfabric,
    )


@both
def test_an_error_completion_carries_the_codes_and_words_of_libfabric_and_the_provider(libfabric):
    run(
        """
wrong = fi.RemoteMemory(region.remote.address, region.remote.key + 77, 4096)
again(cq, endpoint.read, memoryview(memory)[:4096], source=me, remote=wrong, context="lost")
try:
    poll(cq)
    raise SystemExit("a read under a wrong key went through")
except fi.CompletionError as error:
    assert error.context == "lost" and error.flags & fi.Op.READ, vars(error)
    assert error.errno > 0 and error.text == library.strerror(error.errno) and error.text in error.message
    assert error.prov_text == cq.strerror(error.prov_errno, error.err_data)
assert len(domain.in_flight) == 0
""",
        libfabric,
        "tcp",
    )


@both
def test_a_message_longer_than_its_receive_is_an_error_completion(libfabric):
    run(
        """
again(cq, endpoint.recv, memoryview(memory)[:16], context="short")
again(cq, endpoint.send, b"y" * 64, to=me, context="long")
errors = []
deadline = time.monotonic() + 20
while not errors and time.monotonic() < deadline:
    try:
        cq.read()
    except fi.CompletionError as error:
        errors.append(error)
(error,) = errors
assert error.context == "short" and error.errno in (90, 265), vars(error)  # EMSGSIZE, FI_ETRUNC
assert memory[16:64] == bytes(48)
""",
        libfabric,
    )


def test_a_cancelled_receive_completes_as_cancelled():
    run(
        """
context = object()
again(cq, endpoint.tagged_recv, memoryview(memory)[:16], tag=9, context=context)
assert "in flight" in raised(endpoint.cancel, object()).message
endpoint.cancel(context)
try:
    poll(cq)
except fi.CompletionError as error:
    assert error.errno == 125 and error.context is context  # ECANCELED
else:
    raise SystemExit("it completed")
"""
    )


def test_what_does_not_fit_is_refused_before_it_is_posted():
    run(
        """
for call in (lambda: endpoint.write(b"x" * 9000, to=me, remote=region.remote), lambda: region.remote.at(8000, 500),
             lambda: region.remote.at(-1)):
    try:
        call()
    except ValueError as error:
        assert "8192" in str(error)
    else:
        raise SystemExit("it went through")
assert raised(endpoint.inject, bytes(info.tx.inject_size + 1), to=me).errno > 0
try:
    endpoint.recv(b"read only")
except BufferError:
    pass
assert len(domain.in_flight) == 0
"""
    )


def test_memory_in_flight_outlives_its_last_name():
    run(
        """
import gc
for turn in range(300):  # more than one batch of contexts
    endpoint_context = ("turn", turn)
    again(cq, endpoint.recv, memoryview(memory)[:64], context=endpoint_context)
    again(cq, endpoint.send, bytes([turn % 251]) * 64, to=me, context="sent")
    gc.collect() if turn % 50 == 0 else None
    poll(cq, lambda one: one.context == endpoint_context)
    assert memory[:64] == bytes([turn % 251]) * 64
"""
    )


def test_waiting_for_a_completion_ends_when_time_is_up():
    run(
        """
with domain.cq(wait=fi.WaitObj.FD) as queue:
    assert queue.sread(timeout_ms=20) == []
""",
        provider="sockets",
    )


@both
def test_addresses_can_be_looked_up(libfabric):
    run('assert av.lookup(me) == endpoint.address and ":" in av.text(endpoint.address)', libfabric, "sockets")


@both
def test_atomics_are_what_the_provider_answers(libfabric):
    run(
        """
assert domain.query_atomic(fi.Datatype.UINT64, fi.AtomicOp.SUM) == 512  # 4096 bytes
assert domain.query_atomic(fi.Datatype.UINT64, fi.AtomicOp.CSWAP) is None
assert domain.query_atomic(fi.Datatype.UINT64, fi.AtomicOp.CSWAP, fi.AtomicKind.COMPARE) == 256
assert not domain.has_ops("efa gda ops")
""",
        libfabric,
    )


def test_without_the_inlines_attributes_are_read_and_objects_name_what_is_missing(tmp_path):
    path = fabric_runs.system().path
    code = (
        "import sys; from efaprof import libfabric as fi; from efaprof.errors import EfaprofError\n"
        "library = fi.open(sys.argv[1]); info = library.getinfo(provider='shm')[0]\n"
        "assert not library.has_shim and info.fabric.prov_name == 'shm'\n"
        "try: library.fabric(info)\n"
        "except EfaprofError as error: print(error.message)"
    )
    done = fabric_runs.python(code, path, environment={"EFAPROF_LIB_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "libefaprof-fishim.so" in done.stdout
