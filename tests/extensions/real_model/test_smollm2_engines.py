"""SmolLM2 on each engine and trainer: what the kit says of it, and runs of three steps."""

import json
import shutil

import pytest

from contracts.conformance.inference.kit import check_inference
from extensions.real_model.published import PUBLISHED
from tests.conformance.kept import assert_kept
from tests.engines.servers import ENGINES, engine_server
from tests.limits import HANG_S
from tests.pipeline.runs import launch_command

pytestmark = pytest.mark.long

PARTS = [("G1", "context"), ("G4", "alone")]  # all of G1 sends 0.5 GB many times
CONTEXT = 512  # tokens; the kit fills the context several times, and the model's is 8192


@pytest.mark.parametrize("engine", ENGINES)
def test_content_and_log_probabilities_are_those_of_the_reference(engine, tmp_path):
    model = shutil.copytree(PUBLISHED["smollm2"].directory, tmp_path / "smollm2")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    with engine_server(engine, str(model), token="a-token") as server:
        for code, part in PARTS:
            assert_kept(check_inference([server.url], str(model), token="a-token", only=[code], part=part))


@pytest.mark.parametrize(("inference", "trainer"), [("vllm", "fsdp"), ("sglang", "deepspeed")])
def test_it_is_trained_with_other_engines(inference, trainer, tmp_path):
    small = ["batch_size=16", "group_size=4", "filters=[]", "max_steps=3", "stop_at=null", "eval.problems=8"]
    settings = ["+exp=smollm2", f"inference={inference}", f"trainer={trainer}", *small]
    launcher = launch_command(tmp_path / "run", *settings)
    _, errors = launcher.communicate(timeout=HANG_S)
    assert launcher.returncode == 0, errors
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["optimizer_steps"], summary["rollouts_lost"]) == (3, 0)
    assert summary["logprob_gap_max_abs"] <= 1e-3
