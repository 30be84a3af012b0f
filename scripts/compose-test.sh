#!/bin/sh
# Starts what docker-compose.yml says, looks whether it works, and takes it away.
#
# It takes the Docker engine that runs. Where none runs and dockerd is installed, root gets one for the test, in namespaces
# of its own: no network, and nothing outlives them. For images that are neither there nor can be pulled it makes stand-ins:
# a bootstrap of Debian with the same servers from its packages. Grafana is not among those; its checks need its image.
#
# usage: scripts/compose-test.sh [PROGRAM]
#   PROGRAM  a release build for the image, where it cannot be compiled in a container; without it cargo makes one
set -eu
cd "$(dirname "$0")/.."
fail() { echo "compose-test: $1" >&2; exit 1; }
program=${1:-}
project=tollgate-test
standin=target/containers/debian.tar

bootstrap() {
    [ ! -f "$standin" ] || return 0
    echo "making stand-ins from Debian's packages"
    [ "$(id -u)" -eq 0 ] || fail "a bootstrap needs root"
    mkdir -p target/containers
    # mounts of the bootstrap end with the namespace
    unshare --mount sh -euc '
        trap "rm -rf target/containers/root" EXIT
        debootstrap --variant=minbase --include=ca-certificates,curl,nginx-light,prometheus,redis-server \
            bookworm target/containers/root >target/containers/log || { tail target/containers/log >&2; exit 1; }
        tar -C target/containers/root --one-file-system --exclude "./var/cache/apt/*" --exclude "./var/lib/apt/lists/*" \
            --exclude "./usr/share/doc/*" --exclude "./dev/*" -cf "$1.part" .
        mv "$1.part" "$1"' bootstrap "$standin"
}
compiled() {
    [ -n "$program" ] || { cargo build --release && program=target/release/tollgate; }
}

if [ "${2:-}" = inside ]; then
    mount -t tmpfs tmpfs /run # socket, images and containers
    python3 -c 'import fcntl, socket, struct
# brings the loopback interface up: SIOCSIFFLAGS, IFF_UP
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'
    mkdir -p /etc/docker && mount -t tmpfs tmpfs /etc/docker # settings of another engine, a key of this one
    # in a session of its own: it outlives an interrupt, to take the containers away
    setsid dockerd --data-root /run/data --cgroup-parent "$project" >/run/dockerd.log 2>&1 &
    for _ in $(seq 100); do
        if docker info >/dev/null 2>&1; then break; fi
        sleep 0.2
    done
    docker info >/dev/null 2>&1 || { tail /run/dockerd.log >&2; fail "dockerd does not start"; }
elif ! docker info >/dev/null 2>&1; then
    [ "$(id -u)" -eq 0 ] || fail "no Docker engine runs; start it, or run this as root"
    command -v dockerd >/dev/null 2>&1 || fail "no Docker engine runs, and dockerd is not installed"
    echo "no Docker engine runs: starting one for the test"
    bootstrap
    compiled
    exec unshare --mount --net --pid --fork --kill-child --mount-proc sh scripts/compose-test.sh "$program" inside
fi
if docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose="docker-compose"; fi
command -v ${compose% *} >/dev/null 2>&1 || fail "neither docker compose nor docker-compose is installed"
compose() { $compose -p "$project" "$@"; }

standins=""
clean_up() {
    status=$?
    [ $status -eq 0 ] || compose logs --no-color --tail 20 >&2 || true
    compose down -v --remove-orphans >/dev/null 2>&1 || true
    # shellcheck disable=SC2086
    [ -z "$standins" ] || docker image rm --force $standins >/dev/null 2>&1 || true
    # the groups of an engine of the test
    find /sys/fs/cgroup -depth -type d -path "*/$project*" -exec rmdir {} + 2>/dev/null || true
    exit $status
}
trap clean_up EXIT
trap 'exit 1' INT TERM

stand_in() { # stand_in IMAGE [CHANGE]: what the image does by itself, as an instruction of a Dockerfile
    image=$1
    shift
    echo "a stand-in for $image"
    bootstrap
    docker import "$@" "$standin" "$image" >/dev/null
    standins="$standins $image"
}
grafana=yes
for image in $(sed -nE 's/^FROM (rust:[^ ]*).*/\1/p' Dockerfile) $(sed -n 's/^ *image: \(.*:.*\)/\1/p' docker-compose.yml); do
    # shellcheck disable=SC2015
    docker image inspect "$image" >/dev/null 2>&1 || docker pull --quiet "$image" 2>/dev/null && continue
    case $image in
        rust:*) compiled && stand_in "$image" ;;
        redis:*) stand_in "$image" --change 'ENTRYPOINT ["sh", "-c", "exec \"$@\" --protected-mode no", "sh"]' ;;
        nginx:*) stand_in "$image" --change 'CMD ["nginx", "-g", "daemon off;"]' ;;
        curlimages/*) stand_in "$image" ;;
        prom/*) stand_in "$image" --change 'CMD ["prometheus", "--config.file=/etc/prometheus/prometheus.yml"]' ;;
        grafana/*) grafana="" && echo "without $image, which has no stand-in: its checks are left out" ;;
        *) fail "no stand-in for $image" ;;
    esac
done
scripts/image.sh "$program"
# shellcheck disable=SC2046
compose up --detach --no-build $([ -n "$grafana" ] || echo gateway gateway-2 traffic prometheus)

# Tries again for two minutes: the dashboards are to be alive within one.
eventually() { # eventually WHAT COMMAND ...
    what=$1
    shift
    for _ in $(seq 120); do
        "$@" >/dev/null 2>&1 && { echo "ok: $what"; return; }
        sleep 1
    done
    fail "waited in vain: $what"
}
# Whether Prometheus answers with something that is not empty.
holds() {
    curl -sfG http://127.0.0.1:9091/api/v1/query --data-urlencode "query=$1" | grep -q '"result":\[{'
}

eventually "the gateway answers" curl -sf http://127.0.0.1:8080/v1/orders -H 'x-api-key: enterprise-key'
eventually "both gateways are scraped" holds 'sum(up{job="tollgate"}) == 2'
eventually "every plan asks" holds 'count(sum by (plan) (rate(tollgate_limit_requests_total[1m])) > 0) >= 3'
eventually "some are denied" holds 'sum(rate(tollgate_limit_requests_total{outcome="denied"}[1m])) > 0'
eventually "Redis decides" holds 'sum(rate(tollgate_store_requests_total{op="charge",result="ok"}[1m])) > 0'
eventually "no rule fails" sh -c 'curl -sf http://127.0.0.1:9091/api/v1/rules | grep -q TollgateDown &&
    ! curl -sf http://127.0.0.1:9091/api/v1/rules | grep -qE "\"health\":\"(err|unknown)\""'
if [ -n "$grafana" ]; then
    for dashboard in overview throttling store; do
        eventually "Grafana has $dashboard" curl -sf "http://127.0.0.1:3000/api/dashboards/uid/tollgate-$dashboard"
    done
    eventually "Grafana asks Prometheus" sh -c 'curl -sf -X POST \
        http://127.0.0.1:3000/api/datasources/proxy/uid/prometheus/api/v1/query -d query=up | grep -q gateway'
fi
compose stop redis >/dev/null 2>&1
eventually "an outage shows" holds 'ALERTS{alertname="TollgateStoreBreakerOpen"}'
compose start redis >/dev/null 2>&1
eventually "and passes" holds 'max(tollgate_store_breaker_state{state="open"}) == 0'
echo "compose-test: all is well"
