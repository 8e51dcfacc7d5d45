# SPDX-License-Identifier: Apache-2.0
#   make demo    decode a prompt with the small model in the box, plain and speculative
#   make test    run the tests
#   make package-test    build and install the package in clean environments, and its examples
#   make clean   remove everything that make made, .venv included
# Both set up .venv and install into it first, and again whatever has changed since.
#   make PYTHON=python3.12 PIP_ARGS="--index-url https://..." MAX_JOBS=4 test
PYTHON ?= python3
PIP_ARGS ?=
export PIP_ARGS
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_ARGS)

# The tests run the CUDA kernels on the CPU too, where the emulator can; a package once built for them stays so, and
# serves the demo as well.
EMULATE := OFF
ifeq ($(shell uname -sm),Linux x86_64)
EMULATE := $(if $(filter test,$(MAKECMDGOALS))$(wildcard $(VENV)/emulator.stamp),ON,OFF)
endif

# Folders are listed too: their time changes when a file goes.
SOURCES := $(shell find csrc include kernels cmake python tests/emu -mindepth 1 \
             \( -name __pycache__ -o -name lib -o -path python/dsv4spec/include -o -name '*.egg-info' -o -name '*.so' \) -prune -o -print) \
           CMakeLists.txt setup.py pyproject.toml MANIFEST.in LICENSE

.PHONY: demo test package-test clean
demo: $(VENV)/package.stamp
	$(BIN)/dsv4spec demo

test: $(VENV)/package.stamp $(VENV)/test.stamp
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

package-test: $(VENV)/package.stamp $(VENV)/test.stamp
	$(BIN)/python -m pytest tests -m package $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist python/*.egg-info python/dsv4spec/lib python/dsv4spec/include \
	  python/dsv4spec/_C.*.so

$(VENV)/venv.stamp:
	@command -v $(PYTHON) >/dev/null || { echo "dsv4spec: $(PYTHON) is not installed" >&2; exit 1; }
	@$(PYTHON) tools/check_machine.py
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and alone: a plain pin takes whatever build of it the package index or PIP_ARGS offers.
$(VENV)/torch.stamp: $(VENV)/venv.stamp
	$(PIP) torch==2.13.0
	$(PIP) "setuptools>=77" "cmake>=3.20" ninja "pybind11>=2.12"
	@touch $@

# The build tools stand in .venv, so that a second build compiles only what changed.
$(VENV)/package.stamp: $(VENV)/torch.stamp $(SOURCES) $(if $(filter ON,$(EMULATE)),$(VENV)/emulator.stamp)
	PATH="$(CURDIR)/$(BIN):$$PATH" DSV4SPEC_EMULATE=$(EMULATE) $(PIP) --no-build-isolation ".[models]"
	@$(BIN)/python -c "import dsv4spec; print(dsv4spec.build_info()['summary'])"
	@touch $@

# The emulator is compiled against CUDA's own headers: those of a toolkit, else the ones that pip has.
$(VENV)/emulator.stamp: $(VENV)/torch.stamp cmake/cuda_headers.txt
	test -n "$$CUDACXX$$CUDA_HOME" || command -v nvcc >/dev/null || $(PIP) -r cmake/cuda_headers.txt
	@touch $@

# What the installed package's extra asks for; the package itself is left alone.
$(VENV)/test.stamp: pyproject.toml | $(VENV)/package.stamp
	$(PIP) "dsv4spec[test]"
	@touch $@
