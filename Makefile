# `make help` lists the targets. Everything is built from Go modules. Only dev/peers/install and dev/openstack/install
# download Debian packages; tests are skipped without them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TOOL := go tool -modfile=$(CURDIR)/tools/gotools/go.mod

# The directory of dev/peers/install. Programs of the machine take precedence.
export PATH := $(PATH):$(CURDIR)/bin/peers

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Everything without race detector is built with the same flags, so that shared packages, such as Kubernetes' libraries, are
# compiled once. dev/controlplane, dev/testbed and tools/test use the same flags. The linker drops debug information (-w), so
# the compiler makes none. It collects garbage half as often, but not never: new memory can cost more than garbage collection.
FLAGS := -trimpath -gcflags=all=-dwarf=false
BUILD := CGO_ENABLED=0 GOGC=200 go build $(FLAGS)

.PHONY: build
build: ## Build slipway and slipway-agent into bin/
	$(BUILD) -ldflags '-s -w' -o bin/ ./cmd/slipway ./cmd/slipway-agent

DEV_BUILD := $(BUILD) -ldflags '-s -w -X github.com/slipway-dev/slipway/dev/controlplane.moduleDir=$(CURDIR)/dev \
	-X github.com/slipway-dev/slipway/cmd/internal/start.version=devel'

.PHONY: slipway-dev
slipway-dev:
	@cd dev && $(DEV_BUILD) -o ../bin/slipway-dev ./cmd/slipway-dev

.PHONY: build-dev
build-dev: slipway-dev ## Compile the control plane for development (needed once per Kubernetes version)
	@bin/slipway-dev build

.PHONY: demo
# One command in one module compiles each of Slipway's packages once.
demo: ## Show what Slipway does on a real control plane (KEEP=1 keeps it running; CLOUD=aws|gcp emulates another cloud, CLOUD=openstack uses a real OpenStack)
	@cd dev && $(DEV_BUILD) -o ../bin/ ./cmd/slipway-dev github.com/slipway-dev/slipway/cmd/slipway github.com/slipway-dev/slipway/cmd/slipway-agent
	@SLIPWAY_BIN=$(CURDIR)/bin bin/slipway-dev demo

.PHONY: peers
peers: ## Download third-party programs for the tests, if Debian's packages are available
	@dev/peers/install

# The agent and its tests. They link hardly any Kubernetes libraries, so this takes seconds.
AGENT := ./cmd/slipway-agent ./cmd/internal/... ./internal/agent/... ./internal/config/... ./internal/cordon/... \
	./internal/drain/... ./internal/kubeapi/... ./internal/notice/... ./internal/observe
PLATFORMS := linux/amd64 linux/arm64 windows/amd64

# Vet also compiles. It uses the flags of BUILD for this machine, and no optimization for other platforms, where nothing runs.
vetted = $$([ $(1) = "$$(go env GOHOSTOS)/$$(go env GOHOSTARCH)" ] && echo -gcflags=all=-dwarf=false || echo '-gcflags=all=-N -l -dwarf=false')

.PHONY: vet-agent
vet-agent: ## Vet the agent and its tests for every platform of nodes
	@for p in $(PLATFORMS); do echo "vet $$p"; flags=$(call vetted,$$p); \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go vet -trimpath "$$flags" $(AGENT) || exit 1; done

.PHONY: build-all
build-all: ## Build slipway and slipway-agent for every platform of nodes into bin/OS_ARCH/
	@for p in $(PLATFORMS); do echo "build $$p"; \
		export GOOS=$${p%/*} GOARCH=$${p#*/}; $(BUILD) -ldflags '-s -w' -o bin/$${p%/*}_$${p#*/}/ \
			./cmd/slipway ./cmd/slipway-agent || exit 1; done

.PHONY: test
test: export SLIPWAY_BIN := $(CURDIR)/bin
test: build build-dev peers vet-agent ## Run all tests in random order, including the tests on a real control plane
	tools/test
	cd tools/release && ../test
	cd dev && SLIPWAY_TEST_RERUN=1 ../tools/test
	@dev/peers/install missing

.PHONY: test-skew
test-skew: export SLIPWAY_KUBE_VERSION := 1.33
test-skew: export SLIPWAY_BIN := $(CURDIR)/bin
test-skew: build build-dev peers ## Run the end-to-end tests on the oldest supported Kubernetes versions (make test uses the newest)
	cd dev && SLIPWAY_TEST_RERUN=1 ../tools/test ./controlplane/... ./e2e/... ./testbed/...
	cd dev && SLIPWAY_KUBE_VERSION=1.30 ../tools/test ./e2e/agent
	grep -q '^func TestHelmInstallOfAReleaseProtectsNodes(' dev/e2e/chart/*_test.go
	cd dev && SLIPWAY_KUBE_VERSION=1.30 GOFLAGS=-run=TestHelmInstallOfAReleaseProtectsNodes ../tools/test ./e2e/chart
	@dev/peers/install missing

.PHONY: test-kills
test-kills: export SLIPWAY_BIN := $(CURDIR)/bin
test-kills: export SLIPWAY_DEV_GOGC := 400
test-kills: build build-dev ## Kill agent and manager before and after each request of 30 surges (WORKERS=8 drains at a time)
	cd dev && CGO_ENABLED=0 SLIPWAY_DEV_MODULE=$$PWD go test $(FLAGS) -ldflags=-w -vet=off -timeout 3h -v ./e2e/surge \
		-run '^TestI11KillsOnControlPlane$$' -surge.real -surge.deployments=30 -surge.workers=$(or $(WORKERS),8)

.PHONY: test-openstack
test-openstack: ## Install and start a real OpenStack, run the tests that need it, and stop it
	dev/openstack/test

.PHONY: bench
bench: build slipway-dev ## Run the benchmarks (GROUP=agent runs one group; ONLY, NODES, PODS, PEER, PEER_ARGS, ROUNDS: bin/slipway-dev bench --help)
	@bin/slipway-dev bench $(GROUP) $(if $(ONLY),--only '$(ONLY)') $(if $(NODES),--nodes '$(NODES)') $(if $(PODS),--pods '$(PODS)') \
		$(if $(PEER),--peer '$(PEER)') $(if $(PEER_ARGS),--peer-args '$(PEER_ARGS)') $(if $(ROUNDS),--rounds '$(ROUNDS)')

.PHONY: release
release: ## Build the release VERSION=v0.1.0 REGISTRY=ghcr.io/acme/slipway into dist/ (docs/release.md)
	cd tools/release && go run . -source $(CURDIR) -out $(CURDIR)/dist -version '$(VERSION)' -registry '$(REGISTRY)' \
		-download-url '$(DOWNLOAD_URL)' -source-url '$(SOURCE_URL)' $(RELEASE_FLAGS)

.PHONY: push
push: ## Push the release in dist/ to its registry, signed with KEY=cosign.key (OVERWRITE=1 replaces tags)
	cd tools/release && go run . push -dist $(CURDIR)/dist -version '$(VERSION)' -registry '$(REGISTRY)' \
		$(if $(KEY),-key '$(abspath $(KEY))') $(if $(filter 1,$(OVERWRITE)),-overwrite)

.PHONY: lint
lint: ## Run the linters on all modules
	go run ./tools/wordlint
	$(TOOL) golangci-lint run ./...
	cd dev && $(TOOL) golangci-lint run --config ../.golangci.yml ./...
	cd tools/release && $(TOOL) golangci-lint run --config ../../.golangci.yml ./...

.PHONY: audit
audit: ## Check the linked modules for known vulnerabilities and forbidden licences
	tools/audit

.PHONY: generate
# The generators are built with the flags of BUILD.
generate: export CGO_ENABLED := 0
generate: export GOFLAGS := $(FLAGS)
generate: ## Regenerate the generated files and tidy the modules
	go generate ./...
	cd dev && go generate ./...
	go mod tidy && cd dev && go mod tidy && cd ../tools/release && go mod tidy

.PHONY: site
site: site/node_modules/.package-lock.json diagrams ## Build the web site of the documentation in dist/site (needs Node 20)
	cd site && npm run --silent build
	@echo 'Built dist/site. To read it: cd site && npm run preview'

site/node_modules/.package-lock.json: site/package-lock.json
	cd site && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: diagrams
diagrams: ## Draw the pictures of docs/images whose D2 sources have changed
	tools/diagrams/draw

.PHONY: recording
recording: build slipway-dev ## Record slipway top during the Spot notice of the demo into docs/top.cast and docs/top.svg
	@SLIPWAY_BIN=$(CURDIR)/bin bin/slipway-dev record

.PHONY: up
up: build slipway-dev ## Start a control plane with 20 nodes and the Azure emulator in the background
	@bin/slipway-dev up

.PHONY: down
down: slipway-dev ## Stop what make up has started
	@bin/slipway-dev down
