# Two commands on a fresh machine: `make demo` and `make test`. Both install first.

PYTHON ?= python3
BIN := .venv/bin
# Where bytecode isn't kept, every process compiles all modules, and the tests with their asserts.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest --numprocesses auto --durations 10
EXTRAS := train,tensorboard,export,serve,client,analysis,dev

.PHONY: help install demo test quick check format proto bundles clean

help:
	@echo "make demo     install, train a little, export, serve, stream text, answer an ablation query"
	@echo "make test     install, then all checks: format, lint, types, tests"
	@echo "make quick    the tests that start no server, process or training"
	@echo "make check    the checks without the tests"
	@echo "make format   mend formatting and what the linter can mend"
	@echo "make proto    write the protobuf modules again"
	@echo "make bundles  train and export the bundles that ship (about 15 minutes)"
	@echo "make clean    remove .venv and caches"

install: $(BIN)/.installed

# torch goes first: a plain build is then in place before anything depends on it.
$(BIN)/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Torsor needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$$($(PYTHON) .ci/pin.py torch)"
	$(BIN)/pip install --quiet --constraint .ci/constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/torsor demo

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(PYTEST) --dist loadfile

quick: install
	$(PYTEST) --dist load -m 'not process and not slow'

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. serve/wire/torsor.proto serve/wire/open_inference.proto

bundles: install
	$(BIN)/torsor train osm-rnn --data shakespeare --out runs/osm
	$(BIN)/torsor export runs/osm --out serve/bundles/osm-rnn-shakespeare
	$(BIN)/torsor train tanh-rnn --data shakespeare --out runs/tanh
	$(BIN)/torsor export runs/tanh --out serve/bundles/tanh-rnn-shakespeare

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
