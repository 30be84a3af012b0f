#!/bin/sh
# Builds target/optimized/tollgate, the program that a release ships, by profile-guided optimization: a first build counts
# which code runs under load, and the second is laid out for that. Takes some 20 minutes on two cores.
#
# usage: scripts/optimized-build.sh
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
merge=$(rustc --print target-libdir)/../bin/llvm-profdata # of the component llvm-tools
profile=$PWD/target/profile
rm -rf "$profile"
mkdir -p "$profile" target/optimized

build() { # build FLAGS
    RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --release --locked --bin tollgate --target "$host"
}
built=target/$host/release/tollgate

build "-Cprofile-generate=$profile"
cp "$built" "$profile/tollgate"
export LLVM_PROFILE_FILE="$profile/%p.profraw" TOLLGATE="$profile/tollgate"
unset WRITE RESULTS THROTTLECRAB # of whoever measures with what is built here
echo "counting which code runs" >&2
# What is in no load here is built to be small rather than fast.
ROUNDS=1 SECONDS=2 PEERS=tollgate \
    ONLY=proxied,proxied-fields,429,429-fields,large,upload,tls,http2,h2c,connections-512,slow,routes,request-field,store,access-log,customers \
    python3 -m bench >&2
ROUNDS=1 SECONDS=2 python3 -m bench.decisions >&2
for limit in $(sed -n 's/^  \([a-z-]*\):.*/\1/p' config/algorithms.yaml); do
    "$TOLLGATE" simulate --config config/algorithms.yaml --limit "$limit" --rate 40/s --for 1h --arrivals poisson >/dev/null
done
"$merge" merge -o "$profile/merged" "$profile"/*.profraw
# Cargo does not look into the profile: another name makes it build anew.
named=$profile/$(sha256sum "$profile/merged" | cut -c 1-16).profdata
mv "$profile/merged" "$named"
build "-Cprofile-use=$named"
cp "$built" target/optimized/tollgate
