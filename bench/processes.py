"""Processes that are measured: started, waited for, read in /proc, ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
#: How long a program may take to serve its first request, and to end.
DEADLINE = 30.0

#: CPU time in nanoseconds of each thread, by process and thread.
CpuTimes = dict[tuple[int, int], int]


class CellFailed(Exception):
    """A measurement that would have counted something other than what it is to measure."""


def free_port() -> int:
    """A port of the loopback on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def read(path: Path) -> str:
    """A file of /proc; empty if its process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Process:
    """A program that serves, with all its processes and threads, for as long as the `with` block runs."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.main = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        pids = self.pids()
        self.main.terminate()
        try:
            self.main.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            for pid in pids:
                os.kill(pid, 9)
            self.main.wait()

    def wait_until(self, ready: Callable[[], bool], pause: float = 0.02) -> None:
        """Waits until `ready`; fails with the end of the program's log where it does not get there."""
        deadline = time.monotonic() + DEADLINE
        while not ready():
            if self.main.poll() is not None or time.monotonic() > deadline:
                raise CellFailed(f"{self.name} does not serve: {self.log.read_text(errors='replace')[-600:]}")
            time.sleep(pause)

    def pids(self) -> list[int]:
        """The process and all below it."""
        found, unread = [], [self.main.pid]
        while unread:
            found.append(pid := unread.pop())
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                unread += map(int, read(children).split())
        return found

    def cpu(self) -> CpuTimes:
        """User and system time of every thread so far."""
        return {
            (pid, int(task.name)): int(text.split()[0])
            for pid in self.pids()
            for task in Path(f"/proc/{pid}/task").iterdir()
            if (text := read(task / "schedstat"))
        }

    def resident(self) -> int:
        """Resident memory in bytes, summed over the processes."""
        statm = (read(Path(f"/proc/{pid}/statm")).split() for pid in self.pids())
        return sum(int(fields[1]) * PAGE for fields in statm if fields)


def busy_share() -> float:
    """The part of the machine's CPU time that is taken, looked at for a second."""

    def look() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    before = look()
    time.sleep(1)
    total, idle = (now - then for now, then in zip(look(), before))
    return 1 - idle / max(total, 1)


def spent(before: CpuTimes, after: CpuTimes) -> list[int]:
    """CPU time in nanoseconds that each thread took between two looks, the busiest first."""
    return sorted((time - before.get(thread, 0) for thread, time in after.items()), reverse=True)
