# The image of sentinel-rls: one static binary and the TLS roots, no shell, no package manager, no root.
# docs/containers.md says how to run it. Built by `make image`, which stamps the version.

# Another base for the build, where this one cannot be had: a root file system with Go on PATH and /bin/sh.
ARG GO_IMAGE=golang:1.26

FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=
# nodev leaves out the commands that sign tokens, grpcnotrace a debugging page of grpc-go that nothing serves, whose templates
# look methods up by name: then the linker would keep every method of every type, 9 MiB.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -tags=grpcnotrace,nodev \
      -ldflags "-s -w -X main.version=$VERSION" -o /sentinel-rls ./cmd/sentinel-rls

FROM scratch
LABEL org.opencontainers.image.title="sentinel-rls" \
      org.opencontainers.image.description="Tenant-aware rate limits and authentication for Envoy, decided in Redis" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /sentinel-rls /usr/local/bin/
# Scrapes and probes come from outside a container. Whom the port answers is for the network to say.
ENV SENTINEL_ADMIN_ADDRESS=0.0.0.0:9091
EXPOSE 8081 9091
USER 65532:65532
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/local/bin/sentinel-rls", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/sentinel-rls"]
CMD ["serve"]
