# SPDX-License-Identifier: Apache-2.0
"""How many compilers may run at once."""
import os

JOB_BYTES = 1.5e9   # what one compiler takes at most
SHARE = 0.8         # of the memory, for all of them


def memory_available(meminfo="/proc/meminfo", cgroup="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Bytes that this process may still take: what is free, and no more than its control groups allow."""
    limits = []
    try:
        with open(meminfo) as f:
            limits += [int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:")]
    except OSError:  # no /proc: not Linux
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _limit_files(cgroup, root):
        try:
            with open(path) as f:
                text = f.read().strip()
        except OSError:
            continue
        if text != "max":
            limits.append(int(text))
    return min(limits)


def _limit_files(cgroup, root):
    """The memory limit files of this process' control groups and of those around them, version 2 and version 1."""
    try:
        with open(cgroup) as f:
            lines = f.read().splitlines()
    except OSError:
        lines = []
    groups = {("", "memory.max", "/"), ("memory", "memory.limit_in_bytes", "/")}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups.add(("", "memory.max", path))
        elif "memory" in controllers.split(","):
            groups.add(("memory", "memory.limit_in_bytes", path))
    for folder, name, path in groups:
        while True:
            yield os.path.join(root, folder, path.strip("/"), name)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def build_jobs(environ=os.environ, cores=None, memory=None):
    """MAX_JOBS where it is set, else as many as there are cores and memory for, at least one."""
    wanted = environ.get("MAX_JOBS", "")
    if wanted:
        if not wanted.isdigit() or int(wanted) == 0:
            raise SystemExit(f"MAX_JOBS: expected a positive integer, got {wanted!r}")
        return int(wanted)
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if memory is None:
        memory = memory_available()
    return max(1, min(cores, int(SHARE * memory / JOB_BYTES)))
