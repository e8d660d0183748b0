# For your own images: docker build --build-arg VERSION=v0.1.0 --target slipway-agent .
# VERSION, COMMIT and COMMIT_DATE (RFC 3339) are what `slipway version` prints. The build does not see the git checkout.
# Releases do not use this file. `make release` builds their images without a container engine (docs/release.md).
#
# GO_IMAGE has the compiler. A tag can be moved, so give the image a digest. With REQUIRE_DIGESTS=true the build fails without a
# digest (docs/release.md).
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
ARG COMMIT=
ARG COMMIT_DATE=
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -buildid= -X github.com/slipway-dev/slipway/cmd/internal/start.version=$VERSION \
        -X github.com/slipway-dev/slipway/cmd/internal/start.commit=$COMMIT \
        -X github.com/slipway-dev/slipway/cmd/internal/start.commitDate=$COMMIT_DATE" \
      -o /out/ ./cmd/slipway ./cmd/slipway-agent

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532

# The agent, for every node.
FROM base AS slipway-agent
COPY --from=build /out/slipway-agent /usr/local/bin/slipway-agent
ENTRYPOINT ["/usr/local/bin/slipway-agent"]

# Everything else. This is also the image without --target.
FROM base AS slipway
COPY --from=build /out/slipway /usr/local/bin/slipway
ENTRYPOINT ["/usr/local/bin/slipway"]
