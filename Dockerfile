# The image holds one binary. Without a configuration it runs on its defaults: embedded store and SQLite in the volume.
#
#     docker build -t capgate .
#     docker run -p 8080:8080 -v capgate:/var/lib/capgate capgate
#     docker run -p 8080:8080 -v capgate:/var/lib/capgate -v ./config:/etc/capgate:ro capgate serve --config /etc/capgate/capgate.toml
#
# The admin listener stays on the container's loopback. To publish it, give it a token and an address:
#     -e CAPGATE_ADMIN_TOKEN=... -e CAPGATE_ADMIN__LISTEN=0.0.0.0:9090 -p 9090:9090

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --user-group --home-dir /var/lib/capgate --create-home --shell /usr/sbin/nologin capgate
COPY --from=build /src/target/release/capgate /usr/local/bin/capgate
ENV CAPGATE_INTAKE__LISTEN=0.0.0.0:8080
USER capgate
WORKDIR /var/lib/capgate
VOLUME /var/lib/capgate
EXPOSE 8080 9090
ENTRYPOINT ["capgate"]
CMD ["serve"]
