#!/bin/sh
# Makes the figures of docs/algorithms.md anew: the pictures, and what stands in its console blocks.
#
# usage: scripts/docs-figures.sh [COMMAND THAT RUNS TOLLGATE]
#
# A console block starts with a line `$ tollgate ...`; the rest of the block is replaced by what that command prints.
# The same sources give the same bytes, so a difference after a run is a change of behaviour.
set -eu
cd "$(dirname "$0")/.."

if [ $# -eq 0 ]; then
    cargo build --quiet
    set -- target/debug/tollgate
fi
tollgate=$*
page=docs/algorithms.md

grep -o 'plots/[a-z-]*\.svg' "$page" | sort -u | while read -r plot; do
    limit=$(basename "$plot" .svg)
    case $limit in
        adaptive-concurrency) upstream='--hold 500ms --servers 5' ;;
        *) upstream='--hold 2s' ;;
    esac
    # shellcheck disable=SC2086 # the words are meant to be split
    $tollgate simulate --config config/algorithms.yaml --limit "$limit" $upstream \
        --rate 12/s --for 40s --arrivals on_off --plot "docs/$plot" > /dev/null
done

new=$(mktemp)
trap 'rm -f "$new"' EXIT
awk -v tollgate="$tollgate" '
    /^```console$/ { block = 1; print; next }
    block && /^\$ tollgate / {
        print
        command = $0
        sub(/^\$ tollgate/, tollgate, command)
        while (command ~ /\\$/ && (getline line) > 0) {
            print line
            sub(/\\$/, "", command)
            command = command line
        }
        while ((command | getline line) > 0) print line
        if (close(command) != 0) exit 1
        skip = 1
        next
    }
    /^```$/ { block = 0; skip = 0 }
    !skip { print }
' "$page" > "$new"
cat "$new" > "$page"
