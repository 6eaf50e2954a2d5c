"""Each experiment that ships can be simulated without options, or says in a line why it cannot."""

import pytest

from extensions.simulator import __main__ as command
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "exp").glob("*.yaml"))
OF_ANSWERS = {"dpo": ["domain.path=pairs.jsonl"], "sft": ["domain.path=answers.jsonl"]}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_names_attempts_of_its_held_out_sets_alone(name):
    config = compose_config([f"+exp={name}", *OF_ANSWERS.get(name, [])])
    named = {one for one, attempts in config.eval.attempts_of.items() if attempts is not None}
    assert named <= {*config.domain.options.get("heldout", [])}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_simulated_by_its_name(name, capsys):
    status = command.main([f"+exp={name}", *OF_ANSWERS.get(name, []), "--steps", "1"])
    said = capsys.readouterr()
    if name in OF_ANSWERS:
        assert status == 2 and said.err.startswith("simulate: the run trains on given answers")
    else:
        assert status == 0 and said.out.splitlines()[-1].count("|") == 9, said.err
