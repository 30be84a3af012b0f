#!/bin/sh
# Starts what docker-compose.yml says, looks whether it works, and takes it away. Needs a Docker engine.
set -eu
cd "$(dirname "$0")/.."
docker compose version >/dev/null 2>&1 || { echo "compose-test: no Docker engine with compose here" >&2; exit 1; }

project="tollgate-test"
compose() { docker compose -p "$project" "$@"; }
trap 'compose logs --tail 20 >&2; compose down -v --remove-orphans' EXIT
compose up --build --detach --wait --wait-timeout 900

# Tries again for two minutes: the dashboards are to be alive within one.
eventually() { # eventually WHAT COMMAND ...
    what=$1
    shift
    for _ in $(seq 120); do
        "$@" >/dev/null 2>&1 && { echo "ok: $what"; return; }
        sleep 1
    done
    echo "compose-test: waited in vain: $what" >&2
    exit 1
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
for dashboard in overview throttling store; do
    eventually "Grafana has $dashboard" curl -sf "http://127.0.0.1:3000/api/dashboards/uid/tollgate-$dashboard"
done
eventually "Grafana asks Prometheus" sh -c 'curl -sf -X POST http://127.0.0.1:3000/api/datasources/proxy/uid/prometheus/api/v1/query \
    -d query=up | grep -q gateway'
compose stop redis >/dev/null 2>&1
eventually "an outage shows" holds 'ALERTS{alertname="TollgateStoreBreakerOpen"}'
compose start redis >/dev/null 2>&1
eventually "and passes" holds 'max(tollgate_store_breaker_state{state="open"}) == 0'
trap 'compose down -v --remove-orphans' EXIT
echo "compose-test: all is well"
