"""A run whose every text is hostile: code, links, characters that hide or turn others, broken bytes."""

import json
import os
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from contracts.records import Evaluated, Rollout, ServerJoined, SetResult, Settled, Started, VersionSpan
from pipelinerl.spans import Spans
from tests.builders import completion
from tests.extensions.viewer.recorded_run import BEGIN, LAUNCHER, SERVERS, RecordedRun, member_of, published

PARTS = (
    "<script>alert('script')</script>", "<img src=x onerror=alert('image')>",
    "</script><script>alert('end')</script>", "</textarea></title></style><svg onload=alert('svg')>",
    "<!--<script>", "javascript:alert('link')", "__proto__", "\u202egnp.exe\u2066", "nul\0nul",
    "\x1b]0;title\x07", "&lt;&#60; %3Cscript%3E {{7*7}} ${alert(1)}",
)  # fmt: skip
POISON = " ".join(PARTS)
SURROGATE = "\ud800"  # half of a pair, as JSON may hold it
# A name of a file has no slash and no NUL, but bytes that are no text.
FILE = os.fsdecode(
    b"<img src=x onerror=alert('file')> '(!*)' %2F..%2f ?a=1#b \xe2\x80\xae\x1b]0;\xed\xa0\x80\xff"
)
BROKEN = POISON.encode() + b" \xed\xa0\x80 \xff\xfe \xf0\x9f\x98"
LONG = "x" * 1_000_000
PROMPT_BYTES = (BROKEN * 800)[:200_000]
ANSWER_BYTES = (BROKEN * 40)[:9_000]
UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Returns what a page has to show for the text: each character that would not be seen by its number."""
    return UNSEEN.sub(lambda found: f"U+{ord(found[0]):04X}", text)


def poisoned_run(run_dir: Path) -> RecordedRun:
    """Records a run that has ended, of two groups and an evaluation. Its model's tokens are bytes."""
    byte_level_tokenizer(run_dir.parent / "model")
    run = RecordedRun(
        run_dir,
        model={"path": str(run_dir.parent / "model")},
        note=POISON + SURROGATE,
        **{POISON + SURROGATE: {POISON: [POISON + SURROGATE]}},
    )
    url = f"{SERVERS[0]}/{POISON}"
    run.append(LAUNCHER, ServerJoined(name=POISON, url=url, node=POISON, engine=POISON, at=BEGIN - 9))
    run.append("trainer_events", published(0))
    trained = [poisoned(0, member, url, float(member % 2), BROKEN, BROKEN) for member in range(2)]
    dropped = [poisoned(1, 0, f"other {POISON}", 1.0, PROMPT_BYTES, ANSWER_BYTES)]
    dropped += [poisoned(1, 1, url, 0.0, BROKEN, b"", problem_id=LONG)]
    run.step(0, [trained], trained=1)
    run.append("actor_events", Started(group_id=1, rollouts=2, draw=1, problem=1, version=1, at=BEGIN + 11))
    run.append("rollouts", *dropped)
    run.append("preprocessor_events", Settled(group_ids=[1], rollouts=2, reason=POISON))
    run.append("eval_rollouts", poisoned(0, 0, url, 1.0, BROKEN, BROKEN))
    of_set = SetResult(name=POISON, problems=4, attempts=1, success=0.5)
    run.append(
        "actor_events",
        Evaluated(version=1, problems=4, success=0.5, first_version=1, last_version=1, sets=[of_set]),
    )
    add_numbers(run, 1)
    run.end(1)
    (run_dir / "summary.json").write_text(json.dumps({"bottleneck": f"{POISON}: {POISON}{SURROGATE}"}))
    (run_dir / "judging.json").write_bytes(BROKEN)
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / FILE).write_bytes(BROKEN * 9)
    (run_dir / "logs" / "long.log").write_text(LONG + POISON)
    return run


def poisoned(
    group: int, member: int, server: str, reward: float, prompt: bytes, answer: bytes, **changes
) -> Rollout:
    """A rollout with a hostile prompt and answer, as the bytes that they are made of."""
    began = BEGIN + 4 * group + 2 * member
    spans = [VersionSpan(group, 0, len(answer) // 2), VersionSpan(group + 1, len(answer) // 2, len(answer))]
    made = completion(
        list(prompt), list(answer), spans=spans if answer else [], server=server, began=began, ended=began + 3
    )
    values = {
        "rollout_id": f"{POISON} {group}-{member}", "completions": [made], "started_at": began,
        "finished_at": made.ended, "problem_id": POISON, "domain": POISON,
        "status": f"failed:{POISON}" if group else "ok", "metrics": {POISON: 1.0},
        "reward_components": {POISON: reward},
    }  # fmt: skip
    return member_of(group, member, group, reward, **(values | changes))


def add_numbers(run: RecordedRun, step: int) -> None:
    """Adds metrics and spans with hostile names, also of a process that has one."""
    name = POISON + SURROGATE
    run.metrics("trainer", step, **{name: 1.0, f"alarm_{name}": 1.0})
    run.metrics("actor", step, **{name: 1.0, f"reward_{name}": 1.0, f"heldout_success_{name}": 0.5})
    run.metrics("preprocessor", step, **{f"dropped_{name}": 1.0})
    for process in ("trainer-0", FILE):
        spans = Spans(run.run_dir, process)
        spans.add(name, BEGIN, 9.0, **{name: name})
        spans.add("places", BEGIN, 1.0, **{name: 1.0})
    run.metrics(FILE, step, **{name: 1.0})


def byte_level_tokenizer(directory: Path) -> None:
    """Writes a tokenizer whose tokens are bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(BPE({symbol: byte for byte, symbol in enumerate(SYMBOLS)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


# What stands for each byte in byte-level tokenizers: itself where it is printed, or else a later character.
PRINTED = {*range(33, 127), *range(161, 173), *range(174, 256)}
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
SYMBOLS = [chr(byte) if byte in PRINTED else chr(256 + OTHERS.index(byte)) for byte in range(256)]
