"""Recording as a user meets it: the program unchanged, a run directory, two lines at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recording import EFAPROF, efaprof, manifest, the_run, wait_until, writer, written

from efaprof import native
from efaprof.session.nic import find_devices
from efaprof.trace.layout import Shape


def test_every_record_of_the_program_is_in_the_run(tmp_path):
    done = efaprof("record", *writer(5000), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    run = the_run(tmp_path)
    assert written(run).counters["test.value"] == list(range(5000))
    captured, following = done.stderr.splitlines()
    assert "from 1 thread of 1 process, 0 dropped" in captured
    assert following.startswith("efaprof: next: efaprof ")
    assert following.endswith(f" {run.name}")


def test_the_manifest_says_what_was_recorded(tmp_path):
    environment = {"FI_PROVIDER": "tcp", "EFAPROF_JOB_ID": "job-7", "OMPI_COMM_WORLD_RANK": "3", "SECRET": "x"}
    efaprof("record", "--nic-interval", "20", "--", *writer(10, "sys.exit(4)"), cwd=tmp_path, env=environment)
    run = the_run(tmp_path)
    said = manifest(run)
    assert run.name == f"efaprof-{Path(sys.executable).name}-{run.name.split('-', 2)[2]}"
    assert said["command"] == [*writer(10, "sys.exit(4)")]
    assert (said["exit_code"], said["signal"], said["job_id"], said["rank"]) == (4, None, "job-7", 3)
    assert said["environment"]["FI_PROVIDER"] == "tcp"
    assert "SECRET" not in said["environment"]
    assert said["started_realtime_ns"] < said["ended_realtime_ns"]
    assert said["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert said["pid"] in written(run).pids
    assert said["clock"] in {"tsc", "monotonic"}
    assert {probe["name"] for probe in said["probes"]} == {"libfabric", "nic", "nvtx", "cuda", "cpu", "python"}
    assert said["options"]["nic_interval_s"] == 0.02
    assert said["drain"]["rings"] >= 2
    assert said["fingerprint"]["cpus"] == len(os.sched_getaffinity(0))


def test_clocks_and_counters_are_sampled_meanwhile(tmp_path):
    then = "time.sleep(0.35)"  # the program's own doing: what is waited for is the samples
    efaprof("record", *writer(1, then), cwd=tmp_path)
    found = written(the_run(tmp_path))
    assert Shape.CLOCK in found.kinds["parent"]
    for device in find_devices():
        assert len(found.counters[device.traffic[0].name]) >= 3
    assert all(name == "test.value" or name.startswith(("nic.", "cpu.")) for name in found.counters)
    assert (
        any(name.startswith("cpu.run_delay_ns.") for name in found.counters)
        or not Path("/proc/self/schedstat").exists()
    )


@pytest.mark.parametrize("code", [0, 1, 2, 124, 125, 255])
def test_the_exit_code_is_the_programs_own(tmp_path, code):
    assert efaprof("record", "-q", "sh", "-c", f"exit {code}", cwd=tmp_path).returncode == code
    assert manifest(the_run(tmp_path))["exit_code"] == code


def test_options_after_the_first_word_belong_to_the_program(tmp_path):
    show = (sys.executable, "-c", "import sys; print(sys.argv[1:])")
    arguments = ["-o", "x", "--version", "--", "-q", "--", "a b", "", "$HOME", "'", "*", "\n"]
    for separator in ((), ("--",)):
        done = efaprof("record", "-q", *separator, *show, *arguments, cwd=tmp_path)
        assert done.stdout == f"{arguments}\n"


def test_a_program_named_like_an_option_runs_after_the_separator(tmp_path):
    tool = tmp_path / "-o"
    tool.write_text("#!/bin/sh\necho ran $0\n")
    tool.chmod(0o755)
    done = efaprof("record", "-q", "--", "-o", cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout == f"ran {tmp_path}/-o\n"


def test_standard_streams_pass_through(tmp_path):
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); sys.stderr.write('to stderr')"
    payload = bytes(range(256)) * 4000
    done = subprocess.run(
        [*EFAPROF, "record", "-q", sys.executable, "-c", code],
        input=payload,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == (payload, b"to stderr" + done.stderr[9:])


def test_what_we_read_ahead_of_the_program_is_nothing(tmp_path):
    shell = f"printf 'one\\ntwo\\n' | ({' '.join(EFAPROF)} record -q head -c 4; cat)"
    assert subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, check=True).stdout == b"one\ntwo\n"


def test_environment_directory_umask_and_descriptors_are_the_users(tmp_path):
    # Signals 32 and 33 are the C library's own; posix_spawn ignores them in the child, whoever calls it.
    code = (
        "import os; print(sorted(os.environ), os.getcwd(), oct(os.umask(0)), os.listdir('/proc/self/fd'));"
        "masks = dict(line.split() for line in open('/proc/self/status') if line.startswith('Sig'));"
        "print({name: hex(int(masks[name], 16) & ~0x180000000) for name in ('SigBlk:', 'SigIgn:')})"
    )
    script = tmp_path / "show.py"
    script.write_text(code)
    bare = (sys.executable, "-S", str(script))
    shell = "umask 027; exec 7</dev/null; trap '' USR1; "
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EFAPROF_")} | {
        name: os.environ[name] for name in ("EFAPROF_LIB_DIR",) if name in os.environ
    }

    def run(command: tuple[str, ...]) -> str:
        line = shell + " ".join(command)
        return subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    recorded = run((*EFAPROF, "record", "-q", "-o", str(tmp_path / "r"), *bare))
    ours = ["EFAPROF_BUFFER_TOTAL", "EFAPROF_RING_DIR", "EFAPROF_RUN_DIR", "EFAPROF_SPILL_DIR", "LD_PRELOAD",
            "NVTX_INJECTION64_PATH", "FI_HOOK", "FI_PROVIDER_PATH"]  # fmt: skip
    for name in ours:
        recorded = recorded.replace(f"'{name}', ", "")
    assert recorded == run(bare)


def test_the_users_preloads_stay_loaded(tmp_path):
    source = tmp_path / "theirs.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) static void hello(void) { puts("theirs"); }\n')
    library = tmp_path / "libtheirs.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code = "print(any('libefaprof-fi.so' in line for line in open('/proc/self/maps')))"
    done = subprocess.run(
        ["env", f"LD_PRELOAD={library}", *EFAPROF, "record", "-q", "-o", "r", "--", sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    probe = next(probe for probe in manifest(tmp_path / "r")["probes"] if probe["name"] == "libfabric")
    lines = done.stdout.splitlines()
    assert "theirs" in lines
    assert lines[-1] == str(probe["state"] == "on")


def test_our_libraries_may_lie_under_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "a folder: ours"
    shutil.copytree(native.lib_path().parent, folder)
    if not (folder / "libefaprof-fi.so").exists():
        pytest.skip("libefaprof-fi.so is not built here")
    code = "print([line.split()[-1] for line in open('/proc/self/maps') if 'libefaprof-fi.so' in line][0])"
    done = efaprof("record", "-q", sys.executable, "-c", code, cwd=tmp_path, env={"EFAPROF_LIB_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    assert "preload" not in done.stderr


def test_a_program_that_ends_at_once_gives_a_sound_run(tmp_path):
    done = efaprof("record", "true", cwd=tmp_path)
    run = the_run(tmp_path)
    assert done.returncode == 0
    assert "called no libfabric function" in done.stderr
    assert done.stderr.splitlines()[-2:] == [f"efaprof: nothing recorded · {run.name}", "efaprof: next: efaprof doctor"]
    assert manifest(run)["exit_code"] == 0
    assert set(written(run).kinds) == {"parent"}


def test_a_program_that_closes_every_descriptor_is_recorded(tmp_path):
    efaprof("record", *writer(1, "os.closerange(0, 1000); write(1000, 1); os._exit(0)"), cwd=tmp_path)
    assert written(the_run(tmp_path)).counters["test.value"] == list(range(1001))


def test_descendants_are_recorded(tmp_path):
    forked = "pid = os.fork(); write(100, 1000 * (pid == 0) + 2000); pid and os.waitpid(pid, 0)"
    done = efaprof("record", *writer(1, forked), cwd=tmp_path)
    values = written(the_run(tmp_path)).counters["test.value"]
    assert sorted(values) == [0, *range(2000, 2100), *range(3000, 3100)]
    assert "2 threads of 2 processes" in done.stderr


def test_threads_are_told_apart(tmp_path):
    threads = "a = [threading.Thread(target=write, args=(50, 100 * i)) for i in (1, 2)]; b = threading.Barrier(1)\n"
    threads += "for t in a: t.start()\nfor t in a: t.join()"
    efaprof("record", *writer(1, threads), cwd=tmp_path)
    assert sorted(written(the_run(tmp_path)).counters["test.value"]) == [0, *range(100, 150), *range(200, 250)]


def test_a_daemon_that_goes_on_is_named_and_unharmed(tmp_path):
    daemon = (
        "os.fork() and os._exit(0); os.setsid(); write(10, 1); open('ready', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "write(300000, 100); open('done', 'w').close()"
    )
    launch = "import subprocess, os, time; null = subprocess.DEVNULL\n"
    launch += f"subprocess.Popen({list(writer(1, daemon))!r}, stdin=null, stdout=null, stderr=null)\n"
    launch += "while not os.path.exists('ready'): time.sleep(0.01)"
    done = efaprof("record", sys.executable, "-c", launch, cwd=tmp_path, env={"PYTHONWARNINGS": "ignore"})
    assert "1 recorded process still ran when the command had ended" in done.stderr
    run = the_run(tmp_path)
    assert "still ran" in manifest(run)["warnings"][0]
    assert not list(run.glob("rings")), "the spill folder stayed"
    assert not list(Path("/dev/shm").glob("*/run")) or all(
        link.resolve() != run for link in Path("/dev/shm").glob("*/run")
    )
    (tmp_path / "go").touch()
    wait_until((tmp_path / "done").exists)
    assert sorted(written(run).counters["test.value"]) == list(range(11))


def test_a_program_that_wipes_shared_memory_is_recorded_on_and_told(tmp_path):
    """Job scripts do that. Rings that are known stay mapped; new ones go to the run directory."""
    then = (
        "import shutil\n"
        "while len(os.listdir(os.environ['EFAPROF_RUN_DIR'] + '/raw')) < 2: time.sleep(0.005)\n"
        "shutil.rmtree(os.path.dirname(os.environ['EFAPROF_RING_DIR'])); write(4000, 1000)\n"
        "t = threading.Thread(target=write, args=(100, 5000)); t.start(); t.join()"
    )
    done = efaprof("record", "-o", "r", "--", *writer(1000, then), cwd=tmp_path)
    assert done.returncode == 0
    assert sorted(written(tmp_path / "r").counters["test.value"]) == list(range(5100))
    assert "was removed while recording" in done.stderr


def test_the_limit_on_open_files_is_the_users(tmp_path):
    line = f"ulimit -Sn 64; {' '.join(EFAPROF)} record -q -o r -- sh -c 'ulimit -Sn'"
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=True).stdout == b"64\n"


def test_the_rings_are_gone_when_the_recording_is(tmp_path):
    before = set(Path("/dev/shm").iterdir())
    efaprof("record", *writer(10), cwd=tmp_path)
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if (path / "run").is_symlink()
                and (path / "run").readlink().is_relative_to(tmp_path)]  # fmt: skip
    assert sorted(path.name for path in the_run(tmp_path).iterdir()) == ["log.txt", "manifest.json", "raw"]


def test_quiet_leaves_only_what_went_wrong(tmp_path):
    assert efaprof("record", "-q", *writer(10), cwd=tmp_path).stderr == ""


def test_duration_ends_the_recording_and_not_the_program(tmp_path):
    then = (
        "deadline = time.monotonic() + 30\n"
        "while native.is_recording() and time.monotonic() < deadline: time.sleep(0.005)\n"
        "print('unharmed', not native.is_recording())"
    )
    done = efaprof("record", "--duration", "0.3", "--", *writer(100, then), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "unharmed True\n")
    run = the_run(tmp_path)
    assert written(run).counters["test.value"] == list(range(100))
    assert (manifest(run)["ended_realtime_ns"] - manifest(run)["started_realtime_ns"]) / 1e9 >= 0.3
    assert manifest(run)["exit_code"] == 0
    assert manifest(run)["warnings"] == []


def test_max_size_keeps_the_newest(tmp_path):
    done = efaprof("record", "--max-size", "1MiB", "--buffer", "16MiB", "--probes", "libfabric", "--",
                   *writer(200_000), cwd=tmp_path)  # fmt: skip
    run = the_run(tmp_path)
    values = written(run).counters["test.value"]
    assert values[-1] == 199_999
    assert values == list(range(values[0], 200_000))
    assert "to stay under --max-size" in done.stderr
    assert sum(file.stat().st_blocks * 512 for file in (run / "raw").iterdir()) < 2 << 20


def test_a_full_ring_drops_and_says_so(tmp_path):
    # The recorder is stopped while the program fills its ring.
    then = "os.kill(os.getppid(), 19); write(5000, 1); os.kill(os.getppid(), 18)"
    done = efaprof("record", "--buffer", "64KiB", *writer(1, then), cwd=tmp_path)
    assert done.returncode == 0
    assert "records were dropped; rings were full: try a larger --buffer" in done.stderr
    found = written(the_run(tmp_path))
    assert len(found.counters["test.value"]) + found.dropped >= 5001
    assert manifest(the_run(tmp_path))["drain"]["dropped"] == found.dropped > 0


def test_recording_loads_no_heavy_library(tmp_path):
    code = (
        "import sys; sys.argv = ['efaprof', 'record', '-q', 'true']\n"
        "from efaprof.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, sorted({name.split('.')[0] for name in sys.modules}"
        " & {'polars', 'torch', 'google', 'pyarrow', 'pandas', 'scipy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


def test_record_under_record_gives_two_sound_runs(tmp_path):
    done = efaprof("record", "-o", "outer", "--", *EFAPROF, "record", "-o", "inner", "--", *writer(100), cwd=tmp_path)
    assert done.returncode == 0
    assert written(tmp_path / "inner").counters["test.value"] == list(range(100))
    assert "test.value" not in written(tmp_path / "outer").counters
