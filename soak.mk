# What takes too long for every commit, in parts: docs/soak.md. `make soak-updates` runs that part.
HOSTILE := soak-hostile-transformers soak-hostile-vllm soak-hostile-sglang
GROUPS_AT := soak-groups-0 soak-groups-4
THOROUGH := soak-thorough-transformers soak-thorough-vllm soak-thorough-sglang
PARALLEL := soak-parallel-vllm soak-parallel-sglang
KITS := soak-kit-example soak-kit-transformers soak-kit-fsdp soak-kit-deepspeed soak-kit-unusual
CHAOS_OF := soak-chaos-relay soak-chaos-shared
CHAOS := $(addprefix soak-chaos-,$(shell seq 0 24))
SOAK := $(GROUPS_AT) soak-updates soak-servers soak-odd-servers soak-judging soak-programs soak-agents soak-frameworks soak-verifiers soak-conversations $(KITS) soak-adapters \
	soak-engines-vllm soak-engines-sglang soak-overlapped-vllm soak-math-7b $(PARALLEL) $(THOROUGH) \
	soak-real soak-real-engines soak-runs soak-viewer soak-ray soak-slurm soak-islands soak-islands-learning soak-volunteers \
	$(CHAOS) $(CHAOS_OF) soak-chaos-ray soak-chaos-real soak-chaos-agents soak-chaos-colocated $(HOSTILE)
MINUTES := 30
LONG := $(VENV)/bin/python -m pytest -m long
.PHONY: soak soak-due soak-under-load soak-chaos $(SOAK)

soak: $(SOAK)  ## Run what is too long for every commit, one part after the other (docs/soak.md). Hours.

soak-due: $(VENV)/test-engines  ## Run the parts of the soak that ran longest ago, for MINUTES.
	$(VENV)/bin/python -m tests.soak_due --minutes $(MINUTES) $(SOAK)

soak-under-load: $(VENV)/test  ## Run the tests beside six busy processes: load must fail none.
	$(VENV)/bin/python -m tests.under_load $(MAKE) test

soak-chaos: $(CHAOS)

$(SOAK): $(VENV)/test-engines
$(SOAK): export SOAK_PART = $@
$(SOAK): export PYTEST_ADDOPTS = -o faulthandler_timeout=0
$(SOAK): export SEED ?= 0
$(HOSTILE) $(THOROUGH) $(PARALLEL) soak-engines-vllm soak-overlapped-vllm soak-math-7b soak-real-engines: .venv-vllm/ready
$(HOSTILE) $(THOROUGH) $(PARALLEL) soak-engines-sglang soak-real-engines: .venv-sglang/ready
soak-runs $(CHAOS) $(CHAOS_OF) soak-chaos-ray soak-chaos-real soak-chaos-agents soak-chaos-colocated soak-ray soak-math-7b: redis-server

$(GROUPS_AT): soak-groups-%:
	SOAK_GROUPS=10000 $(VENV)/bin/python -m pytest -m "" \
		"tests/pipeline/test_accounting.py::test_every_group_is_accounted_for[$*]"

$(HOSTILE): soak-hostile-%:
	HOSTILE_REQUESTS=10000 $(VENV)/bin/python -m pytest -m engines -k hostile tests/engines/test_$*.py

soak-updates:
	SOAK_UPDATES=200 $(LONG) -k "transformers and G8" tests/conformance/test_inference_kit.py
	SOAK_UPDATES=1000 $(VENV)/bin/python -m pytest -m "" tests/extensions/colocated/test_ipc.py

soak-servers:
	$(LONG) tests/conformance/test_broken_servers.py

soak-odd-servers:
	$(LONG) tests/conformance/test_odd_servers.py

soak-judging:
	$(LONG) tests/judging tests/extensions/math tests/extensions/reasoning_gym

soak-agents:
	SOAK_SESSIONS=1000 $(VENV)/bin/python -m pytest -s tests/extensions/agents/test_random_agent.py

soak-volunteers:
	$(LONG) -s tests/engines/test_volunteers_long.py

soak-frameworks: .venv-frameworks/ready
	$(LONG) -s tests/extensions/agents/test_frameworks.py

.venv-frameworks/ready: tests/extensions/agents/frameworks.txt
	test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/pip install --quiet -r $<
	touch $@

soak-verifiers: .venv-verifiers/ready
	$(LONG) -s tests/extensions/agents/verifiers

soak-conversations:
	$(LONG) -s tests/conversations tests/engines/test_tool_formats.py

$(KITS): soak-kit-%:
	$(LONG) -k $* tests/conformance/test_inference_kit.py tests/conformance/test_trainer_kit.py

soak-adapters:
	$(LONG) tests/trainer_adapters

soak-engines-vllm:
	$(LONG) -k "not tensor_parallel" tests/engines/test_vllm_long.py

soak-engines-sglang:
	$(LONG) -k "not tensor_parallel" tests/engines/test_sglang_long.py

soak-overlapped-vllm:
	$(LONG) tests/engines/test_overlapped_vllm.py

soak-math-7b:
	$(LONG) tests/engines/test_math_7b.py

$(PARALLEL): soak-parallel-%:
	$(LONG) -k tensor_parallel tests/engines/test_$*_long.py

$(THOROUGH): soak-thorough-%:
	$(LONG) -k $* tests/engines/test_thorough.py

soak-programs:
	$(LONG) -s tests/extensions/programs

soak-real:
	$(VENV)/bin/python -m extensions.real_model smollm2
	$(VENV)/bin/python -m pytest -m "" -s $(TERSE) --ignore tests/extensions/real_model/test_smollm2_engines.py \
		tests/extensions/real_model

soak-real-engines:
	$(VENV)/bin/python -m extensions.real_model smollm2
	$(LONG) tests/extensions/real_model/test_smollm2_engines.py

soak-runs:
	$(LONG) -n 2 --ignore tests/pipeline/test_ray_runs.py tests/pipeline tests/extensions/demo

soak-ray:
	$(LONG) tests/pipeline/test_ray_runs.py tests/launcher

soak-viewer:
	$(LONG) -s tests/extensions/viewer

soak-slurm:
	$(LONG) tests/extensions/cluster/slurm

$(CHAOS): soak-chaos-%:
	$(LONG) -s "tests/chaos/test_runs.py::test_a_drawn_run_survives[$*]"

$(CHAOS_OF): soak-chaos-%:
	$(LONG) -s "tests/chaos/test_runs.py::test_a_run_with_other_weights_survives[$*]"

soak-islands:
	$(LONG) tests/extensions/islands/test_lighthouse.py tests/extensions/islands/test_trainer_kit.py

soak-islands-learning:
	$(LONG) -s tests/extensions/islands/test_learning.py

soak-chaos-ray:
	$(LONG) -s tests/chaos/test_runs.py::test_a_run_on_ray_survives_ten_faults

soak-chaos-agents:
	$(LONG) -s tests/chaos/test_runs.py::test_a_run_of_agents_survives_and_leaves_no_program

soak-chaos-real:
	$(LONG) -s "tests/chaos/test_runs.py::test_a_run_of_real_engines_survives[drawn]"

soak-chaos-colocated:
	$(LONG) -s "tests/chaos/test_runs.py::test_a_run_of_real_engines_survives[colocated]"
