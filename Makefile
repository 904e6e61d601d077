# Thin names over scripts/ and the CMake presets. `make demo` and `make test` are all a newcomer needs.
PRESET ?= release
BUILD := build/$(PRESET)
CMAKE := .venv/bin/cmake
# Only a release build's figures are results.
RESULTS ?= $(if $(filter release,$(PRESET)),docs/results,$(BUILD)/results)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Only bootstrap has a use for it: the Python of .venv then has that torch, and pytest.
CHOICE := $(if $(filter undefined,$(origin PALIMPSEST_PYTHON)),,PALIMPSEST_PYTHON='$(PALIMPSEST_PYTHON)')
unexport PALIMPSEST_PYTHON

.PHONY: help bootstrap configure build demo test sanitize fuzz bench carried pages format lint clean

help:
	@echo "make demo    trains one network twice, standard and in place, and writes demo/index.html"
	@echo "make test    builds and runs all tests, and some again under the sanitizers"
	@echo "make sanitize  runs the tests under the sanitizers alone, those of the operators too"
	@echo "make build   the program $(BUILD)/palimpsest and the operator library $(BUILD)/libpalimpsest_ops.so"
	@echo "make fuzz    gives every parser 1,000,000 mutated files under the sanitizers: hours"
	@echo "make bench   measures the claims about this CPU: opponent, measured, ratio, pass or fail; JSON in $(RESULTS)"
	@echo "make bench THREADS=1,2 ISA=x86-64-v3,x86-64-v4  measures this machine instead, with each of these: $(RESULTS)/machines.md"
	@echo "make carried [ARCHITECTURES=90]  the program with the kernels for GPUs, to be carried to a machine with one: docs/gpu_check.md"
	@echo "make pages   writes the pages of docs/results again from the JSON files beside them"
	@echo "make format  formats all C++ files;  make lint  checks format, layers and clang-tidy"
	@echo "make clean   removes build/ and demo/"
	@echo "PRESET=release|debug|asan|tsan|cuda chooses the build; PALIMPSEST_VENV, PALIMPSEST_PYTHON: see scripts/bootstrap"

bootstrap:
	@$(CHOICE) scripts/bootstrap

# The demo needs the kernels for this processor only, unless the build folder already has all kernels. A later build of
# the preset compiles the rest.
SETS := $(if $(filter demo-release,$(MAKECMDGOALS)-$(PRESET)),$(if $(shell grep -sx PALIMPSEST_INSTRUCTION_SETS:STRING= \
  $(BUILD)/CMakeCache.txt),,-DPALIMPSEST_INSTRUCTION_SETS=native))

configure: bootstrap
	@$(CMAKE) --preset $(PRESET) $(SETS) $(if $(VERBOSE),,--log-level=WARNING)

build: configure
	@$(CMAKE) --build --preset $(PRESET)

demo: configure
	@$(CMAKE) --build --preset $(PRESET) --target palimpsest
	@$(BUILD)/palimpsest demo --output demo

test: build
	@scripts/run_tests $(PRESET)
	@[ $(PRESET) != release ] || scripts/run_sanitizers --unless-passed --without ops

sanitize: bootstrap
	@scripts/run_sanitizers

fuzz: bootstrap
	@scripts/fuzz

bench: build
	@scripts/run_benchmarks $(BUILD) $(RESULTS) $(if $(THREADS),--threads '$(THREADS)') $(if $(ISA),--isa '$(ISA)')

carried: bootstrap
	@scripts/build_carried "$(or $(ARCHITECTURES),OFF)"

pages:
	@python3 benchmarks/pages/pages

format: bootstrap
	@scripts/format --fix

lint: configure
	@scripts/format
	@scripts/check_layers
	@scripts/tidy $(BUILD)

clean:
	rm -rf build demo
