"""Simulated runs whose time can be told by hand, and the command."""

from dataclasses import replace

import numpy as np
import pytest

from pipelinerl.launcher.compose import compose_config
from pipelinerl.simulate import __main__ as command
from pipelinerl.simulate.lengths import lengths_of
from pipelinerl.simulate.rates import Rates
from pipelinerl.simulate.run import SimulatedRun, StalledError
from pipelinerl.simulate.trainer import Doing

SMALL = ["plan=true", "batch_size=16", "group_size=4", "max_steps=10", "inference.concurrency=16"]
GIVEN = ["--decode-s", "0.1", "--train-tokens-per-s", "1e5"]
RATES = Rates(decode_s=0.1, decode_per_request_s=0.0, train_tokens_per_s=100.0, update_s=0.5, paused_s=0.1)


def simulated(*overrides: str, rates: Rates = RATES, lengths: str = "constant:10"):
    config = compose_config([*SMALL, "filters=[]", *overrides])
    run = SimulatedRun(config, rates, lengths_of(lengths, 10_000), success=0.5, prompt_tokens=0)
    return run.run()


def test_a_conventional_run_generates_and_then_trains():
    found = simulated("schedule=conventional")
    # Of each step: 10 tokens of 0.1 s, then 16 · 10 tokens at 100 a second, then the update.
    assert found.seconds == pytest.approx(10 * (1.0 + 1.6 + 0.5))
    assert found.trainer[Doing.PUBLISHING] == pytest.approx(10 * 0.5 / found.seconds)
    assert found.lags == {0: 10 * 16 * 10}
    assert found.trainer[Doing.WAITING] == pytest.approx(10 * 1.0 / found.seconds)
    assert found.occupied == pytest.approx(10 * 1.0 / found.seconds)


def test_each_epoch_trains_the_rows_of_a_step_and_updates_once():
    rates = replace(RATES, optimizer_s=0.2)
    settings = ["schedule=conventional", "epochs=3", "packing.micro_batch_tokens=40"]
    found = simulated(*settings, rates=rates)
    assert found.seconds == pytest.approx(10 * (1.0 + 3 * (1.6 + 0.2) + 0.5))


def test_a_pipeline_is_as_fast_as_its_slower_side():
    found = simulated("schedule=pipeline", "max_lag=4")
    step_s = 1.6 + 0.5  # training and the update; generating takes less
    assert found.seconds == pytest.approx(1.0 + 10 * step_s)
    assert found.trainer[Doing.WAITING] == pytest.approx(1.0 / found.seconds)


def test_an_async_run_lets_its_servers_empty_before_each_update():
    slow = Rates(decode_s=1.0, decode_per_request_s=0.0, train_tokens_per_s=1e6, update_s=0.5)
    found = simulated("schedule=async", "max_lag=1", "inference.concurrency=8", rates=slow)
    assert found.trainer[Doing.QUIESCING] > 0.1
    assert max(found.lags) <= 1


def test_no_trained_token_is_older_than_max_lag():
    found = simulated("max_lag=1", lengths="lognormal:20,1.5")
    assert max(found.lags) == 1
    assert found.sampled_lengths != found.trained_lengths


def test_a_run_is_repeated_by_its_seed():
    first, again = (simulated("max_lag=2", "seed=3", lengths="lognormal:20,1.0") for _ in range(2))
    assert first == again
    assert simulated("max_lag=2", "seed=4", lengths="lognormal:20,1.0") != first


def test_groups_without_a_signal_are_dropped_by_the_filters_of_the_run():
    config = compose_config(SMALL)
    found = SimulatedRun(config, RATES, lengths_of("constant:10", 100), success=0.9, prompt_tokens=0).run()
    assert found.drops["zero_advantage"] > 0


def test_a_run_in_which_no_group_ever_counts_ends():
    config = compose_config([*SMALL, "give_up_after=50"])
    with pytest.raises(StalledError, match="50 groups in a row"):
        SimulatedRun(config, RATES, lengths_of("constant:10", 100), success=1.0, prompt_tokens=0).run()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --lengths"),
        (["--lengths", "gamma:3"], "gamma:3: write constant:N or lognormal:MEDIAN,SIGMA"),
        (["--lengths", "constant:0"], "write constant:N"),
        (["--lengths", "constant:9", "--success", "1.5"], "--success 1.5: from 0 to 1"),
        (["--lengths", "constant:9", "--steps", "0"], "max_steps"),
        (
            ["--lengths", "constant:9", "--decode-s", "-1", "--train-tokens-per-s", "1"],
            "decode_s must be above 0",
        ),
        (
            ["inference=scripted", "--lengths", "constant:9", "trainer=scripted"],
            "the model's shape is not known",
        ),
        (["--lengths", "constant:9", "--prompt-tokens", "0"], "set --prompt-tokens from 1 to "),
        (["--lengths", "constant:9", "--prompt-tokens", "4097"], "prompts of 4097 tokens: set"),
        (["--lengths", "constant:9", *GIVEN, "--paused-s", "2"], "lower --paused-s or raise --update-s"),
        (
            ["+exp=math_7b", "world.gpu_memory_gib=1", "--lengths", "constant:9", *GIVEN],
            "a server has no room for a sequence of 10000 tokens",
        ),
        (["--like", "nowhere"], "nowhere"),
        (["bach_size=4"], "bach_size"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(capsys, arguments, said):
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("simulate: ") and error.count("\n") == 1
    assert said in error


def test_the_command_prints_a_line_for_each_schedule(capsys):
    arguments = [*SMALL, "--compare", "--steps", "3", "--lengths", "constant:10", *GIVEN]
    assert command.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")] == [
        "schedule",
        "---",
        "pipeline",
        "async",
        "conventional",
    ]
    assert "as given" in lines[0]


def test_the_command_says_how_many_answers_are_cut(capsys):
    settings = ["sampling.max_tokens=9", "--steps", "1", *GIVEN]
    cut = "answers are cut at 9 tokens (sampling.max_tokens): about 100.0% of them would be longer"
    assert command.main([*SMALL, *settings, "--lengths", "constant:10"]) == 0
    assert cut in capsys.readouterr().out
    assert command.main([*SMALL, *settings, "--lengths", "constant:9"]) == 0
    assert "cut" not in capsys.readouterr().out


def test_the_longest_of_a_wide_distribution_are_cut_too():
    lengths = lengths_of("lognormal:900,1000", 50)
    random = np.random.default_rng(0)
    assert {lengths(random) for _ in range(20)} == {1, 50}


def test_the_times_of_a_model_follow_from_its_shape(capsys):
    assert command.main(["+exp=math_7b", "--lengths", "constant:900", "--steps", "1"]) == 0
    assert "by arithmetic for h100: decode_s 0.00758" in capsys.readouterr().out


@pytest.mark.parametrize(("requests", "warns"), [(64, False), (300, True)])
def test_more_requests_than_the_longest_that_a_server_holds_bring_a_warning(capsys, requests, warns):
    settings = ["+exp=math_7b", f"inference.concurrency={requests}", "max_lag=8"]
    assert command.main([*settings, "--lengths", "constant:900", "--steps", "1", *GIVEN]) == 0
    warning = f"tokens, the longest, and gets {requests} requests (inference.concurrency); in the simulation all go on"
    assert (warning in capsys.readouterr().out) == warns
