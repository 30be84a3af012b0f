"""Measures decisions over gRPC: CPU of each, and latency at half of the peak, beside throttlecrab-server where it is there.

`make bench-decisions` runs it. h2load pipelines on a few connections; each program decides on one key that is far from its limit.
THROTTLECRAB=path is that program (`cargo install throttlecrab-server`; it needs protoc), TOLLGATE=path another binary, ROUNDS=3
and SECONDS=4 say how often and how long; WRITE=1 puts the table into docs/decisions.md. Where the system allows it, all runs in
the real-time class, so that nothing else on the machine takes part.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .loads import Sample
from .processes import CellFailed, Process, busy_share, free_port, spent
from .programs import tollgate
from .report import machine

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target/bench/decisions"
CONNECTIONS, AT_ONCE = 4, 64
#: Each has a core of its own, so that none waits for the other's.
DECIDES, ASKS = ["taskset", "--cpu-list", "0"], ["taskset", "--cpu-list", "1"]
#: Kept at half of the peak: fewer at once, so that what waits is the program's doing.
PACED = 8
#: What of docs/decisions.md is written.
PAGE, TABLE = ROOT / "docs/decisions.md", re.compile(r"(?<=<!-- make bench-decisions WRITE=1 -->\n).*?(?=<!-- -->)", re.DOTALL)


def field(number: int, value: bytes) -> bytes:
    """A field of a message in protobuf that is text or a message, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def whole(number: int, value: int) -> bytes:
    """A field of a message in protobuf that is a number."""
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return bytes([number << 3]) + encoded + bytes([value])


def framed(message: bytes) -> bytes:
    """A message in its frame of gRPC."""
    return b"\0" + len(message).to_bytes(4, "big") + message


@dataclass(frozen=True)
class Service:
    """A program that decides, and the question that it is asked."""

    name: str
    command: list[str]
    port: int
    path: str
    question: bytes


def services() -> list[Service]:
    """tollgate, and throttlecrab-server where it is there."""
    port, admin, other = free_port(), free_port(), free_port()
    (WORK / "tollgate.yaml").write_text(f"""
listeners: [{{ address: "127.0.0.1:{port}", serves: rate_limit_service }}]
admin: {{ address: "127.0.0.1:{admin}" }}
client_address: {{ trusted_proxies: [127.0.0.1] }}
limits: {{ users: {{ algorithm: gcra, rate: 100000000/s, burst: 100000000, key: {{ descriptor: user }} }} }}
domains: {{ edge: {{ descriptors: [{{ key: user, limits: [users] }}] }} }}
""")
    descriptor = field(1, field(1, b"user") + field(2, b"someone"))
    found = [Service(
        "tollgate", [tollgate(ROOT), "run", "--config", "tollgate.yaml"], port,
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", framed(field(1, b"edge") + field(2, descriptor)),
    )]
    throttlecrab = os.environ.get("THROTTLECRAB") or shutil.which("throttlecrab-server")
    if throttlecrab:
        limit = whole(2, 100_000_000) + whole(3, 100_000_000) + whole(4, 1) + whole(5, 1)
        options = ["--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", str(other), "--log-level", "error"]
        found.append(Service(
            "throttlecrab", [throttlecrab, *options], other, "/throttlecrab.RateLimiter/Throttle",
            framed(field(1, b"someone") + limit),
        ))
    return found


def load(service: Service, seconds: int, rate: int | None) -> tuple[int, list[float]]:
    """Asks for so long, at a rate or as fast as it goes; how many answers came, and how long each took, in milliseconds."""
    question, log = WORK / f"{service.name}.question", WORK / "h2load.log"
    question.write_bytes(service.question)
    log.unlink(missing_ok=True)
    paced = [f"--rps={rate / CONNECTIONS:.0f}"] if rate else []
    command = [
        *ASKS, "h2load", f"-c{CONNECTIONS}", f"-m{PACED if rate else AT_ONCE}", f"-D{seconds}", f"--log-file={log}", *paced,
        "-d", str(question), "-H", "content-type: application/grpc", "-H", "te: trailers",
        f"http://127.0.0.1:{service.port}{service.path}",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
    if ended.returncode or not rows or any(status != "200" for _, status, _ in rows):
        raise CellFailed(f"{service.name}: {ended.stdout}{ended.stderr}")
    return len(rows), sorted(int(took) / 1000 for _, _, took in rows)


def answers(service: Service) -> bool:
    """Whether it decides."""
    asked = subprocess.run(
        ["curl", "-s", "--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers", "-o", os.devnull,
         "-D", "-", "--data-binary", f"@{service.name}.question", f"http://127.0.0.1:{service.port}{service.path}"],
        cwd=WORK, capture_output=True, text=True, check=False,
    )
    # in the trailers, which curl writes behind the head
    return "grpc-status: 0" in asked.stdout


def measured(service: Service, seconds: int) -> Sample:
    """One round: as fast as it goes, then at half of that."""
    (WORK / f"{service.name}.question").write_bytes(service.question)
    with Process(service.name, [*DECIDES, *service.command], WORK) as process:
        process.wait_until(lambda: answers(service))
        load(service, 1, None)
        before = process.cpu()
        count, _ = load(service, seconds, None)
        cpu = sum(spent(before, process.cpu())) / 1000 / count
        _, times = load(service, seconds, count // seconds // 2)
        return {
            "rate": count / seconds, "cpu": cpu, "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100],
            "memory": process.resident() / 1e6,
        }


def alone() -> bool:
    """Whether nothing else on the machine takes part."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    except PermissionError:
        return busy_share() < 0.05
    return True


def cell(rounds: list[Sample], metric: str, digits: int) -> str:
    """The median of a metric, and its spread."""
    values = [sample[metric] for sample in rounds]
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(samples: dict[str, list[Sample]]) -> str:
    """What was measured."""
    lines = [
        "| | CPU of a decision, µs | decisions/s on one core | p50 at half of that, ms | p99, ms | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in samples.items():
        cells = [cell(rounds, *metric) for metric in (("cpu", 2), ("rate", 0), ("p50", 2), ("p99", 2), ("memory", 0))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs the rounds, in turns, and prints the medians with their spread."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    rounds, seconds = int(os.environ.get("ROUNDS") or 3), int(os.environ.get("SECONDS") or 4)
    is_alone = alone()
    if not is_alone:
        print("others take part of this machine: p99 is theirs", file=sys.stderr)
    found = services()
    samples: dict[str, list[Sample]] = {service.name: [] for service in found}
    for _ in range(rounds):
        for service in found:
            samples[service.name].append(measured(service, seconds))
    print(table(samples))
    if os.environ.get("WRITE") == "1":
        if not is_alone or len(found) < 2:
            sys.exit("WRITE=1 writes figures of both programs, on a machine that does nothing else")
        about = f"{machine()}; {rounds} rounds of {seconds} s, medians with the spread.\n\n{table(samples)}\n\n"
        PAGE.write_text(TABLE.sub(lambda _: about, PAGE.read_text()))


if __name__ == "__main__":
    try:
        main()
    except CellFailed as failed:
        sys.exit(str(failed))
