# The program alone: one static binary, no shell, nobody's root. Build with `docker build -t karpenter .`; it runs on a read-only root.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev ca-certificates
# What `karpenter_build_info` says it was built from: --build-arg KARPENTER_COMMIT=$(git rev-parse HEAD).
ARG KARPENTER_COMMIT=""
WORKDIR /src
COPY . .
# On Alpine the target is musl, which links statically. The caches survive between builds and stay out of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin karpenter && cp target/release/karpenter /karpenter

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /karpenter /usr/local/bin/karpenter
# So that `kubectl exec deployment/karpenter -- karpenter explain …` finds it.
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/usr/local/bin/karpenter"]
