# Every target does its own set-up: virtual environment, package, database. `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test heart test-rest test-thorough test-mysql test-all lint docs bench bench-compare bench-guard chaos proof dev-server clean database clocks browser java mysql mysqlclient previous promtool

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

DEMO := PYTHONPATH=examples $(BIN)/python -P -m demo

demo: .venv/installed database ## Rebuild this repository's history through the queue, and kill a worker meanwhile
	@$(DEMO)

demo-spark: .venv/installed database java ## The demo, then its log archived, reported on and replayed with Spark
	@rm -rf demo-spark
	@$(DEMO) --archive demo-spark

# Two workers: most tests wait for processes and servers. A file of tests stays on one worker.
PYTEST := $(BIN)/python -m pytest -n 2 --dist=loadfile
# What differs between the drivers, with the other one, where it could be built.
MYSQLCLIENT := [ ! -f .mysqlclient/installed ] || PYTHONPATH=.mysqlclient $(PYTEST) -k mysqlclient \
	tests/integration/database/test_database.py tests/integration/database/test_fork.py \
	tests/integration/database/test_interrupted.py tests/integration/database/test_lent_connections.py tests/integration/publisher/test_packet.py \
	tests/integration/database/test_stopped_packets.py tests/integration/publisher/test_wrapped.py tests/integration/client/test_orm.py \
	tests/integration/client/test_ack_on_a_connection.py

# One run for all tiers, the longest to start first: Spark's session starts beside other tests.
COSTS := .pytest_cache/heart.json

test: .venv/installed database clocks browser java promtool ## Run the main tests: in five minutes they show what is broken
	@rm -f $(COSTS)
	@$(PYTEST) -m "not thorough" --costs=$(COSTS) --no-loadscope-reorder tests/spark tests/unit tests/contract tests/integration

heart: .venv/installed ## Fail if the last `make test` has outgrown its budget of processor seconds or of waits
	@$(BIN)/python .ci/heart $(COSTS)

# All variants on both families take two hours (WHOLE=1, `make test-all`). .ci/run has 45 minutes: so each family runs a
# third of them, another one than the other family, and the next commit runs the next third.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
PART = $(if $(WHOLE),,--part=$$((($(COMMITS) + $(1)) % 3))/3)

# `make --jobs=2 test-rest` runs its two halves side by side; they do not disturb each other.
test-rest: test-thorough test-mysql ## Run what .ci/run adds to `make test`: MySQL, a third of the variants, chaos

test-thorough: .venv/installed database clocks browser java mysqlclient previous promtool
	@$(PYTEST) -m thorough $(call PART,0) tests/unit tests/contract tests/integration
	@$(MYSQLCLIENT)
	@$(PYTEST) tests/acceptance
	@$(PYTEST) -m thorough $(call PART,0) tests/spark

test-mysql: .venv/installed database clocks browser mysql mysqlclient previous promtool
	@$(PYTEST) $(call PART,1) tests/contract tests/integration tests/acceptance --server=mysql-local
	@$(MYSQLCLIENT) --server=mysql-local
	@$(BIN)/python -m pytest $(call PART,0) tests/chaos

test-all: test ## Run every test on MariaDB and on MySQL, and the tests of chaos; takes two hours
	@$(MAKE) --jobs=2 test-rest WHOLE=1

lint: .venv/installed ## Check style, types, the direction of imports, sizes, and security
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy queue examples benchmarks
	$(BIN)/lint-imports --no-cache
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive queue
	$(BIN)/python .ci/size
	$(BIN)/python .ci/audit

docs: .venv-docs/installed ## Build the documentation into docs/_build/html; a warning is an error
	@.venv-docs/bin/python -m sphinx --fail-on-warning --keep-going --quiet --builder html --doctree-dir docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/index.html

bench: .venv/installed database ## Measure messages per second on this machine
	@$(BIN)/python -m benchmarks

# REV=commit: the other one; the last commit before this one if it is left out.
bench-compare: .venv/installed database ## Measure this commit and another one (REV=) side by side
	@$(BIN)/python -m benchmarks.compare $(or $(REV),HEAD~1)

bench-guard: .venv/installed database ## Fail if a message costs half as much again as recorded
	@$(BIN)/python -m benchmarks.guard --server local

# LONG=1: an hour. SEED=n: another schedule of faults. SERVER=mysql-local: on MySQL.
chaos: .venv/installed database clocks ## Break everything around the queue for ten minutes, then check its history
	@PYTHONPATH=tests $(BIN)/python -m chaos.run --seed=$(or $(SEED),1) --seconds=$(if $(LONG),3600,600) --server=$(or $(SERVER),local)

proof: .venv/installed database clocks java mysql ## Chaos with ten seeds, the soak, Spark's archive, ORMs and Group Replication under kills, and four incidents, on both families; takes three hours
	PYTHONPATH=tests $(BIN)/python -m chaos.proof
	PYTHONPATH=tests $(BIN)/python -m chaos.soak --server=local
	PYTHONPATH=tests $(BIN)/python -m chaos.soak --server=mysql-local
	PYTHONPATH=tests $(BIN)/python tests/spark/prove.py --server=local
	PYTHONPATH=tests $(BIN)/python tests/spark/prove.py --server=mysql-local
	$(BIN)/python -m benchmarks.incidents --server=local
	$(BIN)/python -m benchmarks.incidents --server=mysql-local
	LANELOG_BILLS=10000 LANELOG_KILLS=20 $(PYTEST) tests/integration/client/test_orm.py -k exactly_once --server=local
	LANELOG_BILLS=10000 LANELOG_KILLS=20 $(PYTEST) tests/integration/client/test_orm.py -k exactly_once --server=mysql-local
	LANELOG_FAILOVERS=10 $(BIN)/python -m pytest -s tests/integration/engine/test_group_replication.py

dev-server: .venv/installed database ## Start a private database and print its URL; Ctrl-C stops it
	@$(BIN)/lanelog dev-server

clean: ## Remove the virtual environment and everything generated
	rm -rf .venv .venv-docs .mysqlclient .previous dist demo-spark docs/_build .hypothesis .*_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

database:
	@.ci/setup-database

clocks:
	@.ci/setup-clocks

browser:
	@.ci/setup-browser

java:
	@.ci/setup-java

promtool:
	@.ci/setup-promtool

mysql:
	@tests/servers/mysql

mysqlclient: .venv/installed
	@.ci/setup-mysqlclient

previous: .venv/installed
	@.ci/setup-previous

.venv/installed: pyproject.toml .ci/setup-python
	@.ci/setup-python

.venv-docs/installed: pyproject.toml .ci/setup-python
	@.ci/setup-python .venv-docs docs
