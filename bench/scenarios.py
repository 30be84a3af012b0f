"""What is measured: who does what under which load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .loads import PROMPT, PROMPT_FIELD, H2load, Idle, Load, Wrk
from .programs import LARGE_BYTES, Setup

#: How long the origin's slow answers take, in seconds.
SLOW = 0.05
#: Requests in a second on each of 64 connections.
PACE = 80
MANY_ROUTES = 10_000
MANY_CUSTOMERS = 1_000_000

AnyLoad = Load | Idle


@dataclass(frozen=True)
class Scenario:
    """A row of cells that are compared: one for each program, or for each variant of tollgate alone."""

    name: str
    title: str
    load: AnyLoad = Wrk()
    setup: Setup = Setup()
    #: By label; each is run by tollgate. Empty: all programs run `setup` under `load`.
    variants: Mapping[str, tuple[Setup, AnyLoad]] = field(default_factory=dict)


def routed(routes: int, called: int) -> tuple[Setup, AnyLoad]:
    """Requests spread over so many of the routes."""
    return Setup(routes=routes), Wrk(path="/api/v1/service-{n}/items", numbers=called)


def known(customers: int, calling: int) -> tuple[Setup, AnyLoad]:
    """Requests of so many of the customers."""
    return Setup(customers=customers), Wrk(key="key-{n}", numbers=calling)


SCENARIOS = [
    Scenario("proxied", "Proxied under a limit by API key, 64 connections"),
    Scenario(
        "proxied-fields", "The same, with the fields that tell clients where they stand (tollgate, Envoy)",
        setup=Setup(limit_fields=True),
    ),
    Scenario("429", "Denied: every request is over its limit, 64 connections", setup=Setup(denies=True)),
    Scenario(
        "429-fields", "The same, with the fields that tell clients where they stand (tollgate, Envoy)",
        setup=Setup(denies=True, limit_fields=True),
    ),
    Scenario(
        "paced", f"Proxied, {64 * PACE} requests/s on 64 connections: latency at the same load for all",
        H2load(64, streams=1, rate=PACE),
    ),
    Scenario("large", "Answers of 1 MiB, 16 connections", Wrk(16, "/large")),
    Scenario("upload", "Request bodies of 1 MiB, 16 connections", Wrk(16, "/upload", upload="x" * LARGE_BYTES)),
    Scenario("tls", "Proxied over TLS 1.3, 64 connections", setup=Setup(tls=True)),
    Scenario(
        "http2", "Proxied over HTTP/2 and TLS, 16 connections, 8 requests at once on each",
        H2load(), Setup(tls=True, http2=True),
    ),
    Scenario(
        "h2c", "Proxied over HTTP/2 in the clear, 16 connections, 8 requests at once on each",
        H2load(), Setup(http2=True),
    ),
    Scenario("connections-512", "Proxied, 512 connections", Wrk(512), Setup(connections=512)),
    Scenario("connections-1", "Proxied, one connection", Wrk(1)),
    *(Scenario(f"connections-{count}", f"Proxied, {count} connections", Wrk(count)) for count in (2, 4, 16)),
    Scenario(
        "slow", f"Proxied to an upstream that takes {SLOW * 1000:.0f} ms, 256 connections",
        Wrk(256, "/slow"), Setup(connections=256),
    ),
    Scenario("start", "Memory after the start", Idle(0)),
    Scenario("idle", "Memory with 10 000 idle connections", Idle(10_000), Setup(connections=10_000)),
    Scenario(
        "routes", "10 000 routes beside ten",
        variants={
            "10 routes": routed(10, 10),
            "10 000, of which 10 are called": routed(MANY_ROUTES, 10),
            "10 000, all are called": routed(MANY_ROUTES, MANY_ROUTES),
        },
    ),
    Scenario(
        "request-field", "Request bodies of 10 KB under a limit by API key, and by a field of the body, too",
        variants={
            "by key": (Setup(), Wrk(upload=PROMPT)),
            f"by key and `{PROMPT_FIELD}`": (Setup(request_field=PROMPT_FIELD), Wrk(upload=PROMPT)),
        },
    ),
    Scenario(
        "store", "The limit in Redis: leased takes tokens in advance, exact asks for each request",
        variants={
            "in memory": (Setup(), Wrk()),
            "in Redis, leased": (Setup(consistency="leased"), Wrk()),
            "in Redis, exact": (Setup(consistency="exact"), Wrk()),
        },
    ),
    Scenario(
        "access-log", "A line of the access log for each request",
        variants={"no access log": (Setup(), Wrk()), "a line for each": (Setup(access_log=True), Wrk())},
    ),
    Scenario(
        "customers", "A million customers beside ten",
        variants={
            "10 customers": known(10, 10),
            "1 000 000, of whom 10 call": known(MANY_CUSTOMERS, 10),
            "1 000 000, all call": known(MANY_CUSTOMERS, MANY_CUSTOMERS),
        },
    ),
]
