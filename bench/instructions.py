"""Counts the instructions of a request with callgrind, and holds them against `bench/instructions.json`.

`make instructions` runs it. Instructions do not depend on how busy a machine is, if the program always meets the same
order of events. So this client and this upstream take turns with the program, and each waits until all its threads sleep.
tollgate runs with one worker, and only that thread counts: the others work by the clock. Two runs differ only in their
number of requests, so that start and end cancel out.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path

from .loads import KEY, PROMPT, PROMPT_FIELD
from .processes import Process, free_port, read
from .programs import Behind, Place, Setup, Tollgate

KEPT = Path(__file__).parent / "instructions.json"
#: By which part a count may be above the one that is kept.
TOLERANCE = 0.05
#: By which part a request may take more where one in a hundred has a span.
TRACED = 0.03
FEW, MANY = 100, 600
#: Seconds between two requests: so few denials are all noted for operators. Of more, it is a number of them in a time.
PAUSE = 0.01
SETUPS = {
    "proxied": Setup(),
    "traced": Setup(traces=True),
    "denied": Setup(denies=True),
    "posted": Setup(),
    "posted-by-field": Setup(request_field=PROMPT_FIELD),
}
HEAD = f"/small HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {KEY}\r\n"
REQUEST = f"GET {HEAD}\r\n".encode()
POST = f"POST {HEAD}Content-Type: application/json\r\nContent-Length: {len(PROMPT)}\r\n\r\n{PROMPT}".encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\r\n" + b"x" * 64
TIMEOUT = 60.0


def wait_for_sleep(process: Process) -> None:
    """Waits until no thread of the program runs or can run."""

    def asleep() -> bool:
        tasks = Path(f"/proc/{process.main.pid}/task").iterdir()
        return all(read(task / "stat").rpartition(") ")[2][:1] == "S" for task in tasks)

    process.wait_until(asleep, pause=0.0002)


def received(connection: socket.socket, status: bytes) -> None:
    """Reads a whole head, and a body that has a length."""
    text = b""
    while (end := text.find(b"\r\n\r\n")) < 0 or len(text) < end + 4 + body_length(text):
        part = connection.recv(65536)
        if not part:
            raise EOFError(f"the connection ended after {text!r}")
        text += part
    if not text.startswith(status):
        raise ValueError(f"not {status!r}: {text!r}")


def body_length(head: bytes) -> int:
    """What `Content-Length` says."""
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", head)
    return int(length[1]) if length else 0


def drive(process: Process, port: int, upstream: socket.socket, setup: Setup, request: bytes, requests: int) -> None:
    """Sends requests on one connection, one after the other, and answers those that reach the upstream."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as client:
        forwarded: socket.socket | None = None
        for number in range(requests):
            time.sleep(PAUSE)
            wait_for_sleep(process)
            client.sendall(request)
            admitted = number == 0 or not setup.denies
            if admitted:
                forwarded = forwarded or upstream.accept()[0]
                forwarded.settimeout(TIMEOUT)
                received(forwarded, request.split(b"\r\n")[0])
                wait_for_sleep(process)
                forwarded.sendall(ANSWER)
            received(client, b"HTTP/1.1 200 " if admitted else b"HTTP/1.1 429 ")
        if forwarded:
            forwarded.close()


def count(program: Tollgate, name: str, requests: int, directory: Path) -> dict[str, int]:
    """The instructions of a run, from start to end, of each thread by its number."""
    setup = SETUPS[name]
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        upstream.settimeout(TIMEOUT)
        place = Place(directory, free_port(), Behind(upstream.getsockname()[1]))
        output = directory / f"callgrind.{name}.{requests}"
        for earlier in directory.glob(f"{output.name}*"):
            earlier.unlink()
        core = min(os.sched_getaffinity(0))
        options = ["--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}"]
        valgrind = ["taskset", "-c", str(core), "valgrind", *options]

        def serves() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", place.port)) == 0

        with Process(name, valgrind + program.configure(setup, place), directory) as process:
            process.wait_until(serves)
            request = POST if name.startswith("posted") else REQUEST
            drive(process, place.port, upstream, setup, request, requests)
    totals = {
        thread.name.rpartition("-")[2]: re.search(r"^totals: (\d+)$", thread.read_text(), re.MULTILINE)
        for thread in directory.glob(f"{output.name}-*")
    }
    return {thread: int(total[1]) for thread, total in totals.items() if total}


def per_request(program: Tollgate, name: str, directory: Path) -> int:
    """The instructions of the worker for a request. The worker is the thread that more requests make busier."""
    few, many = (count(program, name, requests, directory) for requests in (FEW, MANY))
    return round(max(many[thread] - few.get(thread, 0) for thread in many) / (MANY - FEW))


def main() -> None:
    """Counts, compares, and writes the counts if it is to."""
    binary, root = os.path.abspath(sys.argv[1]), Path(__file__).resolve().parent.parent
    directory = root / "target/bench/instructions"
    directory.mkdir(parents=True, exist_ok=True)
    counts = {name: per_request(Tollgate(binary), name, directory) for name in SETUPS}
    if os.environ.get("UPDATE") == "1":
        KEPT.write_text(json.dumps(counts, indent=2) + "\n")
    kept = json.loads(KEPT.read_text())
    more = False
    for name, number in counts.items():
        change = number / kept[name] - 1
        print(f"{name}: {number} instructions per request, {change:+.1%} of {kept[name]}")
        if change > TOLERANCE:
            more = True
            print(f"  that is too many: callgrind_annotate {directory}/callgrind.{name}.{MANY}-NN says where (the worker's)")
        elif change < -TOLERANCE:
            print("  that is fewer: keep it with `make instructions UPDATE=1`")
    traced = counts["traced"] / counts["proxied"] - 1
    print(f"traced: {traced:+.1%} of proxied, one request in a hundred having a span")
    if traced > TRACED:
        more = True
        print(f"  that is too many: at most {TRACED:.0%}")
    sys.exit(more)


if __name__ == "__main__":
    main()
