#!/bin/sh
# Builds target/optimized/tollgate, the program that a release ships, from what runs under load: a first build counts it for
# the compiler (profile-guided optimization), and the second for BOLT, which puts the machine code that runs side by side.
# The result has the names of functions for backtraces, not their lines. Takes some 25 minutes on two cores.
#
# usage: scripts/optimized-build.sh
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
merge=$(rustc --print target-libdir)/../bin/llvm-profdata # of the component llvm-tools
bolt=/usr/lib/llvm-19/bin # of the package bolt-19
profile=$PWD/target/profile
rm -rf "$profile"
mkdir -p "$profile" target/optimized

build() { # build FLAGS
    RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --release --locked --bin tollgate --target "$host"
}
built=target/$host/release/tollgate

run_loads() { # run_loads PROGRAM
    export TOLLGATE="$1"
    ROUNDS=1 SECONDS=2 PEERS=tollgate \
        ONLY=proxied,proxied-fields,429,429-fields,large,upload,tls,http2,h2c,connections-512,slow,routes,request-field,store,access-log,customers \
        python3 -m bench >&2
    ROUNDS=1 SECONDS=2 python3 -m bench.decisions >&2
    for limit in $(sed -n 's/^  \([a-z-]*\):.*/\1/p' config/algorithms.yaml); do
        "$1" simulate --config config/algorithms.yaml --limit "$limit" --rate 40/s --for 1h --arrivals poisson >/dev/null
    done
}
unset WRITE RESULTS THROTTLECRAB # of whoever measures with what is built here

build "-Cprofile-generate=$profile"
cp "$built" "$profile/counting"
echo "counting which code runs, for the compiler" >&2
# What is in no load here is built to be small rather than fast.
export LLVM_PROFILE_FILE="$profile/%p.profraw"
run_loads "$profile/counting"
"$merge" merge -o "$profile/merged" "$profile"/*.profraw
# Cargo does not look into the profile: another name makes it build anew.
named=$profile/$(sha256sum "$profile/merged" | cut -c 1-16).profdata
mv "$profile/merged" "$named"
build "-Cprofile-use=$named -Clink-arg=-Wl,--emit-relocs"

lay_out() { # lay_out OPTIONS
    "$bolt/llvm-bolt" "$built" "$@" >"$profile/bolt.log" 2>&1 || { tail -5 "$profile/bolt.log" >&2 && exit 1; }
}
lay_out -instrument -instrumentation-file="$profile/bolt" -instrumentation-file-append-pid -o "$profile/counting"
echo "counting which code runs, for BOLT" >&2
run_loads "$profile/counting"
"$bolt/merge-fdata" -o "$profile/merged" "$profile"/bolt.*.fdata >&2
lay_out -data "$profile/merged" -reorder-blocks=ext-tsp -reorder-functions=cdsort -icf=1 \
    -split-functions -split-all-cold -split-eh -no-huge-pages -o target/optimized/tollgate
