"""What was measured, as a table for a terminal and as a page with plots."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from . import plots
from .loads import Sample
from .programs import CORES
from .scenarios import SCENARIOS, Scenario

#: Name, heading, digits behind the point.
METRICS = [
    ("cpu", "CPU per request, µs", 1),
    ("rate", "requests/s", 0),
    ("p50", "p50, ms", 2),
    ("p99", "p99, ms", 2),
    ("memory", "memory, MB", 1),
    ("busiest", "busiest worker, %", 0),
]


@dataclass
class Cell:
    """The samples of a program in a scenario, or why there are none to rely on."""

    samples: list[Sample] = field(default_factory=list)
    failure: str = ""

    def values(self, metric: str) -> list[float]:
        """A metric in every round; none where it was not measured."""
        return [] if self.failure else [sample[metric] for sample in self.samples if metric in sample]


#: By the label of a program or variant.
Cells = dict[str, Cell]


@dataclass
class Run:
    """All that one run measured."""

    machine: str
    versions: dict[str, str]
    rounds: int
    seconds: int
    scenarios: dict[str, Cells] = field(default_factory=dict)

    def failures(self) -> list[str]:
        """Cells that failed."""
        cells = ((name, *cell) for name, cells in self.scenarios.items() for cell in cells.items())
        return [f"{name}, {label}" for name, label, cell in cells if cell.failure]


def load(path: Path) -> Run:
    """Reads the results of an earlier run, and prints them."""
    fields = json.loads(path.read_text())
    scenarios = fields.pop("scenarios").items()
    run = Run(**fields)
    run.scenarios = {name: {label: Cell(**cell) for label, cell in cells.items()} for name, cells in scenarios}
    for scenario in SCENARIOS:
        if scenario.name in run.scenarios:
            print(text(scenario, run.scenarios[scenario.name]))
    return run


def machine() -> str:
    """The kind of machine, without its name."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    kernel = re.match(r"[\d.]+", platform.release())
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    processor, system = model[1] if model else platform.machine(), kernel[0] if kernel else "?"
    return f"{CORES} cores ({processor}), {gigabytes:.0f} GB, Linux {system}"


def baseline(cells: Cells) -> str:
    """What ratios refer to: nginx, or the first variant."""
    return "nginx" if "nginx" in cells else next(iter(cells))


def rows(cells: Cells) -> list[list[str]]:
    """Heading and lines of the table of a scenario: median, range, ratio of the medians."""
    shown = [metric for metric in METRICS if any(cell.values(metric[0]) for cell in cells.values())]
    lines = [["", *(heading for _, heading, _ in shown)]]
    for label, cell in cells.items():
        values = (value(cell, cells[baseline(cells)], name, digits) for name, _, digits in shown)
        lines.append([f"{label} FAILED" if cell.failure else label, *values])
    return lines


def value(cell: Cell, base: Cell, metric: str, digits: int) -> str:
    """`7.9 (7.8-8.1) ×0.81`."""
    values, base_values = cell.values(metric), base.values(metric)
    if not values:
        return ""
    ratio = f" ×{median(values) / median(base_values):.2f}" if base_values and cell is not base else ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f}){ratio}"


def text(scenario: Scenario, cells: Cells) -> str:
    """The table for a terminal."""
    if not cells:
        return ""
    lines = rows(cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)
    return "\n".join([f"{scenario.name}: {scenario.title}", *table, ""])


def markdown(scenario: Scenario, cells: Cells) -> str:
    """The table for the page."""
    heading, *lines = ["| " + " | ".join(line) + " |" for line in rows(cells)]
    rule = "|" + "---|" * len(rows(cells)[0])
    return "\n".join([f"**{scenario.title}** (`{scenario.name}`)", "", heading, rule, *lines, ""])


PAGE = """# Performance beside nginx, HAProxy and Envoy

`make bench-peers WRITE=1` measured this and wrote this page; do not edit it. Only ratios travel to other machines:
client, proxy and origin share the cores of one.

{machine}. {versions}. {rounds} rounds of {seconds} s for each cell.

![CPU per request](plots/performance-cpu.svg)

![Latency](plots/performance-p99.svg)

![Memory](plots/performance-memory.svg)

## What each program does

All have one worker for each core, keep connections to the origin (nginx), write no access log, and set
`X-Forwarded-For`, `-Proto`, `-Host` and `Via`. All limit requests by the header `x-api-key`: nginx with `limit_req`,
HAProxy with a stick table, Envoy with `local_ratelimit`, tollgate with `gcra`; the limit is out of reach, or spent where
requests are to be denied. tollgate, HAProxy and Envoy count their metrics, nginx has none. Fields that
tell clients where they stand (`RateLimit`, `X-RateLimit-*`) are off except where a title names them. Clients are `wrk`,
and `h2load` for HTTP/2; TLS is 1.3 with TLS_AES_128_GCM_SHA256 and a P-256 certificate. `bench/programs.py` writes
the configurations, `bench/scenarios.py` lists the scenarios. nginx, HAProxy and Envoy are as their packages come; tollgate is
as `make optimized` builds it for a release: by profile-guided optimization and BOLT, with what two seconds of most of these loads
counted. `PROGRAM=target/release/tollgate` measures a plain build.

## How it is measured

In each round of a scenario every program runs once, started anew, in an order that shifts from round to round. After a
second of warming up, the load runs for the time above. Numbers are the median of the rounds, in parentheses the lowest
and the highest; × is the ratio to nginx, or to the first line.

- CPU per request: user and system time of all threads of the program, divided by the answers.
- p50, p99: what the client waited. But for `paced` that is under full load: each connection sends its next request when
  the last is answered, so that a program that answers more is also asked more.
- Memory: resident memory of all processes under load; pages that processes share count in each.
- Busiest worker: its share of the program's CPU time; {ideal:.0f} % would be all workers alike.

A cell fails, and so does the run, if an answer is not the one that the scenario is about: the load tool's errors and
statuses are checked, protocol and body of an answer before and after, and how many requests the origin counted, and on
how many connections.

`make bench-peers` repeats it on a machine that does nothing else, in about 40 minutes (`ROUNDS=5 SECONDS=4
ONLY=proxied,429 PEERS=tollgate,nginx` choose).

## Results

{tables}"""


def write(run: Run, root: Path) -> None:
    """Writes the page and its plots."""
    tables = [markdown(scenario, run.scenarios[scenario.name]) for scenario in SCENARIOS]
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    page = PAGE.format(
        machine=run.machine, versions=versions, rounds=run.rounds, seconds=run.seconds, ideal=100 / CORES,
        tables="\n".join(tables),
    )
    (root / "docs/performance.md").write_text(page)
    for name, title, relative in [
        ("cpu", "CPU per request, times nginx's (less is better)", True),
        ("p99", "99th percentile of latency under full load, times nginx's (less is better)", True),
        ("memory", "Resident memory, MB (less is better)", False),
    ]:
        bars = {
            scenario.name: group(run.scenarios[scenario.name], name, relative)
            for scenario in SCENARIOS
            if not scenario.variants and (relative or scenario.name in ("start", "proxied", "connections-512", "idle"))
        }
        plot = plots.bar_chart(title, {scenario: shown for scenario, shown in bars.items() if shown}, relative)
        (root / f"docs/plots/performance-{name}.svg").write_text(plot)


def group(cells: Cells, metric: str, relative: bool) -> dict[str, plots.Bar]:
    """The bars of a scenario."""
    base = cells[baseline(cells)].values(metric)
    if not base:
        return {}
    unit = median(base) if relative else 1.0
    return {
        label: plots.Bar(median(values) / unit, min(values) / unit, max(values) / unit)
        for label, cell in cells.items()
        if (values := cell.values(metric))
    }
