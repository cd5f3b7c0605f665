# Every target is one readable line or a script.
.DEFAULT_GOAL := help
PY := .venv/bin/python
WORKERS := 2
export PATH := $(CURDIR)/out/servers:$(PATH)
.PHONY: help install dev demo up stack-up stack-status stack-restart stack-down test test-compose check format protos docs lock bench faults judge clean

help:            ## what can be made
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

install:         ## .venv with what running needs
	@./scripts/install.sh run

dev:             ## .venv with what tests and checks need
	@./scripts/install.sh dev

demo: install    ## draw a short session of prompts, with and without the cache; see out/demo/report.html
	@$(PY) -m services demo

up: install      ## start Afterimage on 127.0.0.1:50051
	@$(PY) -m services up

stack-up: dev    ## start every service as its own process over PostgreSQL, RabbitMQ, S3 and Weaviate (UP="--workers 3")
	@$(PY) -m scripts.stack up $(UP)

stack-status:    ## what of that runs, where, and in how much memory
	@$(PY) -m scripts.stack status

stack-restart: dev ## drain one service and start it again where it was (SERVICE=gateway: all of a kind; gpu_worker-2: one)
	@$(PY) -m scripts.stack restart $(or $(SERVICE),$(error say which: SERVICE=gateway or SERVICE=gpu_worker-2))

stack-down:      ## drain and stop it; its data stays in out/stack
	@$(PY) -m scripts.stack down

test: dev        ## install what tests need and run them all, on two processors (WORKERS=n: on more, 0: on one)
	@$(PY) -m pytest -n $(WORKERS)

test-compose: dev ## build the images, bring the Docker stack up and break it; needs a Docker engine, leaves nothing running
	@AFTERIMAGE_TEST_COMPOSE=1 $(PY) -m pytest tests/compose

check: dev       ## formatting, lint, types, import arrows, contracts, generated code
	@./scripts/check.sh

format: dev      ## format and fix what can be fixed
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

protos: dev      ## generate the gRPC code beside the .proto files
	@PYTHON=$(PY) ./scripts/protos.sh

docs: dev        ## write docs/reference anew from the code, and build the pages as a site in out/site
	@$(PY) -m scripts.reference
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

lock: dev        ## write constraints.txt anew
	@PATH=$$PWD/.venv/bin:$$PATH ./scripts/lock.sh

bench: dev       ## run every benchmark that `python -m bench` knows on this machine, about two hours
	@$(PY) -m bench

faults: dev      ## kill services and servers under load, cut networks (FAULTS=full: 1,000 jobs, a quarter of an hour; FAULTS_KILLS=3: thrice the kills; FAULTS_SLOW=3: slow workers)
	@$(PY) -m pytest tests/faults -s -q

judge: dev       ## score the bundled models on held-out prompts; writes out/judge/summary.json (needs npm; 15 to 30 minutes)
	@$(PY) -m services.trainer judge real round-trip clip large small

clean:           ## remove what was built here, not the local stack's data (rm -r out/stack) nor .afterimage
	@if [ -d out ]; then find out -mindepth 1 -maxdepth 1 ! -name stack -exec rm -rf {} + ; fi
	@rm -rf .cache .mypy_cache .ruff_cache .pytest_cache dist
	@if [ -d out/stack ]; then echo "kept out/stack, the local stack's data: make stack-down, then rm -r out/stack"; fi
