# `make setup` is part of every other target; it takes a second when nothing is to be done.
.PHONY: setup demo test lint bench

BIN := .venv/bin

setup:
	@testbed/setup.sh

demo: setup
	@$(BIN)/python -P -m testbed.demo $(ARGS)

test: setup
	$(BIN)/pytest $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	@for bench in $$(ls bench/*.py | grep -v __init__); do \
	  echo "== $$bench"; $(BIN)/python -m "bench.$$(basename $$bench .py)" || exit 1; done
