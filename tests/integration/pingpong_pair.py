"""Both ends of libfabric's fi_pingpong, as one command whose output is the same each time: its table without times."""

from __future__ import annotations

import subprocess
import sys

from integration.raw_records import free_port, is_listening, wait_until


def main() -> int:
    """Run the two ends with the same options; the first one's exit code that is not 0."""
    port = str(free_port())
    command = ["fi_pingpong", *sys.argv[1:]]
    with subprocess.Popen([*command, "-B", port], stdout=subprocess.DEVNULL) as server:
        wait_until(lambda: is_listening(int(port)) or server.poll() is not None)
        client = subprocess.run([*command, "-P", port, "127.0.0.1"], stdout=subprocess.PIPE, text=True, check=False)
        code = server.wait(timeout=60)
    for line in client.stdout.splitlines():
        print(*line.split()[:4])
    return client.returncode or code


if __name__ == "__main__":
    sys.exit(main())
