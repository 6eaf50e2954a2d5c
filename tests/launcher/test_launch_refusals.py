"""Bad input: one clear line on stderr, a non-zero exit, and no process started."""

import importlib
import json
import os
import shlex
import socket
from pathlib import Path
from string import Template

import pytest
import yaml

import launch
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.config import Section, save_config
from pipelinerl.launcher.checking.components import check_master_address, warn_of_decay
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.composing.explain import parse
from pipelinerl.observers import Observer
from pipelinerl.streams.of_run import Files
from pipelinerl.training.checkpoints import Checkpoints, Position
from trainer_adapters.scripted import ScriptedTrainer


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Imports what the launcher's checks need: once, and not in the process that each launcher forks."""
    for name in ("contracts.conformance.preload", "reasoning_gym", "trainer_adapters.fsdp"):
        importlib.import_module(name)


@pytest.fixture
def model(tmp_path) -> Path:
    """A directory that looks like a model with a context of 64 and a chat template."""
    from contracts.conformance.tiny_model import make_tiny_model

    return Path(make_tiny_model(tmp_path / "model", context=64))


def refused(capsys, *overrides: str) -> str:
    """The one line with which the launcher refuses."""
    capsys.readouterr()  # what fixtures printed
    assert launch.main(list(overrides)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


DATA = Path(__file__).parent.parent / "data"
KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"
OVERLONG = "rewards=[{_target_: pipelinerl.rewards.overlong.Overlong, max_tokens: 16, buffer: 4}]"


def test_a_token_that_cannot_be_sent(capsys, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "two words")
    assert "PIPELINERL_TOKEN: a token is printable ASCII" in refused(capsys, "inference=scripted")


class Needy:
    needs_token_fields = ("mine",)


class Periodic(ScriptedTrainer):
    period = 10


class Untold(Observer):
    def command(self, run_dir: Path) -> tuple[str, ...]:
        return ("no-such-program",)


class OneOption(Files):
    class Options(Section):
        size: int = 3


class OldPacking:
    def __init__(self, micro_batch_tokens: int, ranks: int, first_step: int): ...

    def close_step(self): ...


WORDS = {
    "DATA": str(DATA),
    "HERE": __name__,
    "KL": f'"{KL}"',
    "OVERLONG": f'"{OVERLONG}"',
    "TEACHER": "reference=transformers +reference.arguments.model=teacher",
    "ANSWERS": f"domain=demonstrations domain.path={DATA}/answers.jsonl",
    "SFT": f"+exp=sft domain.path={DATA}/answers.jsonl",
    "FILTERS": '"filters=[{_target_: pipelinerl.filters.ZeroAdvantage}]"',
    "MANY": str(["http://a"] * 64),
    "ENGINE": "inference.arguments",
    "MASKED": "objective=masked objective@objective.policy=gspo objective.rules=[]",
}
# Overrides as in a shell, and a part of the line with which they are refused.
CONFIGURATIONS = r"""
batch_sizes=8 | did you mean batch_size?
objective=gpso | did you mean gspo?
objective=ppo_clip objective.epsilon_lo=0.1 | did you mean epsilon_low?
objective=ppo_clip +objective.epsilon_lo=0.1 | PpoClip has no option epsilon_lo; did you mean epsilon_low?
"filters=[{_target_: pipelinerl.filters.ZeroAdvantage, treshold: 1}]" | ZeroAdvantage has no option treshold
+exp=dappo | did you mean dapo?
+exp.lr=3 | is set by its own key, without exp
+objective=gspo | write objective=NAME, without the plus
hydra.run.dir=here | Hydra only composes
reference=null | reference is one of scripted, sglang, transformers, vllm
reference=transformers reference.model=other | reference.model would leave out --model: set +reference.arg
filters._target_=mine.Filter | filters is a list, which is written whole
"filters=[{_target_: pipelinerl.filters.ZeroAdvantag}]" | did you mean ZeroAdvantage?
stop_at=1 | stop_at: must be a mapping
optimizer.betas=0.9 | optimizer.betas: must be a list
+max_steps=3 | max_steps is there already; write it without the plus
+exp=dapo +exp=grpo | +exp=NAME is given more than once
+nokey=3 | nokey: there is no such key
+batch_siz=3 | batch_siz: there is no such key; did you mean batch_size?
resume=maybe run_dir=runs/latest | resume=maybe: resume=true resumes from the newest checkpoint
run_dir=??? | Missing mandatory value: run_dir
run_dir='' | run_dir: String should have at least 1 character
seed=99999999999999999999 | seed: Input should be less than 9007199254740992
world.servers=5000 | world.servers: Input should be less than or equal to 1024
sampling.temperature=1e-9 | sampling.temperature
optimizer.betas=[0.9,1.5] | optimizer.betas.1: Input should be less than 1
schedule=colocated | Group does not put servers to sleep; set weights=
schedule=null | schedule is one of async, colocated, conventional, pipeline
schedule=conventional max_lag=4 | leave max_lag out, or set schedule=async
eval.problems=100000 | the domain chain_sum holds out 1000; set eval.problems=1000
domain.heldout_size=0 | the domain chain_sum holds out no problems, and every run is evaluated
"objective={_target_: nowhere.Nothing}" | there is no module nowhere, neither in this directory nor
domain._target_=os.getcwd | domain._target_=os.getcwd is
"trainer={_target_: builtins.object}" | is no TrainerWorker
world.server=2 | did you mean world.servers?
observers=[tensorboard,wand] | observers=wand is not one of copy, tensorboard, trackio, viewer, wandb
observers=wandb observers.wandb.tracker=wand | observers.wandb: 'wand' is no tracker; there are: wandb
+observers.mine._target_=$HERE.Untold | 'no-such-program', which is no program on this machine
streams._target_=$HERE.OneOption | for another class, write ~streams +streams._target_=tests.
objective._target_=$HERE.Needy | Needy has no options; if a file of conf/ set it for another class, write ~
+observers.mine._target_=os.getcwd | observers.mine._target_=os.getcwd is no Observer
view=true | view=true: set observers=viewer, or several, like observers=[viewer,wandb]
+trackers=[wandb] | +trackers=[wandb]: set observers=wandb, trackio or tensorboard
model.hub=org/name | model.hub=org/name: write model.path=ORG/NAME
model.demo=thinking | model.demo=thinking: write model=sums, model=thinking, model=guessing or model=word_pro
model=org/name | model=org/name is not one of expressions, guessing, hybrid, smollm2, sums
model.made_by.name=mine | model.made_by: mine is not one of sums, hybrid, thinking, guessing
model.made_by._target_=os.getcwd | model.made_by._target_=os.getcwd is no ModelMaker
model.made_by=null | there is no model: set model.path, or choose one that is made, like model=sums
streams.run=mine | streams.run=mine: the launcher names a new run; leave it out
streams.backend=redis | streams.backend=redis: write streams=files or streams=redis
executor.backend=ray | executor.backend=ray: set executor=local or executor=ray
executor._target_=os.getcwd | executor._target_=os.getcwd is no Executor
trainer.inner._target_=trainer_adapters.diloco.X trainer=diloco | trainer.inner._target_=trainer_adapters.
objective._target_=pipelinerl.view.X | objective._target_=pipelinerl.view.X is extensions.viewer.X now
advantage=value trainer.value_head=true | advantage: Return takes no baseline off
objective=value_baseline trainer.value_head=true | takes a learned baseline off, and advantage LeaveOneOut
advantage=max_rl $OVERLONG | MaxRL needs rewards that are not negative, and Overlong of rewards
advantage=max_rl domain=math domain.rewards.wrong=-1.0 | not negative; domain.rewards has -1.0
advantage=pass_at_k $OVERLONG | PassAtK needs rewards of 0 and 1, and rewards adds Overlong
advantage=pass_at_k domain=math domain.rewards.wrong=-1.0 | 0 and 1, and domain.rewards has 1, -1, 0, 0
advantage=pass_at_k advantage.k=17 | advantage.k=17 is more than the group_size=16 attempts
advantage=step_std advantage@advantage.advantage=max_rl $OVERLONG | MaxRL needs rewards that are not neg
advantage=gdpo $OVERLONG | no weight; set +advantage.components.overlong to one, or to 0
advantage=gdpo credit=turn | the rewards of turns have none; set credit=trajectory
advantage=step_std advantage@advantage.advantage=gdpo | an advantage is scaled over the step once
objective=gspo objective.base=proximal | set epochs=2 or more, or base=behaviour
trainer=scripted trainer._target_=$HERE.Periodic epochs=4 | a period of 10 updates, which is no multiple
$MASKED objective.policy.base=proximal | set epochs=2 or more
objective=distillation reference=transformers | needs a teacher: set +reference.arguments.model
group_size=1 | advantage LeaveOneOut compares the attempts of a group; set group_size=2
objective=dpo reference=transformers | Dpo learns from answers of a file: set domain=demonst
credit=completion | gives each completion its own reward, for pairs of answers (objective=dpo)
advantage=gdpo advantage.components.task=0 | components must have a weight other than 0
domain=informed | tells the reference more, and no term of the loss needs a reference
domain=informed domain.template=answer | domain: template 'answer' does not contain {prompt}
domain=demonstrations | domain: path is needed: of a .jsonl file
+exp=sft domain.path=$DATA/pairs.jsonl | 2 answer(s) a line, and objective CrossEntropy does
+exp=dpo domain.path=$DATA/pairs.jsonl credit=trajectory | by its reward: set credit=completion
$SFT group_size=4 | group_size=4: a line is one attempt; set group_size=1
$SFT $OVERLONG | no term of the reward counts; set rewards=[]
$SFT sampler=retiring | Retiring chooses by success, and
$SFT "+token_fields.w={dtype: float32, fill: 0.0}" | answers of a file have none
$SFT $FILTERS | group_size=1 has one; set filters=[]
objective=cross_entropy | CrossEntropy learns from answers of a file: set domain=demonstrations
advantage=constant | from which objective Reinforce learns nothing; choose another advantage
objective=value_baseline trainer.value_head=true advantage=value group_size=1 | ZeroAdvantage compares
$ANSWERS | Reinforce does not learn from those; set objective=cross_
reference.renew_every=5 | reference.renew_every=5; it belongs to another choice of reference
reference=transformers reference.renew_every=5 | no term of the loss needs a reference
$KL $TEACHER reference.renew_every=5 | a teacher, which has a model of its own, is never renewed
objective=distillation $TEACHER reference.renew_every=5 | is never renewed
$OVERLONG sampling.max_tokens=8 | Overlong.max_tokens=16 is above the 8 tokens
batch_size=12 | not divisible by group_size
sampling.top_p=0.9 | bias the importance ratio
sampling.top_k=50 | bias the importance ratio
packing.micro_batch_tokens=0 | packing: micro_batch_tokens must be a positive whole number, not 0
optimizer.lr=inf | optimizer.lr
+packing.split_rollouts=true objective=gspo | Gspo needs all sequences of a rollout in one micro-batch
packing._target_=$HERE.OldPacking | packing: OldPacking has no method add_rollout
world.gpus=1 | needs 2 GPUs
objective.max_importance_weight=0 | max_importance_weight must be positive
+objective.epsilon=0.2 | epsilon
domain.task=chain_some | chain_sum
eval.pinned=true world.servers=2 eval.every=null | set eval.every
eval.pinned=true | would leave none to train with; set world.servers=2
+eval.attempts_of.aime_2024=16 | attempts_of names aime_2024; the 256 held-out problems
eval.attempts_of.chain_sum=4 | added with a plus: +eval.attempts_of.chain_sum=4
world.nodes=2 | world.nodes=2: a run over several nodes is started with executor=ray
executor=ray | executor=ray needs streams=redis
executor=ray streams=redis world.servers_min=4 | world.servers_min=4 is more than world.servers=
executor=ray streams=redis "executor.forward_env=[a b]" | executor.forward_env.0: String should match
executor=ray streams=redis executor.place_timout_s=3 | did you mean place_timeout_s?
executor=ray streams=redis +executor.place_timout_s=3 | no such key; did you mean place_timeout_s?
weights.relays=[http://a] | weights.relays is an option of weights=relay
weights=shared weights.keep=5 | weights.keep is an option of weights=relay
weights.directory=/tmp/x | weights.directory is an option of weights=relay or weights=shared
weights=shared weights.deltas=true | weights.deltas is an option of weights=relay
weights=relay weights.deltas=true | needs weights.dtype=bfloat16 or float16
inference.urls=[127.0.0.1:1] | 127.0.0.1:1 is none like http://HOST:PORT
"inference.urls=[http://a:1,http://b:1,http://c:1]" world.servers=2 | leaves some of 3 inference.urls out
"inference.command=[sh,'{port}','{prt}']" | in braces are {host}, {port} and {model} alone
"inference.command=[sh,x]" | no word has {port}
"inference.command=[nosuchprogram,'{port}']" | nosuchprogram is no program here
"inference.command=[sh,launch.py,'{port}']" | servers start in the run's directory; write /
inference=volunteers | inference=volunteers needs weights=relay
inference=volunteers weights=relay sampling.seeded=true | their draws are prescribed by keys
inference=volunteers weights=relay world.servers=2 | would start several gateways
inference=volunteers weights=relay inference.arguments.public_host=0.0.0.0 | without TLS
inference=volunteers weights=relay inference.arguments.require=commitments | needs tolerances that were
inference=volunteers weights=relay max_lag=0 | behind=1 is more than max_lag=0
weights=relay "weights.relays=['http://:80/x']" | is no http:// or https:// URL with a host
weights=relay "weights.relays=['http://a/../b']" | the path of a source has no empty segment
weights=relay "weights.relays=['http://*.a']" | a source is http://host:port/path
weights=relay "weights.relays=$MANY" | at most 63 items
weights=relay "weights.relays=['http://u:p@a']" | has no user, password, query
weights=relay schedule=async | weights=relay with schedule=async
weights=relay weights.max_behind=5 | weights.max_behind=5 is more than max_lag=4
weights=relay schedule=conventional weights.max_behind=1 | weights.max_behind=1 is more than max_lag=0
weights=shared executor=ray streams=redis | set weights.directory to one that all nodes
streams=redis streams.keep_bytes=1 | streams.keep_bytes: Input should be greater than or equal to 4096
streams.url=redis://h | streams.url=redis://h: streams.url is an option of streams=redis
+streams.keep_byts=1 | streams.keep_byts: there is no such key; did you mean keep_bytes?
streams._target_=os.getcwd | streams._target_=os.getcwd is no StreamsBackend
streams._target_=pipelinerl.streams.of_run.StreamsBackend | has no method open
weights._target_=pipelinerl.weight_transport.WeightTransport | has no method publisher
executor._target_=pipelinerl.launcher.executors.base.Executor | has no method capacity, close, end,
+exp=math_7b world.gpus=3 | the plan needs 8 GPUs and world.gpus is 3
inference=transformers world.gpus=1 | with world.share_gpus=true weights=shared
inference=transformers world.gpus=1 world.share_gpus=true | NCCL refuses a server and a trainer rank on one
+exp=math_1gpu world.servers=2 | have fewer world.servers (a reference is one more) or trainer_ranks
+exp=math_1gpu inference=all_engines world.servers=2 world.gpus=2 | a plan adds one engine; choose one
+exp=math_1gpu inference.arguments.gpu_memory_utilization=0 | a plan reads a number above 0
+exp=math_1gpu reference=vllm world.trainer_ranks=2 world.gpus=2 | beside a trainer rank; set world.servers=2
+exp=math_1gpu world.gpus=2 inference.gpus_per_server=2 | needs servers of one GPU
+exp=math_1gpu executor=ray streams=redis | world.share_gpus=true needs executor=local
+exp=math_7b batch_size=1000 | groups of 8 makes 125, which 4 trainer ranks cannot share equally
+exp=math_7b world.trainer_ranks=6 world.gpus=10 | set batch_size to a multiple of 48, another world.
+exp=math_7b probe.max_tokens=131072 | probe.max_tokens = 132880 exceeds the model's context of 131072
+exp=math_7b sampling.max_tokens=131072 | = 132880 exceeds the model's context of 131072
+exp=math_7b probe.max_tokens=9000 | = 10808 exceeds inference.arguments.max_model_len=10000
+exp=math_7b inference.arguments.max_model_len=131073 | =131073 exceeds the model's context of 131072; lower
+exp=math_7b sampling.max_tokens=many | sampling.max_tokens: Input should be a valid integer
+exp=math_7b inference.gpus_per_server=3 world.servers=1 | cannot split the model over 3 GPUs
+exp=math_7b $ENGINE.tensor_parallel_size=3 | but a server has inference.gpus_per_server=1
+exp=math_7b world.trainer_ranks=1 | a trainer rank needs about
+exp=math_7b_4gpu world.servers=2 world.trainer_ranks=2 | raise world.trainer_ranks
+exp=math_7b world.gpu_memory_gib=16 | has no room for a sequence of 10000 tokens
+exp=math_7b $ENGINE.kv_cache_memory_bytes=300000000000 | a server needs 298 GiB of a GPU
+exp=math_7b inference=sglang_gpu $ENGINE.max_total_tokens=9999 | has no room for a sequence
+exp=math_7b inference=sglang_gpu $ENGINE.mem_fraction_static=0.97 | a server needs 81.6 GiB
+exp=math_7b $ENGINE.gpu_memory_utilization=90% | =90%: a plan reads a number
+exp=math_7b model.path=no/such/model | is not a Hugging Face model directory
exp=dapo | exp=dapo: it is added with a plus: +exp=dapo
"+token_fields.my-own={dtype: float32, fill: 0}" | token_fields: my-own is no name
"token_fields.mine={dtype: float32, fill: 0}" | added with a plus: +token_fields.mine
objective._target_=$HERE.Needy ~objective.max_importance_weight | Needy needs token_fields.mine: declare
"""


@pytest.mark.parametrize("case", CONFIGURATIONS.strip().splitlines())
def test_configuration(capsys, monkeypatch, case):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    overrides, says = case.split(" | ")
    line = refused(capsys, *shlex.split(Template(overrides).substitute(WORDS)), "plan=true")
    assert line.startswith("launch.py: ") and says in line


@pytest.mark.parametrize(("argument", "says"), [
     ("run_dir=a=b", """written in quotes inside the shell's: run_dir="'a=b'\""""),
     ("run_dir=$(a)", """run_dir="'\\$(a)'\""""), ("run_dir=it's", "run_dir=\"'it\\\\'s'\""),
     ("run_dir=~/ü", """run_dir="'~/ü'\""""), ("run_dir=a,b", "a run has one value of each key"),
     ("domain.system_prompt=\udcc3\udc9c", "this terminal's encoding has no such characters; set PYTHONUTF8"),
     ("rewards=[a", "the list or mapping is not complete"),
     ("model.shape={a: 1", "the list or mapping is not complete"),
     ("batch size=3", "'batch size' is not the name of a key"), ("=3", "the name of the key is missing"),
     ("--multirun", "settings are written KEY=VALUE"), ("", "settings are written KEY=VALUE"),
])  # fmt: skip
def test_an_argument_that_cannot_be_read(capsys, argument, says):
    line = refused(capsys, argument)
    assert says in line
    assert "Lexer" not in line and "mismatched" not in line


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file", "is a file; set run_dir to a new directory"),
        ("loop", "is a link that leads to itself"),
        ("", "exists and is never overwritten"),
        ("file/run", "which is a file; set run_dir to another"),
        ("/proc/run", "cannot be used: No such file or directory"),
        ("n" * 300, "a name in it has 300 bytes, and 255 is the most"),
        ("/".join(["n" * 200] * 25), "bytes, and"),
    ],
)
def test_a_run_directory_that_cannot_be_made(capsys, tmp_path, place, says):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "loop").symlink_to("loop")
    assert says in refused(capsys, f"run_dir={tmp_path / place}", "inference=scripted", "trainer=scripted")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loop"}


@pytest.mark.parametrize("address", ["203.0.113.9", "no.such.host.invalid"])
def test_an_address_that_rank_0_could_not_listen_at(capsys, tmp_path, address):
    given = [f"run_dir={tmp_path}/run", "inference=scripted", "trainer=scripted"]
    line = refused(capsys, f"weights.master_address={address}", *given)
    assert f"weights.master_address={address} is no address of this machine" in line


def test_a_name_is_looked_up_for_the_addresses_that_the_store_listens_at(monkeypatch):
    """A resolver may name ::1 first for localhost, on a machine without IPv6."""
    elsewhere = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere)
    check_master_address("localhost")


def test_more_processes_than_this_machine_could_serve(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    given = [f"run_dir={tmp_path}/run", "inference=scripted", "trainer=scripted", "world.servers=1024"]
    assert "world.servers + world.trainer_ranks = 1025 processes" in refused(
        capsys, *given, "world.threads=1"
    )


def written(model: Path, name: str, **changes) -> None:
    path = model / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    written(model, "tokenizer_config.json", chat_template=None)


def configured(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)


NO_TOOLS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
MODELS = {  # what is done to the model, what is set, and what is said
    "no template": (without_template, [], "has no chat template"),
    "scored wrongly": (
        lambda model: written(model, "config.json", layer_types=["full_attention", "minimax_m3_sparse"]),
        [], "qwen2 has minimax_m3_sparse: such layers would read across",
    ),
    "too long": (None, ["sampling.max_tokens=60"], "exceeds the model's context of 64"),
    "long prompts": (None, ["sampling.max_prompt_tokens=5"], "and sampling.max_prompt_tokens is 5; raise it"),
    "no tools": (
        lambda model: (model / "chat_template.jinja").write_text(NO_TOOLS),
        ["domain=calculator"], "the domain needs tools",
    ),
    "tokenizer": (
        lambda model: (model / "tokenizer.json").write_text("{"), [], "has no usable tokenizer",
    ),
    "no tokenizer": (
        lambda model: (model / "tokenizer.json").unlink(), [], "has no tokenizer (none of",
    ),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), [], "it has no weights: none of"),
    "none": (lambda model: (model / "config.json").unlink(), [], "no config.json there"),
    "torn": (lambda model: configured(model, '{"a": '), [], "config.json cannot be read"),
    "a list": (lambda model: configured(model, "[]"), [], "it names no model_type"),
    "of no kind": (
        lambda model: configured(model, '{"model_type": "none"}'), [], "does not recognize this architecture",
    ),
    "no heads": (
        lambda model: written(model, "config.json", num_attention_heads=0), [], "describes no model",
    ),
    "a file": (None, ["model.path={model}/config.json"], "/config.json is a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_cannot_be_used(capsys, tmp_path, model, case):
    spoil, settings, says = MODELS[case]
    if spoil:
        spoil(model)
    settings = [setting.replace("{model}", str(model)) for setting in settings]
    given = ["sampling.max_prompt_tokens=48", f"model.path={model}", f"run_dir={tmp_path}/run"]
    assert says in refused(capsys, *given, *settings)


# --- resuming ---------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path) -> Path:
    """The directory of a run that stopped after its checkpoint of version 5."""
    run_dir = tmp_path / "run"
    config = compose_config(["inference=scripted", "trainer=scripted", "max_steps=9", "batch_size=64"])
    Checkpoints(run_dir).worker(5).mkdir(parents=True)
    Checkpoints(run_dir).complete(Position(5, 0), keep=1)
    save_config(config.model_copy(update={"run_dir": str(run_dir)}), run_dir / "config.yaml")
    return run_dir


def test_a_resumed_run_keeps_its_configuration_and_takes_what_is_set(stopped):
    resuming = [f"run_dir={stopped}", "resume=true", "max_steps=20", "world.trainer_ranks=2"]
    config = compose_config([*resuming, "trainer=deepspeed", "trainer.zero_stage=3"])
    assert (config.max_steps, config.world.trainer_ranks, config.batch_size) == (20, 2, 64)
    assert config.trainer.target.endswith("DeepSpeedTrainer") and config.trainer.zero_stage == 3
    assert config.inference.module == "inference_adapters.scripted"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["group_size=4"], "group_size cannot change when a run is resumed; it was 16"),
        (["seed=7"], "seed cannot change when a run is resumed; it was 0"),
        (["domain.task=gcd"], "domain cannot change when a run is resumed"),
        (
            ["trainer=fsdp", "trainer.lora={rank: 4, alpha: 8}"],
            "trainer.lora cannot change when a run is resumed; it was None",
        ),
        (["~domain"], "nothing can be taken out when a run is resumed"),
        (["+exp=grpo"], "+exp=grpo: a resumed run keeps its configuration; leave it out"),
        (["max_step=9"], "max_step"),
        (["resume=4"], "resume=4: there are checkpoints of versions 0, 5"),
        (["resume=-1"], "resume"),
        (["max_steps=4"], "the run has made 5 steps and max_steps is 4; raise it to resume"),
    ],
)
def test_a_resumption_that_cannot_be(capsys, stopped, overrides, says):
    assert says in refused(capsys, f"run_dir={stopped}", "resume=true", *overrides)
    assert not (stopped / "streams").exists() and not (stopped / "logs").exists()


def test_a_resumption_of_nothing(capsys, tmp_path):
    assert "resume needs run_dir" in refused(capsys, "resume=true")
    assert "holds no run to resume" in refused(capsys, "resume=true", f"run_dir={tmp_path}")


def test_a_plan_starts_and_writes_nothing(capsys, stopped):
    assert launch.main([f"run_dir={stopped}", "resume=true", "plan=true"]) == 0
    assert "trainer-0" in capsys.readouterr().out
    assert not (stopped / "streams").exists()
    assert launch.main([f"run_dir={stopped}-new", "plan=true"]) == 0
    assert [path.name for path in stopped.parent.iterdir()] == [stopped.name]


def test_an_executor_that_is_named_again_keeps_its_settings(tmp_path):
    """As the script for SLURM does, with resume=true."""
    on_ray = ["executor=ray", "streams=redis"]
    settings = ["executor.forward_env=[WANDB_MODE]", "executor.place_timeout_s=1200"]
    save_config(compose_config([*on_ray, *settings]), tmp_path / "config.yaml")
    resuming = [f"run_dir={tmp_path}", "resume=true"]
    executor = compose_config([*resuming, *on_ray]).executor
    assert (executor.forward_env, executor.place_timeout_s) == (["WANDB_MODE"], 1200)
    assert (
        compose_config([*resuming, *on_ray, "executor.place_timeout_s=600"]).executor.place_timeout_s == 600
    )
    assert compose_config([*resuming, "executor=local"]).executor.target.endswith("LocalExecutor")
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del saved["executor"]  # as in runs of earlier code
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    assert compose_config([*resuming, *on_ray]).executor.place_timeout_s == 120


@pytest.mark.parametrize("text", ["", "a: [", "seed: 0"])
def test_a_run_whose_configuration_is_not_complete_is_not_resumed(capsys, tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    line = refused(capsys, f"run_dir={tmp_path}", "resume=true")
    assert "is not the complete configuration of a run" in line or "cannot be composed" in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["max_steps=105"], ""),
        (["max_steps=106"], "is 0 from step 106 on, and max_steps=106; set optimizer.decay_steps=101"),
        (["max_steps=9", "optimizer.decay_steps=1", "optimizer.warmup_steps=0"], "is 0 from step 2 on"),
        (["max_steps=1000", "optimizer.decay_steps=null"], ""),
    ],
)
def test_last_steps_without_a_learning_rate_are_told_of(capsys, given, says):
    warn_of_decay(compose_config(given))
    told = capsys.readouterr().out
    assert says in told and bool(says) == bool(told)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("objective: gspo", "conf/exp/mine.yaml: its first line must be: # @package _global_"),
        ("defaults: [override /objective: gspo]", "mine.yaml: its first line must be: # @package _global_"),
        (
            "# @package _global_\ndefaults: [override objective: gspo]",
            "conf/exp/mine.yaml: write `override /objective: NAME` in its defaults, with a slash",
        ),
        (
            "# @package _global_\ndefaults: [override /objectiv: gspo]",
            "conf/exp/mine.yaml: it overrides objectiv, and there is no such choice; did you mean objective?",
        ),
        ("# @package _global_\ndefaults: [/objective: gspo]", "mine.yaml: write `override /objective: NAME`"),
        ("# @package _global_\nbatch_siz: 8", "no such key in conf/exp/mine.yaml; did you mean batch_size?"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_names_the_file(capsys, tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "mine.yaml").write_text(text)
    assert says in refused(capsys, "+exp=mine")


@pytest.mark.parametrize("text", [r"Put \boxed{}.", r"it's \a", r"x\'y", r"\frac{a}{b}, 'c'"])
def test_what_is_proposed_for_a_text_means_that_text(capsys, text):
    (proposed,) = shlex.split(refused(capsys, f"domain.system_prompt={text}").rpartition(": ")[2])
    assert parse([proposed])["domain.system_prompt"].value() == text
