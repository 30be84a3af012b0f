# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked && strip -o /tollgate target/release/tollgate

FROM debian:12.11-slim
RUN useradd --system --uid 10001 --no-create-home tollgate
COPY --from=build /tollgate /usr/local/bin/tollgate
COPY config/docker.yaml config/customers.csv /etc/tollgate/
USER 10001
EXPOSE 8080 9090
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["tollgate", "health"]
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/docker.yaml"]
