"""Runs the scenarios and prints what was measured.

Environment: ROUNDS=5 and SECONDS=4 for each cell; ONLY=proxied,429 and PEERS=tollgate,nginx choose; TOLLGATE=path is another
build; WRITE=1 writes docs/performance.md with its plots; RESULTS=file shows an earlier run again instead of measuring.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from . import report
from .loads import Sample, Target
from .processes import CellFailed, Process, busy_share, free_port
from .programs import Behind, Place, Program, Setup, origin_command, programs, redis_command, system_program
from .scenarios import SCENARIOS, SLOW, AnyLoad, Scenario

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target/bench"

#: TLS clients agree on one cipher with every program, so that none is faster for having chosen another.
OPENSSL_CONFIG = """
openssl_conf = settings
[settings]
ssl_conf = ssl
[ssl]
system_default = clients
[clients]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_128_GCM_SHA256
"""


def chosen(variable: str, names: list[str]) -> list[str]:
    """The names that an environment variable lists, or all."""
    wanted = [name for name in os.environ.get(variable, "").split(",") if name]
    if unknown := set(wanted) - set(names):
        sys.exit(f"{variable}: {', '.join(sorted(unknown))} is unknown; there are {', '.join(names)}")
    return [name for name in names if not wanted or name in wanted]


def place_for(name: str, behind: Behind = Behind()) -> Place:
    """An empty directory and a port for a program."""
    directory = WORK / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return Place(directory, free_port(), behind)


def make_certificate() -> None:
    """A certificate for all programs."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", WORK / "key.pem", "-out", WORK / "cert.pem"],
        check=True, capture_output=True,
    )
    (WORK / "both.pem").write_text((WORK / "cert.pem").read_text() + (WORK / "key.pem").read_text())
    (WORK / "openssl.cnf").write_text(OPENSSL_CONFIG)
    os.environ["OPENSSL_CONF"] = str(WORK / "openssl.cnf")


def measure(program: Program, setup: Setup, load: AnyLoad, behind: Behind, seconds: int) -> Sample:
    """One cell of one round, with a process of its own."""
    place = place_for(program.name, behind)
    with Process(program.name, program.configure(setup, place), place.directory) as process:
        target = Target(
            process, place.port, behind.origin, "https" if setup.tls else "http", setup.http2,
            429 if setup.denies else 200, place.directory,
        )
        process.wait_until(lambda: target.serves(load.path))
        return load.run(target, seconds)


def run(scenario: Scenario, taking_part: list[Program], behind: Behind, rounds: int, seconds: int) -> report.Cells:
    """All rounds of a scenario: every program once in each, in an order that shifts."""
    if scenario.variants:
        tollgate = [program for program in taking_part if program.name == "tollgate"]
        cells = {label: (p, *variant) for p in tollgate for label, variant in scenario.variants.items()}
    else:
        cells = {program.name: (program, scenario.setup, scenario.load) for program in taking_part}
    results: report.Cells = {label: report.Cell() for label in cells}
    labels = list(cells)
    for number in range(rounds):
        shift = number % len(labels)
        for label in labels[shift:] + labels[:shift]:
            if results[label].failure:
                continue
            try:
                results[label].samples.append(measure(*cells[label], behind, seconds))
            except CellFailed as error:
                results[label].failure = str(error)
                print(f"FAILED: {scenario.name}, {label}: {error}", file=sys.stderr)
    return results


def main() -> None:
    """Measures, prints, and writes the page if it is to."""
    rounds, seconds = int(os.environ.get("ROUNDS") or 5), int(os.environ.get("SECONDS") or 4)
    names = chosen("ONLY", [scenario.name for scenario in SCENARIOS])
    available = programs(ROOT)
    peers = chosen("PEERS", [program.name for program in available])
    taking_part = [program for program in available if program.name in peers]
    writes, earlier = os.environ.get("WRITE") == "1", os.environ.get("RESULTS")
    if writes and (len(names) < len(SCENARIOS) or len(taking_part) < len(available)):
        sys.exit("WRITE=1 writes the whole page: leave out ONLY and PEERS")
    absent = [program.name for program in taking_part if not Path(program.executable).is_file()]
    absent += [tool for tool in ("wrk", "h2load", "curl", "openssl", "nginx", "redis-server") if not system_program(tool)]
    if absent:
        sys.exit(f"not installed: {', '.join(absent)}; `make bench-peers` installs all, PEERS= chooses others")
    if earlier:
        measured = report.load(Path(earlier))
    else:
        if (busy := busy_share()) > 0.05:
            print(f"others take {busy:.0%} of this machine: figures will be noise", file=sys.stderr)
            if writes:
                sys.exit("WRITE=1 writes figures of an idle machine only")
        measured = measure_all(names, taking_part, rounds, seconds)
    if writes and not measured.failures():
        report.write(measured, ROOT)
    sys.exit(1 if measured.failures() else 0)


def measure_all(names: list[str], taking_part: list[Program], rounds: int, seconds: int) -> report.Run:
    """Runs the chosen scenarios in front of one origin, beside one Redis."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    WORK.mkdir(parents=True, exist_ok=True)
    make_certificate()
    origin, redis = place_for("origin"), place_for("redis")
    behind = Behind(origin.port, redis.port)
    measured = report.Run(report.machine(), {p.name: p.version() for p in taking_part}, rounds, seconds)
    with (
        Process("origin", origin_command(origin, SLOW), origin.directory) as process,
        Process("redis", redis_command(redis), redis.directory),
    ):
        target = Target(process, origin.port, origin.port, "http", False, 200, origin.directory)
        process.wait_until(lambda: target.serves("/"))
        for scenario in (scenario for scenario in SCENARIOS if scenario.name in names):
            measured.scenarios[scenario.name] = run(scenario, taking_part, behind, rounds, seconds)
            print(report.text(scenario, measured.scenarios[scenario.name]), flush=True)
            (WORK / "results.json").write_text(json.dumps(asdict(measured), indent=1))
    return measured


if __name__ == "__main__":
    try:
        main()
    except CellFailed as error:
        sys.exit(f"the origin does not work: {error}")
