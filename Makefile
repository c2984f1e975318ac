# Every target is one call; the logic lives in environment/ and in the `tailtower` command.

PYTHON ?= python3
VENV := .venv/bin

# An exported value would make every process compile all it imports again (50 s instead of 20).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-hosts test-browser reliability up down status bench bench-overhead lint fmt doctor lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create or update .venv from the lock of this machine (CPU or GPU)
	@$(PYTHON) -m environment.install

run: setup ## the whole demonstration; DATA=, MAPPING=, DAYS= and NODES= are passed on
	@$(VENV)/tailtower demo $(if $(DATA),--data "$(DATA)") $(if $(MAPPING),--mapping "$(MAPPING)") \
		$(if $(DAYS),--days $(DAYS)) $(if $(NODES),--nodes $(NODES))

test: setup ## unit and fast integration tests
	@$(VENV)/pytest

test-slow: setup ## the tests that start services, kill processes or train for long
	@$(VENV)/pytest -m slow --hypothesis-profile=default

test-hosts: setup ## several hosts, other numbers of ranks, and killing what can be killed
	@$(VENV)/pytest -m "slow or not slow" tests/tasks/launch/test_kill_matrix.py \
		tests/tasks/launch/test_four_hosts.py tests/tasks/longtail/test_other_hosts.py \
		tests/models/test_resharding.py

test-browser: setup ## Airflow and MLflow in a headless Chromium; pictures in var/screenshots
	@$(VENV)/pytest -m "slow or not slow" tests/browser

reliability: setup ## kill what can be killed, and write docs/reliability.md from what happened
	@TAILTOWER_RELIABILITY=var/reliability $(VENV)/pytest -m "slow or not slow" \
		tests/models/test_resharding.py tests/tasks/launch/test_kill_matrix.py
	@$(VENV)/python -m tests.reliability var/reliability

up: setup ## start Airflow and MLflow on this machine, on loopback only
	@$(VENV)/tailtower up

down: setup ## stop what `make up` started, and nothing else
	@$(VENV)/tailtower down

status: setup ## what of the local stack is running, and where
	@$(VENV)/tailtower status

bench: setup ## run the benchmarks; each prints one JSON line last
	@$(VENV)/python -m benchmarks

bench-overhead: setup ## what Airflow adds to the time of a day's steps
	@$(VENV)/python -m benchmarks.overhead

lint: setup ## ruff and mypy
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

fmt: setup ## format and apply safe fixes
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

doctor: ## what is installed, what is free, what is wrong
	@$(PYTHON) -m environment.doctor

lock: ## compile the locks again from pyproject.toml
	@$(PYTHON) -m environment.lock

clean: ## remove caches and build left-overs; keeps .venv and var
	@rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
