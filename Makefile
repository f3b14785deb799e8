# Every target sets up what it needs; run twice, the second is fast. `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ORACLE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/zerokl/oracle
CLIENTS ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/zerokl/clients
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUST := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name 'Cargo.toml')
READY := $(VENV)/.ready

.PHONY: help setup tools demo test test-full nightly check bits test-arm goldens oracles clients bench docs wheel clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

tools:
	@command -v $(PYTHON) >/dev/null || { echo "zerokl needs Python 3.11 or newer: install it from your system's packages or python.org."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "zerokl needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V): pass PYTHON=python3.12, for example."; exit 1; }
	@command -v cargo >/dev/null || { echo "zerokl needs cargo (Rust 1.89 or newer): install it with rustup, https://rustup.rs."; exit 1; }
	@command -v cc >/dev/null || { echo "zerokl needs a C compiler for linking: install gcc or clang (Debian: apt install gcc)."; exit 1; }

$(VENV)/.python: constraints.txt | tools
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet maturin
	@touch $@

$(READY): $(VENV)/.python pyproject.toml $(RUST)
	@echo "Building zerokl (the first time takes a minute or two) ..."
	@PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --extras dev --quiet
	@touch $@

setup: $(READY)  ## environment and build, nothing else

demo: $(READY)  ## serve a real model on the CPU, generate, and prove that its bits don't move
	@$(BIN)/python tools/demo.py

test: $(READY)  ## the tests, under a minute
	@$(BIN)/python -m pytest -n auto -m "not slow and not nightly and not gpu and not oracle and not model"

test-full: $(READY)  ## all tests that need no GPU, under 30 minutes
	@$(BIN)/python -m pytest -n 2 -m "not nightly and not gpu and not oracle"
	@cargo test --quiet --workspace --exclude zerokl-py --exclude zerokl-http
	@cargo test --quiet --release --lib -p zerokl-http

nightly: $(READY)  ## the long sweeps and trials
	@$(BIN)/python -m pytest -n 2 -m "nightly"

bits: $(READY)  ## only the tests of bits: any plan, any cache state, any neighbours
	@$(BIN)/python -m pytest -n auto tests/bits tests/ops -m "not nightly and not gpu"

check: $(READY)  ## lint, types, import contracts, formatting, generated files fresh
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets -- -D warnings
	@$(BIN)/python tools/generate.py --check
	@$(BIN)/python tools/sizes.py

docs: $(READY)  ## write the generated files: wire messages, option tables, SGLang flags
	@$(BIN)/python tools/generate.py

$(ORACLE)/.ready: tools/oracle-requirements.txt | tools
	@echo "Installing torch and transformers into $(ORACLE) (several GB, once per machine) ..."
	@$(PYTHON) -m venv $(ORACLE)
	@PIP_CONSTRAINT= $(ORACLE)/bin/python -m pip install --quiet -r tools/oracle-requirements.txt
	@touch $@

oracles: $(READY) $(ORACLE)/.ready  ## make the golden files of transformers anew (needs torch; an environment of its own)
	@$(BIN)/python tools/tokenizer_goldens.py --python $(ORACLE)/bin/python
	@$(BIN)/python tools/oracles.py --python $(ORACLE)/bin/python

$(CLIENTS)/.ready: tools/clients-requirements.txt | tools
	@echo "Installing clients into $(CLIENTS) (1 GB, once per machine) ..."
	@$(PYTHON) -m venv $(CLIENTS)
	@PIP_CONSTRAINT= $(CLIENTS)/bin/python -m pip install --quiet -r tools/clients-requirements.txt
	@touch $@

# Debian: gcc-aarch64-linux-gnu and qemu-user-static. Rust: rustup target add aarch64-unknown-linux-gnu.
ARM = aarch64-unknown-linux-gnu
test-arm:  ## the kernels' tests with NEON, emulated (needs a cross compiler, qemu and Rust's standard library for ARM)
	@CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
	cargo test --quiet --release -p zerokl-kernels --target $(ARM)

clients: $(READY) $(CLIENTS)/.ready  ## litellm, langchain, lm-eval, schemathesis against the server (an environment of their own)
	@$(BIN)/python -m pytest tests/http/test_more_clients.py

goldens: $(READY)  ## write our own golden bits anew: only when CHANGELOG says "Bits"
	@$(BIN)/python -m pytest tests -m "not nightly and not gpu and not oracle" --write-goldens -k golden

bench: $(READY)  ## CPU speed side by side with llama.cpp
	@benchmarks/llama_cpp/build.sh
	@benchmarks/llama_cpp/first.sh $(BIN)/zerokl bench peers ~/.cache/zerokl/llama.cpp/model.gguf --llama-cpp ~/.cache/zerokl/llama.cpp/bin

wheel: $(VENV)/.python  ## dist/zerokl-*.whl
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin build --release --quiet --out dist

clean:  ## remove what was built
	@rm -rf $(VENV) target dist src/zerokl/_native*.so
