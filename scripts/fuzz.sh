#!/bin/sh
# Runs fuzz targets, led by coverage: scripts/fuzz.sh [TARGET [RUNS]]; all of them, a million times each, unless told
# otherwise. Needs a C++ compiler beside what building needs. What breaks a property is left in fuzz/findings: make it a
# file of fuzz/corpus/TARGET, which every run of the tests tries, and mend what it found.
set -eu
cd "$(dirname "$0")/../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
RUSTFLAGS="$RUSTFLAGS -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
RUSTFLAGS="$RUSTFLAGS -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
export RUSTFLAGS
${CARGO:-cargo} build --release --target "$host"
fuzz=target/$host/release/tollgate-fuzz
for target in ${1:-$(ls corpus)}; do
    # beside its corpus: what earlier runs came upon, and for configurations those of the tests
    found=found/$target
    seeds=corpus/$target
    case $target in config) seeds="$seeds ../tests/fixtures/bad" ;; esac
    mkdir -p "$found" findings
    echo "== $target"
    TARGET=$target "$fuzz" -runs="${2:-1000000}" -max_len=4096 -rss_limit_mb=2048 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="findings/$target-" "$found" $seeds
done
