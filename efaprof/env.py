"""Every environment variable that efaprof reads or sets, one sentence each."""

from __future__ import annotations

RING_DIR = "EFAPROF_RING_DIR"  # set by record: where producers create their rings; unset = do not record
SPILL_DIR = "EFAPROF_SPILL_DIR"  # set by record: where rings go when RING_DIR is full or not visible
BUFFER = "EFAPROF_BUFFER"  # set by record --buffer: bytes of one ring (default 4 MiB)
BUFFER_TOTAL = "EFAPROF_BUFFER_TOTAL"  # set by record: bytes of all rings together (default a quarter of free shm)
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
