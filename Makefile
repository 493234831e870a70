# The commands that people type. Each makes what it needs: `make demo` and `make test` run on a bare checkout.
PYTHON ?= python3
STEPS ?= 3
# errors only: pip warns of every index that lacks a package
PIP_FLAGS ?= -qq --disable-pip-version-check

.PHONY: demo test test-verl check docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train a tiny tool-using agent with real verl on the CPU, and look at it (5 minutes)"
	@echo "make test       install and test"
	@echo "make test-verl  the tests that run real verl (10 minutes)"
	@echo "make check      format, lint, types, tests"
	@echo "make docs       write the tables of docs/ from the code"
	@echo "make bench      the benchmarks"

define python_check
@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info[:2] <= (3, 12); \
	sys.exit(0 if ok else "verl-otel needs Python 3.10 to 3.12, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
endef

.venv/done: pyproject.toml
	$(python_check)
	@echo "install: the project and what its tests need, into .venv"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@.venv/bin/python -m pip install $(PIP_FLAGS) -e '.[mlflow]' --group dev
	@touch $@

.venv-demo/done: pyproject.toml
	$(python_check)
	@echo "install: verl, vLLM for the CPU and torch, into .venv-demo (4 GB, a minute or several)"
	@$(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	@.venv-demo/bin/python -m pip install $(PIP_FLAGS) -e '.[demo]'
	@# They come with verl and vLLM, but their wheels do not match the CPU build of torch.
	@.venv-demo/bin/python -m pip uninstall $(PIP_FLAGS) -y torchvision torchaudio torchcodec
	@touch $@

.venv-demo/tests: .venv-demo/done
	@.venv-demo/bin/python -m pip install $(PIP_FLAGS) pytest pytest-asyncio pytest-timeout hypothesis
	@touch $@

demo: .venv-demo/done
	@.venv-demo/bin/python examples/tool_agent/demo.py demo-data --steps $(STEPS)

test: .venv/done
	.venv/bin/python -m pytest -n auto

test-verl: .venv-demo/tests
	.venv-demo/bin/python -m pytest -m verl tests/verl -v --timeout 900

check: .venv/done
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python scripts/generate_docs.py --check
	.venv/bin/python -m pytest -n auto

docs: .venv/done
	.venv/bin/python scripts/generate_docs.py

bench: .venv/done
	@for script in benchmarks/*.py; do echo "== $$script"; .venv/bin/python $$script; done

clean:
	rm -rf .venv .venv-demo demo-data verl-otel-data .pytest_cache .mypy_cache .ruff_cache
