# For those who build their own images: docker build --build-arg VERSION=v0.1.0 --target slipway-agent .
# Releases are not built from this but by `make release`, which needs no container engine (docs/release.md).
#
# GO_IMAGE is what compiles. A tag can be moved: give it with a digest, and REQUIRE_DIGESTS=true to have the build fail on one
# without (docs/release.md).
ARG GO_IMAGE=golang:1.26

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG GO_IMAGE
ARG REQUIRE_DIGESTS=false
RUN case "$REQUIRE_DIGESTS $GO_IMAGE" in "true "*@sha256:*|"false "*) ;; \
      *) echo "GO_IMAGE: $GO_IMAGE: want IMAGE@sha256:DIGEST, or REQUIRE_DIGESTS=false" >&2; exit 1 ;; esac
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=devel
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -buildid= -X github.com/slipway-dev/slipway/cmd/internal/start.version=$VERSION" \
      -o /out/ ./cmd/slipway ./cmd/slipway-agent

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532

# What runs on every node.
FROM base AS slipway-agent
COPY --from=build /out/slipway-agent /usr/local/bin/slipway-agent
ENTRYPOINT ["/usr/local/bin/slipway-agent"]

# Everything else, and what is built without --target.
FROM base AS slipway
COPY --from=build /out/slipway /usr/local/bin/slipway
ENTRYPOINT ["/usr/local/bin/slipway"]
