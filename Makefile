# Every target does its own set-up: virtual environment, package, database. `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench dev-server clean database clocks

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/installed database ## Rebuild this repository's history through the queue, and kill a worker meanwhile
	@$(BIN)/lanelog demo

test: .venv/installed database clocks ## Run the unit, contract and integration tests
	@$(BIN)/python -m pytest

lint: .venv/installed ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy queue
	$(BIN)/lint-imports --no-cache

bench: .venv/installed database ## Measure messages per second on this machine
	@$(BIN)/python -m benchmarks

dev-server: .venv/installed database ## Start a private database and print its URL; Ctrl-C stops it
	@$(BIN)/lanelog dev-server

clean: ## Remove the virtual environment and everything generated
	rm -rf .venv dist .hypothesis .*_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

database:
	@.ci/setup-database

clocks:
	@.ci/setup-clocks

.venv/installed: pyproject.toml .ci/setup-python
	@.ci/setup-python
