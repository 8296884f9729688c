# `make setup` is part of every other target; it takes a second when nothing is to be done.
.PHONY: setup demo test lint bench bench-accuracy coverage versions fuzz

# looked up when used: setup makes it, and may make it a link to a place that ordinary users can enter
BIN = $(shell readlink -f .venv)/bin

setup:
	@testbed/setup.sh

demo: setup
	@$(BIN)/python -P -m testbed.demo $(ARGS)

# tests take what is installed: that is the checkout, or the copy that ordinary users can read
test:
	@testbed/setup.sh --databases
	$(BIN)/pytest -o pythonpath= $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# real scripts of many libraries, which setup does not install; writes docs/coverage.md
coverage: setup
	@DS_BUILD_OPS=0 $(BIN)/python -m pip -q --disable-pip-version-check install --root-user-action=ignore "gpumem[coverage]"
	@$(BIN)/python -m bench.coverage $(ARGS)

# every version of PyTorch, some 5 GB each: for the night
versions: setup
	@$(BIN)/python -m bench.versions $(ARGS)

bench: setup
	@for bench in $$(grep -l '^if __name__' bench/*.py); do \
	  echo "== $$bench"; $(BIN)/python -m "bench.$$(basename $$bench .py)" || exit 1; done

# our estimates and others' against measured jobs; DATA is a folder with the public rows (bench/accuracy/jobs.py).
# Makes an environment with the PyTorch of xMem's authors, some 5 GB; ARGS may name one for each set, such as
# --python xmem=/opt/torch2.6/bin/python
bench-accuracy: setup
	@$(BIN)/python -m bench.accuracy "$(DATA)" $(ARGS)

# PyTorch's own allocator against our simulator; the pythons in TORCHES have a torch for CUDA each
TORCHES ?= $(BIN)/python
COMMANDS ?= 500000
SEED ?= 0
fuzz: setup
	$(BIN)/python -m tests.estimator.fuzz --commands $(COMMANDS) --seed $(SEED) $(TORCHES)
