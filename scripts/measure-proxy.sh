#!/bin/sh
# CPU time per request of a release build on loopback: proxied, and denied. Needs wrk.
set -eu
cd "$(dirname "$0")/.."
cargo build --release
tollgate=target/release/tollgate

"$tollgate" demo --listen 127.0.0.1:18080 --admin 127.0.0.1:19090 --upstream 127.0.0.1:9000 >/dev/null 2>&1 &
upstream=$!
"$tollgate" run --config config/tollgate.yaml >/dev/null 2>&1 &
gateway=$!
trap 'kill $upstream $gateway' EXIT
until curl -sf -o /dev/null http://127.0.0.1:9090/readyz && curl -sf -o /dev/null http://127.0.0.1:9000/; do :; done

# In hundredths of a second, as the system counts.
cpu() { awk '{ print $14 + $15 }' "/proc/$gateway/stat"; }

for plan in enterprise free; do
    for round in 1 2 3; do
        before=$(cpu)
        requests=$(wrk -t1 -c32 -d4s -H "x-api-key: $plan-key" http://127.0.0.1:8080/v1/orders | awk '/requests in/ { print $1 }')
        after=$(cpu)
        echo "$plan: $requests requests, $(((after - before) * 10000 / requests)) us of CPU each"
    done
done
echo "enterprise is unlimited: all proxied; free: nearly all denied"
