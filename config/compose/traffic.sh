#!/bin/sh
# Customers of every plan, each at a steady pace, until it is told to stop: `traffic.sh HOST:PORT ...` for each gateway.
# A pace is in requests per second at each gateway; the limits are those of config/docker.yaml.
set -eu

customers=""
customer() { # customer PACE PATH [OPTION-OF-CURL ...]
    pace=$1 path=$2
    shift 2
    for gateway in $gateways; do
        curl -s -o /dev/null --rate "$pace/s" --max-time 10 "$@" "http://$gateway$path?n=[1-1000000000]" &
        customers="$customers $!"
    done
}

gateways=$*
# shellcheck disable=SC2086
trap 'kill $customers; exit 0' INT TERM

customer 2 /v1/orders                                # nobody's: half of it is over the limit
customer 8 /v1/orders -H 'x-api-key: free-key'       # more than the plan allows
customer 20 /v1/orders/1 -H 'x-api-key: pro-key'     # well within
customer 10 /v1/orders -H 'x-api-key: enterprise-key' # unlimited
customer 3 /v1/search -H 'x-api-key: pro-key'
customer 4 /v1/exports -H 'x-api-key: pro-key'       # waits for its turn
customer 1 / -A browser                              # a route without limits
wait
