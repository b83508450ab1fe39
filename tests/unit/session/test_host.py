from __future__ import annotations

import os
import subprocess
import sys

from efaprof.session import host


def test_the_snapshot_holds_what_changes_the_path_and_no_secrets():
    environment = {
        "FI_PROVIDER": "tcp", "FI_EFA_USE_DEVICE_RDMA": "1", "OFI_NCCL_PROTOCOL": "RDMA", "NCCL_GIN_TYPE": "2",
        "EP_BUFFER": "1", "NVSHMEM_REMOTE_TRANSPORT": "libfabric", "SLURM_JOB_ID": "7", "PMIX_RANK": "1",
        "OMPI_COMM_WORLD_RANK": "1", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_JWT": "x", "HF_TOKEN": "x", "FI": "x",
        "MY_FI_PROVIDER": "x", "OMPI_MCA_auth_token": "x",
    }  # fmt: skip
    kept = host.snapshot(environment)
    assert list(kept) == sorted(kept)
    assert kept == {name: environment[name] for name in list(environment)[:9]}


def test_the_users_job_id_comes_before_the_launchers():
    assert host.job_id({}) is None
    assert host.job_id({"SLURM_JOB_ID": "7", "EFAPROF_JOB_ID": ""}) == "7"
    assert host.job_id({"SLURM_JOB_ID": "7", "EFAPROF_JOB_ID": "mine"}) == "mine"


def test_the_rank_is_read_from_any_launcher():
    assert host.rank({}) is None
    assert host.rank({"RANK": "garbage"}) is None
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"):
        assert host.rank({name: "3"}) == 3


def test_a_process_is_told_from_a_later_one_with_its_id():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert host.is_running(child.pid)
        started = host.process_start(child.pid)
        assert started >= host.process_start(os.getpid())
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not host.is_running(child.pid)  # a zombie
    child.communicate()
    assert host.process_start(child.pid) is None
