# Slipway. `make help` lists what can be asked for.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: slipway-dev build-dev up down
slipway-dev:
	@cd dev && go build -o ../bin/slipway-dev ./cmd/slipway-dev

build-dev: slipway-dev ## Compile the control plane to develop on, for the first time or a new version
	@bin/slipway-dev build

up: slipway-dev ## Start a real control plane with 20 nodes and a workload, and leave it running
	@bin/slipway-dev up

down: slipway-dev ## Stop what `make up` started, and remove its data
	@bin/slipway-dev down
