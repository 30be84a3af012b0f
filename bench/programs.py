"""The programs that are compared. Each writes the same setup in its own configuration language."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
#: So many requests in a second are never denied.
HUGE = 1_000_000_000
#: How long a connection may be idle, and an exchange may take, in seconds.
PATIENCE = 600
FOREVER = 1_000_000_000


@dataclass(frozen=True)
class Setup:
    """What a proxy does in a scenario."""

    denies: bool = False
    tls: bool = False
    #: HTTP/2 to the client: over TLS where there is TLS, else in the clear by prior knowledge.
    http2: bool = False
    #: How many client connections there will be.
    connections: int = 64
    #: Answers tell clients where they stand, where the program can do that.
    limit_fields: bool = False
    #: So many routes below `/api/v1/`; 0 is one route for everything. tollgate only.
    routes: int = 0
    #: The field of the request's JSON that the limit counts by, too. tollgate only.
    request_field: str = ""
    #: So many customers in a directory; 0 is a limit by the value of the header. tollgate only.
    customers: int = 0
    #: Redis decides: `exact` on each request, `leased` on several in advance; empty is memory. tollgate only.
    consistency: str = ""
    #: A line for each request. tollgate only.
    access_log: bool = False
    #: One request in a hundred has a span, for a collector that is unavailable. tollgate only.
    traces: bool = False


@dataclass(frozen=True)
class Behind:
    """The ports of the servers that all programs use."""

    origin: int = 0
    redis: int = 0


@dataclass(frozen=True)
class Place:
    """Where a program listens, what is behind it, and where its files are."""

    directory: Path
    port: int
    behind: Behind = Behind()

    def certificate(self, part: str) -> str:
        """Where the `cert`, the `key`, or `both` of all programs are, in PEM."""
        return str(self.directory.parent / f"{part}.pem")

    def write(self, name: str, text: str) -> str:
        """Writes a file of the program's configuration; its path."""
        (self.directory / name).write_text(text)
        return str(self.directory / name)


class Program(ABC):
    """A proxy. `configure` returns the command that runs it."""

    name: str

    def __init__(self, executable: str | None) -> None:
        self.executable = executable or ""

    @abstractmethod
    def configure(self, setup: Setup, place: Place) -> list[str]:
        """Writes the configuration; the command to run."""

    def version(self) -> str:
        """The number of the installed version."""
        for option in ("--version", "-v"):
            shown = subprocess.run([self.executable, option], capture_output=True, text=True)
            if found := re.search(r"\d+\.\d+\.\d+", shown.stdout + shown.stderr):
                return found[0]
        return "unknown"


def system_program(name: str) -> str | None:
    """A program of the system's packages, also where users' paths do not lead."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Tollgate(Program):
    """This project: what a release is made of, or the build that `TOLLGATE` names."""

    name = "tollgate"

    def configure(self, setup: Setup, place: Place) -> list[str]:
        pair = {"cert": place.certificate("cert"), "key": place.certificate("key")}
        tls = {"tls": {"certificates": [pair]}} if setup.tls else {}
        rule = {"rate": "1/h", "burst": 1} if setup.denies else {"rate": f"{HUGE}/s", "burst": HUGE}
        origin = {"nodes": [f"127.0.0.1:{place.behind.origin}"], "timeouts": {"keep_alive": f"{PATIENCE}s"}}
        upstreams: dict[str, object] = {"origin": origin}
        config: dict[str, object] = {
            "listeners": [{"address": f"127.0.0.1:{place.port}", "http2": setup.http2, **tls}],
            "admin": {"address": "127.0.0.1:0"},
            "upstreams": upstreams,
            "limits": {"per-key": {"key": {"header": "x-api-key"}, "algorithm": "gcra", **rule}},
            "connections": {"max": setup.connections + 100, "idle": f"{PATIENCE}s"},
            "headers": {"ietf": setup.limit_fields, "x_ratelimit": "delta" if setup.limit_fields else "off"},
            "access_log": "full" if setup.access_log else "off",
        }
        if setup.request_field:
            key = [{"header": "x-api-key"}, {"request_field": setup.request_field}]
            config["limits"] = {"per-key": {"key": key, "algorithm": "gcra", **rule}}
        if setup.customers:
            rows = "".join(f"key-{n},customer-{n},basic\n" for n in range(setup.customers))
            place.write("customers.csv", "credential,customer,plan\n" + rows)
            config["customers"] = {"identify": [{"header": "x-api-key"}], "directory": {"file": "customers.csv"}}
            config["plans"] = ["basic"]
            config["limits"] = {"per-key": {"key": "customer", "algorithm": "gcra", "plans": {"basic": rule}}}
        if setup.consistency:
            shared = {"mode": "shared", "consistency": setup.consistency}
            config["store"] = {"redis": f"redis://127.0.0.1:{place.behind.redis}/0"}
            config["limits"] = {"per-key": {"key": {"header": "x-api-key"}, "algorithm": "gcra", **rule, **shared}}
        if setup.traces:
            upstreams["collector"] = {"nodes": ["127.0.0.1:1"]}
            config["traces"] = {"upstream": "collector", "sample": 0.01}
        paths = [f"/api/v1/service-{n}/**" for n in range(setup.routes)] or ["/**"]
        config["routes"] = [
            {"name": f"route-{n}", "match": {"path": path}, "upstream": "origin", "limits": ["per-key"]}
            for n, path in enumerate(paths)
        ]
        return [self.executable, "run", "--config", place.write("tollgate.yaml", yaml(config))]


def yaml(config: dict[str, object]) -> str:
    """Lists at the top in lines, all else in brackets."""
    lines = []
    for name, value in config.items():
        items = [f"\n- {json.dumps(item)}" for item in value] if isinstance(value, list) else [f" {json.dumps(value)}"]
        lines.append(f"{name}:{''.join(items)}\n")
    return "".join(lines)


#: What nginx needs to run as any user, without files outside of its directory.
NGINX_FRAME = """
{user}
{modules}
daemon off;
pid nginx.pid;
error_log stderr crit;
worker_processes {workers};
worker_rlimit_nofile {files};
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_timeout {patience}s;
    keepalive_requests {forever};
    tcp_nopush on;
    client_max_body_size 0;
{http}
}}
"""


def nginx_command(executable: str, place: Place, connections: int, http: str, modules: str = "") -> list[str]:
    """Writes a configuration of nginx with what both the proxy and the origin need."""
    hard_limit = os.sysconf("SC_OPEN_MAX")
    text = NGINX_FRAME.format(
        user=f"user {getpass.getuser()};" if os.geteuid() == 0 else "",
        modules=modules, workers=CORES, files=hard_limit, connections=connections, http=http,
        patience=PATIENCE, forever=FOREVER,
    )
    return [executable, "-p", str(place.directory), "-e", "stderr", "-c", place.write("nginx.conf", text)]


class Nginx(Program):
    """nginx with `limit_req`, one process for each core."""

    name = "nginx"

    def configure(self, setup: Setup, place: Place) -> list[str]:
        protocol = (" ssl" if setup.tls else "") + (" http2" if setup.http2 else "")
        pair = f"ssl_certificate {place.certificate('cert')}; ssl_certificate_key {place.certificate('key')};"
        rate, burst = ("1r/m", "") if setup.denies else ("1000000r/s", " burst=1000000 nodelay")
        http = f"""
    limit_req_zone $http_x_api_key zone=keys:10m rate={rate};
    upstream origin {{
        server 127.0.0.1:{place.behind.origin};
        keepalive 512;
        keepalive_requests {FOREVER};
        keepalive_timeout {PATIENCE}s;
    }}
    server {{
        listen 127.0.0.1:{place.port}{protocol} reuseport backlog=4096;
        {pair if setup.tls else ""}
        ssl_protocols TLSv1.2 TLSv1.3;
        limit_req zone=keys{burst};
        limit_req_status 429;
        location / {{
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header Via "1.1 nginx";
            add_header Via "1.1 nginx";
        }}
    }}
"""
        # one worker may be given all connections, and has as many to the origin
        return nginx_command(self.executable, place, 2 * setup.connections + 256, http)


class HAProxy(Program):
    """HAProxy with a stick table, one thread for each core."""

    name = "haproxy"

    def configure(self, setup: Setup, place: Place) -> list[str]:
        bind = f"ssl crt {place.certificate('both')} alpn {'h2' if setup.http2 else 'http/1.1'}" if setup.tls else ""
        if setup.http2 and not setup.tls:
            bind = "proto h2"
        return [self.executable, "-db", "-f", place.write("haproxy.cfg", f"""
global
    nbthread {CORES}
    # HAProxy keeps no idle connection to a server while more than a quarter of the descriptors for these are in use
    maxconn {8 * setup.connections}
    no strict-limits
defaults
    mode http
    timeout connect 5s
    timeout client {PATIENCE}s
    timeout server {PATIENCE}s
    timeout http-keep-alive {PATIENCE}s
    http-reuse always
frontend clients
    bind 127.0.0.1:{place.port} backlog 4096 {bind}
    stick-table type string len 64 size 100k expire 10m store http_req_rate({"1h" if setup.denies else "1s"})
    http-request track-sc0 req.hdr(x-api-key)
    http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {1 if setup.denies else HUGE} }}
    option forwardfor
    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request set-header Via "1.1 haproxy"
    http-response set-header Via "1.1 haproxy"
    default_backend origin
backend origin
    server origin 127.0.0.1:{place.behind.origin}
""")]


class Envoy(Program):
    """Envoy with `local_ratelimit` and a descriptor for each key, one worker thread for each core."""

    name = "envoy"
    TYPES = "type.googleapis.com/envoy.extensions"

    def configure(self, setup: Setup, place: Place) -> list[str]:
        def typed(name: str, kind: str, **fields: object) -> dict[str, object]:
            return {"name": name, "typed_config": {"@type": f"{self.TYPES}.{kind}", **fields}}

        def address(port: int) -> dict[str, object]:
            return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

        def header(key: str, value: str) -> dict[str, object]:
            return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}

        tokens = 1 if setup.denies else HUGE
        bucket = {"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "3600s" if setup.denies else "1s"}
        always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
        limit = typed(
            "envoy.filters.http.local_ratelimit", "filters.http.local_ratelimit.v3.LocalRateLimit",
            stat_prefix="limit", filter_enabled=always, filter_enforced=always,
            token_bucket={"max_tokens": HUGE, "tokens_per_fill": HUGE, "fill_interval": "1s"},
            descriptors=[{"entries": [{"key": "api_key"}], "token_bucket": bucket}],
            rate_limits=[{"actions": [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}]}],
            enable_x_ratelimit_headers="DRAFT_VERSION_03" if setup.limit_fields else "OFF",
        )
        router = typed("envoy.filters.http.router", "filters.http.router.v3.Router", suppress_envoy_headers=True)
        manager = typed(
            "envoy.filters.network.http_connection_manager",
            "filters.network.http_connection_manager.v3.HttpConnectionManager",
            stat_prefix="clients", use_remote_address=True, generate_request_id=False, via="1.1 envoy",
            http_filters=[limit, router],
            route_config={
                "request_headers_to_add": [header("x-forwarded-host", "%REQ(:authority)%")],
                "virtual_hosts": [{
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "origin", "timeout": f"{PATIENCE}s"}}],
                }],
            },
        )
        chain: dict[str, object] = {"filters": [manager]}
        if setup.tls:
            chain_file, key_file = ({"filename": place.certificate(part)} for part in ("cert", "key"))
            pair = {"certificate_chain": chain_file, "private_key": key_file}
            common = {"tls_certificates": [pair], "alpn_protocols": ["h2" if setup.http2 else "http/1.1"]}
            kind = "transport_sockets.tls.v3.DownstreamTlsContext"
            chain["transport_socket"] = typed("envoy.transport_sockets.tls", kind, common_tls_context=common)
        bounds = {bound: FOREVER for bound in ("max_connections", "max_pending_requests", "max_requests")}
        origin = {"endpoint": {"address": address(place.behind.origin)}}
        config = {"static_resources": {
            "listeners": [{
                "name": "clients", "address": address(place.port), "filter_chains": [chain], "tcp_backlog_size": 4096,
            }],
            "clusters": [{
                "name": "origin", "type": "STATIC", "circuit_breakers": {"thresholds": [bounds]},
                "load_assignment": {"cluster_name": "origin", "endpoints": [{"lb_endpoints": [origin]}]},
            }],
        }}
        path = place.write("envoy.json", json.dumps(config, indent=1))
        options = ["--concurrency", str(CORES), "--disable-hot-restart", "--log-level", "error"]
        return [self.executable, "-c", path, *options]


def redis_command(place: Place) -> list[str]:
    """A Redis that keeps nothing on disk."""
    return ["redis-server", "--port", str(place.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(place.directory)]


#: Bodies of the origin.
SMALL = "x" * 64
LARGE_BYTES = 1 << 20


def origin_command(place: Place, slow: float) -> list[str]:
    """An nginx that answers: `/large` with a file, `/upload` when it has read the body, `/slow` after so many seconds.

    The answer to anything but `/large` is `SMALL`.
    """
    (place.directory / "large").write_bytes(b"x" * LARGE_BYTES)
    http = f"""
    server {{
        listen 127.0.0.1:{place.port} reuseport backlog=4096;
        default_type text/plain;
        location / {{ return 200 {SMALL}; }}
        location = /large {{ root {place.directory}; sendfile on; }}
        location = /upload {{ client_body_buffer_size 2m; echo_read_request_body; echo_exec /; }}
        location = /slow {{ echo_sleep {slow}; echo_exec /; }}
        location = /requests {{ stub_status; }}
    }}
"""
    modules = "load_module /usr/lib/nginx/modules/ngx_http_echo_module.so;"
    return nginx_command(system_program("nginx") or "nginx", place, 16384, http, modules)


def tollgate(root: Path) -> str:
    """The build of tollgate that is measured."""
    return os.path.abspath(os.environ.get("TOLLGATE") or root / "target/optimized/tollgate")


def programs(root: Path) -> list[Program]:
    """All programs, in the order of the tables."""
    return [
        Tollgate(tollgate(root)),
        Nginx(system_program("nginx")),
        HAProxy(system_program("haproxy")),
        Envoy(str(root / "target/python/envoy/_bin/envoy")),
    ]
