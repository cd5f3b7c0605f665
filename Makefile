# Every target is one line or a script.
.DEFAULT_GOAL := help
PY := .venv/bin/python
WORKERS := 3
export PATH := $(CURDIR)/out/servers:$(PATH)
.PHONY: help install dev demo demo-video up stack-up stack-status stack-restart stack-down test proofs test-compose check format protos docs lock audit sbom bench faults judge clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

install:         ## make .venv with the packages that running needs
	@./scripts/install.sh run

dev:             ## make .venv with the packages that tests and checks need
	@./scripts/install.sh dev

demo: install    ## generate a short session of prompts with and without the cache; writes out/demo/report.html
	@$(PY) -m services demo

demo-video: install    ## generate six clips, a minute after the install; writes out/demo-video/report.html
	@$(PY) -m services demo-video

up: install      ## start Afterimage on 127.0.0.1:50051
	@$(PY) -m services up

stack-up: dev    ## start every service in a process of its own, with PostgreSQL, RabbitMQ, S3 and Weaviate (UP="--workers 3")
	@$(PY) -m scripts.stack up $(UP)

stack-status:    ## show the stack's processes with state, address and memory
	@$(PY) -m scripts.stack status

stack-restart: dev ## drain a service and start it again (SERVICE=gateway: all its replicas; SERVICE=gpu_worker-2: one replica)
	@$(PY) -m scripts.stack restart $(or $(SERVICE),$(error name a service: SERVICE=gateway or SERVICE=gpu_worker-2))

stack-down:      ## drain and stop the stack; its data stays in out/stack
	@$(PY) -m scripts.stack down

test: dev        ## run the tests with three workers, enough for two processors (WORKERS=n: with n, 0: in one process)
	@$(PY) -m pytest -n $(WORKERS) -m "not proof"

proofs: dev      ## run the long and the repeated tests that tests/proofs.py lists
	@$(PY) -m pytest -n $(WORKERS) -m proof

test-compose: dev ## build the images, start the Docker stack and test its faults; needs a Docker engine, leaves nothing running
	@AFTERIMAGE_TEST_COMPOSE=1 $(PY) -m pytest tests/compose

check: dev       ## check formatting, lint, types, import rules, contracts and generated code
	@./scripts/check.sh

format: dev      ## format the code and apply automatic fixes
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

protos: dev      ## generate the gRPC code beside the .proto files
	@PYTHON=$(PY) ./scripts/protos.sh

docs: dev        ## write docs/reference from the code, and build the pages as a site in out/site
	@$(PY) -m scripts.reference
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

lock: dev        ## write constraints.txt from pyproject.toml
	@PATH=$$PWD/.venv/bin:$$PATH ./scripts/lock.sh

audit: dev       ## ask the package index for known vulnerabilities of the locked packages
	@$(PY) -m scripts.audit

sbom: dev        ## list the packages of .venv as CycloneDX, in out/sbom.cdx.json
	@mkdir -p out; .venv/bin/uv tool run --from cyclonedx-bom==7.5.0 cyclonedx-py environment .venv --pyproject pyproject.toml --output-reproducible --of JSON -o out/sbom.part && mv out/sbom.part out/sbom.cdx.json

bench: dev       ## run every benchmark of `python -m bench` on this machine; takes about two and a half hours
	@$(PY) -m bench

faults: dev      ## kill services and servers under load, cut networks (FAULTS=full: 1,000 jobs, 15 minutes; FAULTS_VIDEO=200: 200 clips; FAULTS_KILLS=3: three times the kills; FAULTS_SLOW=3: steps three times as long; FAULTS_ORDER=urgent: lanes ordered by urgency; FAULTS_CLOCKS=600: clocks 600 s ahead and behind)
	@$(PY) -m pytest tests/faults -s -q

judge: dev       ## score the bundled models on held-out prompts; writes out/judge/summary.json (needs npm; 15 to 30 minutes)
	@$(PY) -m services.trainer judge real round-trip clip large small

clean:           ## remove built files; keep the local stack's data (out/stack) and .afterimage
	@if [ -d out ]; then find out -mindepth 1 -maxdepth 1 ! -name stack -exec rm -rf {} + ; fi
	@rm -rf .cache .mypy_cache .ruff_cache .pytest_cache dist
	@if [ -d out/stack ]; then echo "kept out/stack, the local stack's data: make stack-down, then rm -r out/stack"; fi
