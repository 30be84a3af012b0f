#!/bin/sh
# Writes the crates that a release build of tollgate is made of, as CycloneDX (JSON). Prints where it is.
#
# usage: scripts/sbom.sh FILE
set -eu
file=$(realpath -m "$1")
cd "$(dirname "$0")/.."
tool=target/tools/cargo-cyclonedx-0.5.9 # Apache-2.0
if [ ! -x "$tool/bin/cargo-cyclonedx" ]; then
    echo "building cargo-cyclonedx" >&2
    cargo install --quiet --locked --root "$tool" "cargo-cyclonedx@${tool##*-}"
fi
# The same for the same commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
mkdir -p "$(dirname "$file")"
# It writes beside Cargo.toml and nowhere else.
written="sbom-$$"
trap 'rm -f "$written.json"' EXIT
"$tool/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --override-filename "$written"
# without the path of this folder
sed -e "s#path+file://$PWD[^\#]*\###; s#?download_url=file://[^\#\"]*##" "$written.json" >"$file"
echo "$file"
