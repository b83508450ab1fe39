"""Every environment variable that efaprof reads or sets, one sentence each."""

from __future__ import annotations

RING_DIR = "EFAPROF_RING_DIR"  # set by record: where producers create their rings; unset = do not record
SPILL_DIR = "EFAPROF_SPILL_DIR"  # set by record: where rings go when RING_DIR is full or not visible
BUFFER = "EFAPROF_BUFFER"  # set by record --buffer: bytes of one ring (default 4 MiB)
BUFFER_TOTAL = "EFAPROF_BUFFER_TOTAL"  # set by record: bytes of all rings together (default a quarter of free shm)
STEP = "EFAPROF_STEP"  # set by record --step: names of NVTX ranges that are steps, a POSIX extended regular expression
STEPS = "EFAPROF_STEPS"  # set by record --steps: recording ends after so many steps
WARMUP_STEPS = "EFAPROF_WARMUP_STEPS"  # set by record --warmup-steps: recording begins after so many steps
STEP_COUNTING = (STEP, STEPS, WARMUP_STEPS)
NVTX_NEXT = "EFAPROF_NVTX_NEXT"  # set by record: the NVTX tool that the user had set, which ours hands everything on to
CUDA_DETAIL = "EFAPROF_CUDA"  # set by record --cuda: graph, node or node:N
CUDA_NEXT = "EFAPROF_CUDA_INJECTION_NEXT"  # set by record: the CUDA tool that the user had set, which begins first
CUPTI = "EFAPROF_CUPTI"  # set by the user: path of the libcupti to use where the program brings none
RUN_DIR = "EFAPROF_RUN_DIR"  # set by record: the run directory
JOB_ID = "EFAPROF_JOB_ID"  # set by the user: names the job that several runs belong to
LIB_DIR = "EFAPROF_LIB_DIR"  # set by developers: folder with libefaprof*.so, instead of the packaged one
LIBFABRIC = "EFAPROF_LIBFABRIC"  # set by the user: path of the libfabric to use
SSH_CONNECTION = "SSH_CONNECTION"  # set by sshd: `efaprof open` starts no browser and says how to tunnel
REAL_DATA = "EFAPROF_REAL_DATA"  # set by CI: folder with real measurements that some tests read
EMULATED = "EFAPROF_EMULATED"  # set by softefa: what is emulated, for the manifest; several are separated by ";"
SOFTEFA_DIR = "EFAPROF_SOFTEFA_DIR"  # set by softefa: folder with the emulated device's socket; unset = no device
SOFTEFA_TRUTH = "EFAPROF_SOFTEFA_TRUTH"  # set by softefa --truth: the emulated device's log of operations
SYSFS = "EFAPROF_SYSFS"  # set by softefa: the tree that the NIC probe reads instead of /sys
SYSFS_PATH = "SYSFS_PATH"  # set by softefa: the same tree, for libfabric, which reads the verbs ABI version there
