# Slipway. `make help` lists what can be asked for. Everything is built from Go modules; nothing else is downloaded but the
# Debian packages of dev/peers/install and dev/openstack/install, which tests skip when they cannot be had.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TOOL := go tool -modfile=$(CURDIR)/tools/gotools/go.mod

# Where dev/peers/install puts other people's programs that the tests meet; what the machine has comes first.
export PATH := $(PATH):$(CURDIR)/bin/peers

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Whatever is not under the race detector is built with the same flags, so that what several programs have in common, which
# is most of Kubernetes' libraries, is compiled once. dev/controlplane and dev/testbed build with them too.
BUILD := CGO_ENABLED=0 go build -trimpath

.PHONY: build
build: ## Build slipway and slipway-agent into bin/
	$(BUILD) -ldflags '-s -w' -o bin/ ./cmd/slipway ./cmd/slipway-agent

.PHONY: slipway-dev
slipway-dev:
	@cd dev && $(BUILD) -ldflags '-s -w -X github.com/slipway-dev/slipway/dev/controlplane.moduleDir=$(CURDIR)/dev' \
		-o ../bin/slipway-dev ./cmd/slipway-dev

.PHONY: build-dev
build-dev: slipway-dev ## Compile the control plane to develop on, for the first time or a new version
	@bin/slipway-dev build

.PHONY: demo
demo: build slipway-dev ## Tell the story on a real control plane, each step checked (KEEP=1 leaves it running, CLOUD=openstack starts a real one)
	@bin/slipway-dev demo

.PHONY: peers
peers: ## Fetch the other people's programs that the tests meet, where Debian's packages can be had
	@dev/peers/install

# What nodes run, with its tests. It links no Kubernetes library to speak of, so that this is a matter of seconds.
AGENT := ./cmd/slipway-agent ./cmd/internal/... ./internal/agent/... ./internal/config/... ./internal/cordon/... \
	./internal/drain/... ./internal/kubeapi/... ./internal/notice/... ./internal/observe
PLATFORMS := linux/amd64 linux/arm64 windows/amd64

# What is vetted is compiled too: for this machine as the product is, and for others, where nothing runs, without optimizing.
vetted = $$([ $(1) = "$$(go env GOHOSTOS)/$$(go env GOHOSTARCH)" ] && echo -trimpath || echo '-gcflags=all=-N -l -dwarf=false')

.PHONY: vet-agent
vet-agent: ## Vet the agent and its tests for every platform that nodes have
	@for p in $(PLATFORMS); do echo "vet $$p"; flags=$(call vetted,$$p); \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go vet "$$flags" $(AGENT) || exit 1; done

.PHONY: build-all
build-all: ## Build slipway and slipway-agent for every platform that nodes have, into bin/OS_ARCH/
	@for p in $(PLATFORMS); do echo "build $$p"; \
		export GOOS=$${p%/*} GOARCH=$${p#*/}; $(BUILD) -ldflags '-s -w' -o bin/$${p%/*}_$${p#*/}/ \
			./cmd/slipway ./cmd/slipway-agent || exit 1; done

.PHONY: test
test: export SLIPWAY_BIN := $(CURDIR)/bin
test: build build-dev peers vet-agent ## Run every test: race detector on, order shuffled, the real control plane included
	tools/test
	cd tools/release && ../test
	cd dev && SLIPWAY_TEST_RERUN=1 ../tools/test
	@dev/peers/install missing

.PHONY: test-skew
test-skew: export SLIPWAY_KUBE_VERSION := 1.33
test-skew: export SLIPWAY_BIN := $(CURDIR)/bin
test-skew: build build-dev peers ## Run the end-to-end tests on the lowest Kubernetes that is supported; make test has the highest
	cd dev && SLIPWAY_TEST_RERUN=1 ../tools/test ./controlplane/... ./e2e/... ./testbed/...
	@dev/peers/install missing

.PHONY: test-openstack
test-openstack: ## Run the tests that need a real OpenStack, which is installed, started and stopped for them
	dev/openstack/test

.PHONY: bench
bench: build slipway-dev ## Measure speed and size; GROUP=agent measures one group, ONLY=binary a part of it
	@bin/slipway-dev bench $(GROUP) --only '$(ONLY)'

.PHONY: release
release: ## Make everything that VERSION=v0.1.0 consists of, into dist/ (docs/release.md)
	cd tools/release && go run . -source $(CURDIR) -out $(CURDIR)/dist -version '$(VERSION)' $(RELEASE_FLAGS)

.PHONY: lint
lint: ## Run the linters over every module
	go run ./tools/wordlint
	$(TOOL) golangci-lint run ./...
	cd dev && $(TOOL) golangci-lint run --config ../.golangci.yml ./...
	cd tools/release && $(TOOL) golangci-lint run --config ../../.golangci.yml ./...

.PHONY: audit
audit: ## Look for known vulnerabilities, and for licences that are not allowed, in what is linked
	tools/audit

.PHONY: generate
# Some of what writes is built for it, with the flags of BUILD.
generate: export CGO_ENABLED := 0
generate: export GOFLAGS := -trimpath
generate: ## Write generated files anew and tidy the modules
	go generate ./...
	cd dev && go generate ./...
	go mod tidy && cd dev && go mod tidy && cd ../tools/release && go mod tidy

.PHONY: site
site: slipway-dev ## Make a web site of docs/ in dist/site, to be read without a network
	@bin/slipway-dev site

.PHONY: up
up: build slipway-dev ## Start a control plane with 20 nodes and the Azure emulator, and leave it running
	@bin/slipway-dev up

.PHONY: down
down: slipway-dev ## Stop what up has started
	@bin/slipway-dev down
