# The image holds tollgate, the libraries that it is linked with, certificates and a user: no shell and no packages.
#
#   docker build -t tollgate .
#
# With `--build-arg PROGRAM=ready` it takes target/image/tollgate in place of compiling: `make image` does so.
ARG PROGRAM=compiled

FROM rust:1.95-bookworm AS base

FROM base AS compiled
RUN apt-get update && apt-get install -y --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked && strip -o /usr/local/bin/tollgate target/release/tollgate

FROM base AS ready
COPY target/image/tollgate /usr/local/bin/

FROM ${PROGRAM} AS root
RUN mkdir -p /image/etc && cd /image && \
    cp -L --parents /usr/local/bin/tollgate $(ldd /usr/local/bin/tollgate | grep -o '/[^ ]*') /etc/ssl/certs/ca-certificates.crt . && \
    echo 'hosts: files dns' >etc/nsswitch.conf && \
    echo 'tollgate:x:10001:10001::/:/usr/sbin/nologin' >etc/passwd && \
    echo 'tollgate:x:10001:' >etc/group

FROM scratch
COPY --from=root /image /
COPY config/docker.yaml config/customers.csv /etc/tollgate/
ENV PATH=/usr/local/bin
USER 10001
EXPOSE 8080 9090
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["tollgate", "health"]
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/docker.yaml"]
