#!/bin/sh
# Makes a release of the commit that is checked out: writes VERSION where it stands, runs CI, commits, tags and writes the
# crates that it is made of. A release that CI refuses leaves the tree as it was. Needs no network and pushes nothing.
#
# usage: scripts/release.sh VERSION
set -eu
cd "$(dirname "$0")/.."
refuse() { echo "$1" >&2; exit 1; }
version=${1:-}
echo "$version" | grep -Eq '^[0-9]+\.[0-9]+\.[0-9]+$' || refuse "usage: scripts/release.sh VERSION, like 1.2.0"
[ -z "$(git status --porcelain)" ] || refuse "git status shows changes: commit or remove them first"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "the tag v$version exists already"
grep -q '^## Unreleased$' CHANGELOG.md || refuse "CHANGELOG.md has no section \"Unreleased\""
trap 'git checkout -q -- Cargo.toml Cargo.lock CHANGELOG.md deploy' EXIT
sed -i "s/^version = \".*\"/version = \"$version\"/" Cargo.toml
sed -i -E "s/^(version|appVersion): .*/\1: $version/" deploy/helm/Chart.yaml
sed -i "s/image: \"tollgate:.*/image: \"tollgate:$version\"/" deploy/kubernetes/tollgate.yaml
sed -i "s/^## Unreleased$/## Unreleased\n\n## $version ($(date -u +%Y-%m-%d))/" CHANGELOG.md
cargo update --quiet --workspace --offline
.ci/run
git commit -qam "Release $version"
trap - EXIT
git tag -a "v$version" -m "tollgate $version"
sbom=$(scripts/sbom.sh "target/tollgate-$version.cdx.json")
echo "v$version is committed and tagged: git push --follow-tags publishes it; $sbom goes with it"
