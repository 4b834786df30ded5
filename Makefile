# `make demo`: a first look. `make test`: everything that must hold. Both set up .venv by themselves.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint validate bench bench-compare notebooks pictures clean

demo: .venv/.core
	$(BIN)/lengthwise compare chat --out runs/demo --force

test: .venv/.dev lint
	$(MAKE) .venv/.core
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile
	$(MAKE) notebooks demo

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: .venv/.dev .venv/.core
	$(BIN)/python notebooks/run.py

# Predicted against measured on this machine; says so where the machine is too noisy to tell.
validate: .venv/.dev .venv/.core
	$(BIN)/python benchmarks/validate.py

# Speed and memory of the simulator; `make bench-compare BASE=rev` beside another revision.
bench: .venv/.dev .venv/.core
	$(BIN)/python benchmarks/bench.py

bench-compare: .venv/.dev .venv/.core
	$(BIN)/python benchmarks/bench.py --compare $(BASE)

# The pictures of README.md and docs/, from the demo's records and a few small runs.
pictures: demo
	$(BIN)/python docs/pictures.py

clean:
	rm -rf .venv build dist runs *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps: what is installed already is not installed again until its files change. The package is
# compiled as it is installed (setup.py); `python -m pytest` and `python -m lengthwise` run the
# sources in this folder as they are.
SOURCES := $(shell find lengthwise traces serving policies sim executor -name '*.py' -o -name '*.toml' -o -name '*.json')

.venv/.core: pyproject.toml setup.py $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -rf build
	$(PIP) .
	touch $@

.venv/.dev: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -rf build
	$(PIP) --no-compile torch==2.13.0 'setuptools>=77' mypy==2.4.1
	$(PIP) --no-compile --no-build-isolation '.[executor,dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true  # in a third of pip's time
	touch $@ .venv/.core
