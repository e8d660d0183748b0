# For those who build their own images: docker build --build-arg VERSION=v0.1.0 --target slipway-agent .
# Releases are not built from this but by `make release`, which needs no container engine (docs/release.md).
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
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
