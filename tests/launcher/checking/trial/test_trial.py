"""What the trial of the user's parts finds, and what it lets pass."""

import re
import sys
import tempfile

import pytest

from pipelinerl import advantages, filters, normalisations
from pipelinerl.components import build_domain, build_sampler
from pipelinerl.config import Component, RunConfig
from pipelinerl.errors import PartError
from pipelinerl.launcher.checking.trial import component_calls as calls
from pipelinerl.launcher.checking.trial.process import Trial
from pipelinerl.launcher.checking.trial.start import try_components
from pipelinerl.launcher.checking.trial.watch import Watch
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.objectives.dpo import Dpo
from pipelinerl.rewards.overlong import Overlong
from pipelinerl.rewards.relative_length import RelativeLength
from tests.objectives.cases import CASES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
HERE = f"{__package__}.faulty"
CONFIG = compose_config(["group_size=4", "inference=scripted", "trainer=scripted", "max_steps=2"])
LISTS = ("filters", "rewards", "regularisers")


def with_part(role: str, name: str, **options: object) -> RunConfig:
    part = Component.model_validate({"_target_": f"{HERE}.{name}"} | options)
    return CONFIG.model_copy(update={role: [part] if role in LISTS else part})


def tried(config: RunConfig) -> str:
    """Returns what the trial says of the parts, tried in this process."""
    with tempfile.TemporaryFile(buffering=0) as report:
        try:
            return "; ".join(Trial(config, Watch(report, limit_s=1000)).run())
        except PartError as error:
            return str(error)


# Role, part, and what the line must have.
FAULTS = """
objective Vector | a scalar loss: a tensor of floats of shape [], but it gave a Tensor of shape [27]
objective OfOne | a scalar loss: a tensor of floats of shape [], but it gave a Tensor of shape [1]
objective NotFinite | expected a finite loss, but it gave the Tensor
objective PythonFloat | a scalar loss: a tensor of floats of shape [], but it gave 0.
objective Detached | but its loss has no gradient: something detaches it
objective Unrelated | but the gradient of its loss reaches none of them
objective RootOfZero | but the gradient of its loss is NaN or infinite
objective NoReturn | expected (loss, sums), but it gave None
objective LossAlone | expected (loss, sums), but it gave the Tensor
objective FloatSum | a scalar tensor for the sum mine, but it gave 1.0
objective VectorSum | a scalar tensor for the sum mine, but it gave a Tensor of shape [27]
objective ListOfSums | a dict of scalar tensors, but it gave a list of 1
objective TakenSum | but it names entropy
objective Misspelt | AttributeError: 'Tensor' object has no attribute 'backwards'
objective UnknownName | NameError: name 'lss_of' is not defined
objective MoreArguments | TypeError
regularisers NoReturn | regulariser
regularisers UnknownName | NameError: name 'lss_of' is not defined
objective Weightless | a gradient other than 0, but that of rollouts right and wrong is 0
objective Reversed | raises the log-probabilities of right rollouts, but it lowers all of them
objective ClampsBatch | a batch that stays as it was, but it changes batch.advantages in place
regularisers ClampsBatch | a batch that stays as it was, but it changes batch.advantages in place
objective Mean | batch.loss_weights, but that of 4 rollouts is 0.0
advantage TooFew | finite numbers of shape [4], but it gave a ndarray of shape [3]
advantage Words | but it gave a ndarray of shape [4] and dtype <U32
advantage Objects | but it gave a ndarray of shape [4] and dtype object
advantage WithNan | but one of them is nan
advantage OneNumber | finite numbers of shape [4], but it gave the float32
advantage Rounded | advantages other than 0, but those of rollouts right and wrong are all 0
advantage Lowering | higher advantages for right rollouts, but those of wrong ones are higher
advantage ScaledToNothing | one advantage for each turn of a step
filters Floats | one bool for each rollout, whether it is kept: shape [4], but it gave a list of 4
filters OneBool | but it gave True
filters Zeros | but it gave a ndarray of shape [4] and dtype int64
filters Clipping | advantages that stay as they were, but it changes them in place
filters Raising | but it raised KeyError: 'difficulty'
rewards Nothing | one addition to the reward of each rollout: finite numbers of shape [4], but it gave None
rewards Nan | but one of them is nan
rewards Text | but it gave a list of 4
rewards Leaving | but it ended the process, with status 3
normalisation OneNumber | an array of weights for each
domain Sums verifier=Empty | abstract method
domain Sums verifier=Unwritten | a Judgement(reward, success, outcome), but it gave None
domain Sums verifier=Bool | but it gave False
domain Sums verifier=NanReward | a number is not finite
domain Sums verifier=NumpyBool | a Judgement of a finite reward, a bool and a word
domain Sums verifier=Typo | NameError: name 'answr' is not defined
domain Careless mistake=typo | AttributeError: 'Answer' object has no attribute 'txt'
domain Careless mistake=none | expected an Attempt, but it gave None
domain Careless mistake=nan | an Attempt with a finite reward, but its reward is nan
sampler Drawn problems=[0,999999999] | the index of a training problem: an int from 0 to
sampler Drawn problems=[-1] | but it gave -1
sampler Drawn problems=[true] | but it gave True
sampler Drawn problems=[1,2] | StopIteration
sampler NumpyState problems=[] | a state_dict that MessagePack can store
"""


def config_of(words: str) -> RunConfig:
    role, name, *options = words.split()
    return with_part(role, name, **{key: eval_of(text) for key, text in (o.split("=") for o in options)})


def eval_of(text: str) -> object:
    return compose_list(text) if text.startswith("[") else text


def compose_list(text: str) -> list[object]:
    return [word == "true" or int(word) for word in text.strip("[]").split(",") if word]


@pytest.mark.parametrize("line", FAULTS.strip().splitlines())
def test_a_mistake_is_said_with_part_file_and_line(line):
    words, expected = line.split(" | ")
    said = tried(config_of(words))
    assert expected in said
    assert "tests/launcher/checking/trial/faulty.py:" in said.partition(" expected ")[0]
    assert said.startswith(words.split()[0].removesuffix("s")) or "verifier" in words


RIGHT = """
objective Right
objective InPlace
regularisers Measure
advantage Signs
advantage AsTensor
filters ListOfBools
rewards Lists
domain Sums verifier=Strict
domain Careless mistake=endless
domain Careless mistake=of-the-environment
sampler Drawn problems=[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31]
"""


@pytest.mark.parametrize("words", RIGHT.strip().splitlines())
def test_an_unusual_part_passes(words):
    config = config_of(words).model_copy(update={"batch_size": 64})
    assert tried(config) == ""


@pytest.mark.parametrize("name", CASES)
def test_every_objective_that_ships_would_pass(name):
    objective = CASES[name].objective
    in_pairs = isinstance(objective, Dpo)
    credit = "completion" if in_pairs else "trajectory"
    config = CONFIG.model_copy(update={"reference": CONFIG.inference, "epochs": 2, "credit": credit})
    for call in (calls.call_objective, calls.check_gradient, calls.cut_loss):
        call(objective, config, 2 if in_pairs else 0, has_values=True)


def test_every_other_part_that_ships_would_pass():
    components = {"task": 1.0, "brief": 0.5}
    config = CONFIG.model_copy(
        update={"advantage": Component.model_validate({"_target_": "x", "components": components})}
    )
    leave_one_out = advantages.LeaveOneOut()
    of_groups = [advantages.GroupMean(True), advantages.MaxRL(), advantages.PassAtK(2, True), leave_one_out]
    of_groups += [advantages.StepStd(leave_one_out), advantages.Gdpo(components), advantages.Return()]
    for advantage in [*of_groups, advantages.Constant()]:
        calls.call_advantage(advantage, config)
        calls.check_advantages(advantage, config)
    kinds = [filters.ZeroAdvantage(), filters.SuccessBand(), filters.Overlong(), filters.AdvantageRange(9.0)]
    for group_filter in kinds:
        calls.call_filter(group_filter, config)
    weights = [normalisations.PerSequence(), normalisations.PerStepToken(), normalisations.PerGroupToken()]
    for normalisation in [*weights, normalisations.PerRolloutToken(), normalisations.PerTokenLimit(16)]:
        calls.call_normalisation(normalisation, config)
    for term in (Overlong(16, 4), RelativeLength(0.5, 0)):
        calls.call_reward(term, config)
    domain = build_domain(config)
    calls.call_sampler(
        build_sampler(config, domain), build_sampler(config, domain), config, domain.train_size
    )


# --- in a process of its own ------------------------------------------------------------------------

HARMS = """
rewards Hanging | expected an end of all trials within check_parts_s=0.3, but it goes on
rewards Exiting | ended the process, with status 0
rewards Crashing | its process was ended by signal 6
"""


@pytest.mark.parametrize("line", HARMS.strip().splitlines())
def test_a_part_that_harms_its_process_is_said_with_its_line(line):
    words, expected = line.split(" | ")
    limit_s = 0.3 if "Hanging" in words else 1000.0
    with pytest.raises(PartError) as said:
        try_components(config_of(words).model_copy(update={"check_parts_s": limit_s}))
    assert expected in str(said.value) and "tests/launcher/checking/trial/faulty.py:" in str(said.value)


def test_a_module_that_ends_what_imports_it_is_said_with_its_line():
    exits = Component.model_validate({"_target_": f"{__package__}.exits.Mine"})
    config = CONFIG.model_copy(update={"objective": exits})
    with pytest.raises(
        PartError, match=r"exits.py:5\): expected .*, but it ended the process, with status 3"
    ):
        try_components(config)
    assert try_components(config.model_copy(update={"check_parts": False})) is None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os\n\nos.getcw()\n", "{}:3.: .* AttributeError: module 'os' has no attribute 'getcw'"),
        (
            "class Mine:\n    def __init__(self):\n        self.c = cc\n",
            "{}:3.: .* NameError: name 'cc' is not",
        ),
        ("class Mine\n    pass\n", "{}:1.: .* SyntaxError: expected ':'"),
        ("from math import piu\n", "{}:1.: .* ImportError: cannot import name 'piu' from 'math'"),
    ],
)
def test_a_module_with_a_typo_is_said_with_its_line(tmp_path, monkeypatch, code, says):
    name = f"mine_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = CONFIG.model_copy(update={"objective": Component.model_validate({"_target_": f"{name}.Mine"})})
    assert re.search(says.format(f"{name}.py"), tried(config))


def test_what_a_part_starts_ends_with_its_trial(capfd):
    try_components(with_part("rewards", "Threaded"))
    assert capfd.readouterr() == ("", "")
