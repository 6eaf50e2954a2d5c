"""Judges programs where the kernel denies namespaces, or Landlock: python -m ...denied namespaces|landlock"""

import asyncio
import errno
import sys

import pyseccomp

from extensions.programs.domain import VERIFIER
from pipelinerl.judging.child import JudgingEndedError, judging_service
from pipelinerl.judging.options import HOSTED, JudgingConfig
from tests.extensions.programs.test_corpora import INNOCENT, TASK

NEW_USER = 0x10000000
WRITES = "```python\nopen('made', 'w')\nprint(10)\n```"


def deny(what):
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    if what == "landlock":
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "landlock_create_ruleset")
    else:
        flags = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, NEW_USER, NEW_USER)
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", flags)
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare")
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.load()


async def judged(language):
    spec = {"_target_": VERIFIER, HOSTED: 60.0, "language": language}
    try:
        async with judging_service(JudgingConfig(workers=1, verifiers={"code": spec})) as client:
            for text in (INNOCENT, WRITES):
                print((await client.judged("code", TASK, text)).outcome)
    except JudgingEndedError as error:
        print("refused:", error)


if __name__ == "__main__":
    deny(sys.argv[1])
    asyncio.run(judged(["python"]))
    asyncio.run(judged(["cpp"]))
