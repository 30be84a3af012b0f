"""What clients do to a program: wrk, h2load, or connections that are only held. Every answer is checked."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from .processes import CellFailed, Process, spent
from .programs import CORES, LARGE_BYTES, SMALL

KEY = "key-1"
#: About 10 KB of a prompt, with the field in front of it that a limit may count by.
PROMPT_FIELD = "model"
PROMPT = json.dumps({PROMPT_FIELD: "small", "messages": [{"role": "user", "content": "what a prompt says " * 520}]})
#: So many requests may be admitted where all are to be denied: those with which buckets begin.
FIRST_ADMITTED = 10
THREADS = max(1, CORES // 2)

#: A metric's name and its value; a cell of the table is one of these for each round.
Sample = dict[str, float]


@dataclass(frozen=True)
class Target:
    """A program that serves, and what is to come back from it."""

    process: Process
    port: int
    origin: int
    scheme: str
    http2: bool
    status: int
    directory: Path

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def ask(self, path: str) -> str:
        """Asks once; status and protocol of the answer, whose body is then in the file `answer`."""
        version = [] if self.scheme == "https" else ["--http2-prior-knowledge"] if self.http2 else ["--http1.1"]
        command = [
            "curl", "-sk", "--max-time", "10", *version, "-H", f"x-api-key: {KEY}", "-o", "answer",
            "-w", "%{http_code} HTTP/%{http_version}", self.url(path.replace("{n}", "0")),
        ]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True).stdout

    def wanted(self) -> str:
        """Status and protocol that every answer should have."""
        return f"{self.status} HTTP/{'2' if self.http2 else '1.1'}"

    def serves(self, path: str) -> bool:
        """Whether it answers as it should; until denials come, each question takes one of the tokens there are at first."""
        return self.ask(path) == self.wanted()

    def check(self, path: str) -> None:
        """Holds status, protocol and body of one answer against what they should be."""
        if (answer := self.ask(path)) != self.wanted():
            raise CellFailed(f"{self.url(path)} is answered {answer}, not {self.wanted()}")
        body = (self.directory / "answer").read_bytes()
        if self.status == 200 and body != (b"x" * LARGE_BYTES if path == "/large" else SMALL.encode()):
            raise CellFailed(f"{self.url(path)} is answered with {len(body)} bytes that are not the origin's")

    def origin_counts(self) -> tuple[int, int]:
        """How many connections and requests the origin has had."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.origin}/requests") as answer:
            fields = answer.read().split()
        return int(fields[7]), int(fields[9])


@dataclass(frozen=True)
class Counted:
    """What a load tool says about its run."""

    requests: int
    seconds: float
    #: Latencies in milliseconds.
    p50: float
    p99: float
    #: How many answers had a status other than 2xx and 3xx.
    other_status: int
    bytes_read: float


@dataclass(frozen=True)
class Load(ABC):
    """Requests of a load tool for a fixed time."""

    connections: int = 64
    path: str = "/small"

    @abstractmethod
    def command(self, target: Target, seconds: int) -> list[str]:
        """The command that makes the requests."""

    @abstractmethod
    def parse(self, printed: str, target: Target) -> Counted:
        """Reads what the command printed; fails where a request failed."""

    def count(self, target: Target, seconds: int) -> tuple[Counted, int]:
        """Runs the tool; what it counted, and the program's memory half-way."""
        command = self.command(target, seconds)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=target.directory) as tool:
            time.sleep(seconds / 2)
            memory = target.process.resident()
            printed = tool.communicate(timeout=seconds + 60)[0]
        if tool.returncode != 0:
            raise CellFailed(f"{command} ended with {tool.returncode}: {printed}")
        return self.parse(printed, target), memory

    def run(self, target: Target, seconds: int) -> Sample:
        """Warms up, then measures."""
        target.check(self.path)
        self.count(target, 1)
        before, origin_before = target.process.cpu(), target.origin_counts()
        counted, memory = self.count(target, seconds)
        after, origin_after = target.process.cpu(), target.origin_counts()
        connections, reached_origin = (now - then for now, then in zip(origin_after, origin_before))
        self.check_answers(target, counted, reached_origin)
        if connections > 4 * self.connections + counted.requests / 100:
            raise CellFailed(f"{connections} connections to the origin for {reached_origin} requests: they are not kept")
        target.check(self.path)
        threads = spent(before, after)
        return {
            "cpu": sum(threads) / 1000 / counted.requests,
            "rate": counted.requests / counted.seconds,
            "p50": counted.p50,
            "p99": counted.p99,
            "memory": memory / 1e6,
            "busiest": 100 * threads[0] / sum(threads),
        }

    def check_answers(self, target: Target, counted: Counted, reached_origin: int) -> None:
        """Fails unless every answer was the one that the scenario is about."""
        if target.status == 200:
            wrong = counted.other_status > 0 or reached_origin < counted.requests
            wrong |= self.path == "/large" and counted.bytes_read < 0.99 * LARGE_BYTES * counted.requests
        else:
            wrong = counted.other_status < counted.requests - FIRST_ADMITTED or reached_origin > FIRST_ADMITTED
        if wrong or counted.requests == 0:
            raise CellFailed(f"not all answers are {target.status}; {reached_origin} requests reached the origin: {counted}")


#: Times in milliseconds, sizes in bytes.
UNITS = {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def quantity(text: str) -> float:
    """A number with a unit, as wrk prints it: `1.25ms`, `3.5GB`."""
    number, unit = re.fullmatch(r"([\d.]+)([a-zA-Z]+)", text).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


@dataclass(frozen=True)
class Wrk(Load):
    """By wrk, HTTP/1.1: each connection sends its next request when the last one is answered."""

    #: Path and key hold `{n}`, for which each request has a number below this, drawn at random.
    numbers: int = 0
    key: str = KEY
    #: What each request has as its body; without it, requests are GET and have none.
    upload: str = ""

    def script(self) -> str:
        """What wrk is to send beside plain requests, in Lua."""
        if self.upload:
            # Lua reads a text of JSON as JSON does
            return f'wrk.method = "POST"\nwrk.body = {json.dumps(self.upload)}\n'
        if not self.numbers:
            return ""
        head = f"GET {self.path} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nx-api-key: {self.key}\\r\\n\\r\\n"
        head = head.replace("{n}", '" .. n .. "')
        return f'request = function()\n  local n = math.random(0, {self.numbers - 1})\n  return "{head}"\nend\n'

    def command(self, target: Target, seconds: int) -> list[str]:
        script = target.directory / "load.lua"
        script.write_text(self.script())  # an empty one costs nothing: wrk then sends the same bytes each time
        threads = min(THREADS, self.connections)
        return [
            "wrk", f"-t{threads}", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "10s", "--latency",
            "-s", str(script), "-H", f"x-api-key: {self.key}", target.url(self.path),
        ]

    def parse(self, printed: str, target: Target) -> Counted:
        total = re.search(r"(\d+) requests in ([\d.]+\w+), ([\d.]+\w+) read", printed)
        p50, p99 = (re.search(rf"^ +{share}% +(\S+)$", printed, re.MULTILINE) for share in (50, 99))
        if total is None or p50 is None or p99 is None or "Socket errors" in printed:
            raise CellFailed(f"wrk failed: {printed}")
        other = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
        return Counted(
            int(total[1]), quantity(total[2]) / 1000, quantity(p50[1]), quantity(p99[1]),
            int(other[1]) if other else 0, quantity(total[3]),
        )


@dataclass(frozen=True)
class H2load(Load):
    """By h2load: HTTP/2, with so many requests at once on each connection, or HTTP/1.1, at a rate."""

    connections: int = 16
    streams: int = 8
    #: Requests in a second on each connection, whether those before are answered or not; 0 is as many as are answered.
    rate: int = 0

    def command(self, target: Target, seconds: int) -> list[str]:
        (target.directory / "requests.log").unlink(missing_ok=True)
        return [
            "h2load", f"-t{THREADS}", f"-c{self.connections}", f"-m{self.streams}", f"-D{seconds}",
            "--log-file=requests.log", "-H", f"x-api-key: {KEY}", target.url(self.path),
            *([] if target.http2 else ["--h1"]), *([f"--rps={self.rate}"] if self.rate else []),
        ]

    def parse(self, printed: str, target: Target) -> Counted:
        seconds = re.search(r"finished in ([\d.]+\w+)", printed)
        states = re.search(r"requests:.* (\d+) done, .* (\d+) failed, (\d+) errored, (\d+) timeout", printed)
        if seconds is None or states is None or any(int(failed) for failed in states.groups()[1:]):
            raise CellFailed(f"h2load failed: {printed}")
        # start, status, microseconds
        rows = [row.split() for row in (target.directory / "requests.log").read_text().splitlines()]
        times = sorted(int(row[2]) for row in rows)
        other = sum(row[1][0] not in "23" for row in rows)
        if len(times) != int(states[1]) or not times:
            raise CellFailed(f"h2load logged {len(times)} requests: {printed}")
        p50, p99 = (times[len(times) * share // 100] / 1000 for share in (50, 99))
        return Counted(len(times), quantity(seconds[1]) / 1000, p50, p99, other, 0)


@dataclass(frozen=True)
class Idle:
    """So many connections that have had one answer, and are kept: memory alone."""

    connections: int
    path: str = "/small"

    def run(self, target: Target, seconds: int) -> Sample:
        """Memory while they are open."""
        target.check(self.path)
        request = f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {KEY}\r\n\r\n".encode()
        held: list[socket.socket] = []
        try:
            for _ in range(self.connections):
                held.append(client := socket.create_connection(("127.0.0.1", target.port), timeout=10))
                client.sendall(request)
                if not client.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise CellFailed(f"connection {len(held)} is not answered 200")
            time.sleep(seconds)
            memory = target.process.resident() / 1e6
            for client in held:
                client.setblocking(False)
                try:
                    answer = client.recv(4096)
                except BlockingIOError:
                    continue
                if not answer:
                    raise CellFailed("an idle connection was closed")
            target.check(self.path)
            return {"memory": memory}
        except OSError as error:
            raise CellFailed(f"connection {len(held)}: {error}") from error
        finally:
            for client in held:
                client.close()
