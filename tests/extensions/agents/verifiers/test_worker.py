"""Environments of the package itself (`make test-verifiers`)."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import psutil
import pytest

from contracts.records import StepClosed
from extensions.agents.domain import PROGRAMS
from extensions.agents.programs.messages import AgentTask, Result, Run
from extensions.agents.programs.verifier import AgentPrograms
from extensions.agents.verifiers.domain import WORKER, Verifiers
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.options import HOSTED
from pipelinerl.judging.template import WorkerLostError
from tests.extensions.agents.served_sessions import sessions_at
from tests.pipeline.runs import assert_accounted, finish, launch, wait_for_record

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
PATH = [str(ROOT / "examples" / "agents" / "verifiers"), str(HERE / "environments")]
ODD = {"select": {"include": {"idx": "::2"}}}
EVEN = {"select": {"exclude": {"idx": "::2"}}}


def made(env, train=EVEN, heldout=ODD, **agent) -> Verifiers:
    """Returns the domain. train, heldout: `Split`."""
    return Verifiers(env, train, heldout, 1.0, None, PATH, agent, {})


def numbers(domain) -> tuple[list[int], list[int]]:
    train = [domain.train_problem(index).data["data"]["number"] for index in range(domain.train_size)]
    heldout = [domain.heldout_problem(index).data["data"]["number"] for index in range(domain.heldout_size)]
    return train, heldout


def test_splits_are_selected_and_may_differ_in_their_taskset():
    env = {"taskset": {"id": "guess_number", "highest": 4}}
    assert numbers(made(env)) == ([2, 4], [1, 3])
    six = made(env, train={"taskset": {"highest": 6}})
    assert six.train_problem(0).messages == [{"role": "user", "content": "Guess: 1 to 6"}]
    assert numbers(six)[0] == [1, 2, 3, 4, 5, 6]
    assert made(env).digest() != six.digest()


def test_what_is_held_out_is_not_trained(caplog):
    domain = made({"taskset": {"id": "guess_number", "highest": 4}}, train={}, heldout=ODD)
    assert numbers(domain) == ([2, 4], [1, 3])
    assert caplog.messages == ["2 tasks are not trained on, because tasks of the same content are held out"]
    with pytest.raises(ValueError, match="domain.train selects no task: all 4 are held out too"):
        _ = made({"taskset": {"id": "guess_number", "highest": 4}}, {}, {"select": {"limit": 9}}).train_size


def test_every_tenth_task_is_held_out_unless_a_split_is_described():
    env = {"taskset": {"id": "guess_number", "highest": 20}}
    train, heldout = numbers(made(env, {}, {}))
    assert heldout == [1, 11] and len(train) == 18
    train, heldout = numbers(made(env, {"select": {"limit": 4}}, {}))
    assert (train, heldout) == ([2, 3, 4], [1, 11])
    assert numbers(made(env, {}, {"taskset": {"highest": 5}}))[1] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("env", "train", "words"),
    [
        ({"taskset": {}}, EVEN, "set domain.env.taskset.id"),
        ({"taskset": {"id": "missing"}}, EVEN, "domain.path=[DIR] finds modules"),
        ({"taskset": {"id": "guess_number", "highst": 4}}, EVEN, "domain.env.taskset.highst: "),
        (
            {"taskset": {"id": "guess_number"}},
            {"taskset": {"highst": 4}},
            "domain.train.taskset.highst: Extra inputs are not permitted; there are highest, id,",
        ),
        (
            {"taskset": {"id": "guess_number"}},
            {"select": {"include": {"idx": "5000"}}},
            "domain.train selects no task: the taskset has none",
        ),
        ({"taskset": {"id": "unwritable"}}, EVEN, "does not survive JSON: held would be another"),
        ({"taskset": {"id": "raising"}}, EVEN, "TypeError: 'NoneType' object is not subscriptable ("),
        (
            {"taskset": {"id": "guess_number"}, "agent": {"harness": {"id": "bash"}}},
            EVEN,
            "runs the model's command",
        ),
        (
            {"taskset": {"id": "guess_number"}, "agent": {"runtime": {"type": "prime"}}},
            EVEN,
            "env.PRIME_API_KEY",
        ),
        (
            {
                "taskset": {"id": "guess_number"},
                "agent": {"harness": {"id": "codex"}, "runtime": {"type": "subprocess"}},
            },
            EVEN,
            "needs a container",
        ),
        ({"taskset": {"id": "guess_number"}, "retries": {"max_retries": 1}}, EVEN, "domain.env.retries"),
        (
            {"taskset": {"id": "endless"}, "agent": {"harness": {"id": "null"}}},
            EVEN,
            "set +domain.heldout.select.limit",
        ),
        ({"id": "user-sim", "taskset": {"id": "guess_number"}}, EVEN, "no client of their own"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_trained_is_refused_in_one_line(env, train, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        _ = made(env, train).train_size
    assert "\n" not in str(refused.value)


async def ended(url: str, model: str) -> dict[str, Run | WorkerLostError]:
    """Returns how the worker says that each task of `ends` ended."""
    domain = made({"taskset": {"id": "ends"}}, train={}, heldout={"select": {}})
    options = {
        name: value for name, value in domain.verifiers[PROGRAMS].items() if name not in ("_target_", HOSTED)
    }
    programs = AgentPrograms(**options)
    ends = {}
    try:
        await programs.start(Level.SEALED)
        async with sessions_at(url, model) as sessions:
            for index in range(domain.heldout_size):
                task = domain.heldout_problem(index).data
                _, key = sessions.begin(str(index))
                given = json.dumps({"task": task}).encode()
                asked = AgentTask(sessions.endpoint.url, key, given)
                try:
                    judgement = await programs.judged(msgspec.msgpack.encode(asked), "")
                    ends[task["data"]["end"]] = msgspec.json.decode(judgement.said, type=Run)
                except WorkerLostError as error:
                    ends[task["data"]["end"]] = error
                await sessions.endpoint.end([key])
    finally:
        await programs.close()
    return ends


def test_ends_of_episodes(url, model):
    ends = asyncio.run(ended(url, model))
    scored = Result(reward=0.5, success=False, metrics={"reward_half": 0.5})
    assert ends["scored"].result == scored
    assert ends["reads"].result == scored  # what a program reads is not the protocol
    assert ends["late"].result == msgspec.structs.replace(scored, truncated=True)
    assert ends["much"].result == Result(truncated=True)
    words = {
        "raises": f"no reward today ({HERE / 'environments' / 'ends.py'}:",
        "infinite": "the reward is inf",
        "fails": "exited 7",
        "long": "ValueError: éé",
        "unwritten": "SandboxError: read 'answer.txt'",
        "twice": "2 traces of agent",
    }
    assert all(said in ends[end].words for end, said in words.items()), ends
    lost = {"exits": "not authenticated", "sandbox": "the box is gone", "judge": "RateLimitError: status 429"}
    assert all(said in str(ends[end]) for end, said in lost.items()), ends


def worker_of(run: Path) -> psutil.Process:
    """Returns the worker of a run, which is given the run's endpoint."""
    url = re.search(r"answered at (\S+)", (run / "logs" / "actor.log").read_text())[1]
    workers = [
        each
        for each in psutil.process_iter(["cmdline", "environ"])
        if str(WORKER) in (each.info["cmdline"] or ())
    ]
    (worker,) = [
        each for each in workers if (each.info["environ"] or {}).get("OPENAI_BASE_URL", "").startswith(url)
    ]
    return worker


def test_an_environment_learns_also_if_its_worker_is_killed_in_mid_episode(tmp_path):
    run = tmp_path / "run"
    launcher = launch(run, "+exp=verifiers_guessing")
    wait_for_record(run, "trainer_events", StepClosed, count=3)
    worker_of(run).kill()
    status, err = finish(launcher, within_s=None)
    assert status == 0, err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["heldout_success_start"] <= 0.35
    assert summary["heldout_success_end"] >= 0.6
    assert "a program failed: it ended" in (run / "logs" / "judging.log").read_text()  # with open attempts
    assert summary["rollouts_lost"] == summary["rollouts_failed_by_infrastructure"] == 0
    assert_accounted(run)
