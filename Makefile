# `make run` and `make test` work on a machine that has Rust and a Debian-like system, and nothing else of ours.

CARGO ?= cargo
# The tests run under cargo-nextest where it is installed, under cargo otherwise.
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help run test valkey optimized image compose-test sbom fuzz audit lint package package-test release bench bench-decisions bench-peers instructions doc docs-figures needs clean book

help:                ## Lists the targets.
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*##/\t/' | expand -t 16

needs:               ## Installs what building and testing need and the machine lacks.
	@sh scripts/install-needs.sh

run:                 ## Builds tollgate and runs it in front of a sample upstream.
	@sh scripts/install-needs.sh run
	@# from nothing that takes 10 s less than a build that prepares for the next one
	CARGO_INCREMENTAL=0 $(CARGO) run -- demo

test: needs          ## Builds and runs every test.
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run
else
	$(CARGO) test --lib --bins --tests
endif

valkey: needs        ## Runs the tests of what is kept in Redis on Valkey, but for those of TLS, which its build lacks.
	PATH="$(CURDIR)/target/python/valkey:$$PATH" $(CARGO) $(if $(NEXTEST),nextest run,test) --test library --test e2e -- redis_ shared --skip tls

# What a release ships. PROGRAM= takes a build that is there in its place.
OPTIMIZED := target/optimized/tollgate

optimized: $(OPTIMIZED) ## Builds target/optimized/tollgate, what a release ships: laid out for what runs under load, in some 25 minutes.

$(OPTIMIZED): Cargo.toml Cargo.lock $(shell find src -type f)
	@sh scripts/install-needs.sh optimized
	@scripts/optimized-build.sh

image:               ## Builds the container image: PROGRAM=target/optimized/tollgate, or it compiles in a container.
	@scripts/image.sh $(PROGRAM)

compose-test:        ## Starts what docker-compose.yml says, tries it and takes it away; needs a Docker engine, or root.
	@sh scripts/install-needs.sh containers
	@scripts/compose-test.sh $(PROGRAM)

sbom:                ## Writes the crates that a release is made of, as CycloneDX, to target/tollgate.cdx.json.
	@scripts/sbom.sh target/tollgate.cdx.json

fuzz:                ## Runs the fuzz targets for long: TARGET=path RUNS=10000000; without them all, a million times each.
	@sh scripts/fuzz.sh "$(TARGET)" $(RUNS)

audit:               ## Looks for known faults, licences and sources of dependencies; installs cargo-deny if it is missing.
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check

lint: needs          ## Formatting, clippy and documentation, warnings denied.
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

package: $(or $(PROGRAM),$(OPTIMIZED)) ## Makes a Debian package of that build, or of PROGRAM=target/release/tollgate, in target/package.
	@scripts/package.sh $< target/package

package-test: $(or $(PROGRAM),$(OPTIMIZED)) ## Installs, starts, upgrades and purges such a package in a layer over this system; needs root.
	@scripts/package-test.sh $<

release:             ## Makes a release of what is checked out, once CI passes: VERSION=1.2.0.
	@sh scripts/release.sh $(VERSION)

bench: needs         ## Measures decisions beside another limiter.
	$(CARGO) bench

bench-peers: $(or $(PROGRAM),$(OPTIMIZED)) ## Measures beside nginx, HAProxy and Envoy: ROUNDS=5 SECONDS=4 ONLY=proxied,429 PEERS=tollgate,nginx WRITE=1.
	@sh scripts/install-needs.sh bench
	@TOLLGATE=$< ROUNDS="$(ROUNDS)" SECONDS="$(SECONDS)" ONLY="$(ONLY)" PEERS="$(PEERS)" WRITE="$(WRITE)" RESULTS="$(RESULTS)" python3 -m bench

bench-decisions: $(or $(PROGRAM),$(OPTIMIZED)) ## Measures decisions over gRPC, beside THROTTLECRAB=path: ROUNDS=3 SECONDS=4 WRITE=1.
	@sh scripts/install-needs.sh bench
	@TOLLGATE=$< ROUNDS="$(ROUNDS)" SECONDS="$(SECONDS)" THROTTLECRAB="$(THROTTLECRAB)" WRITE="$(WRITE)" python3 -m bench.decisions

instructions: needs  ## Holds the instructions of a request against bench/instructions.json; UPDATE=1 writes them.
	$(CARGO) build --bin tollgate --profile instructions
	@UPDATE="$(UPDATE)" python3 -m bench.instructions target/instructions/tollgate

book:                ## Makes a book of the pages in target/book; installs mdBook if it is missing.
	@sh scripts/book.sh

docs-figures:        ## Makes the figures of docs/algorithms.md anew.
	@sh scripts/docs-figures.sh

clean:               ## Removes what was built.
	$(CARGO) clean
