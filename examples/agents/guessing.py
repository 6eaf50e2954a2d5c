"""An agent of plain `openai` that finds a number. One process makes all attempts, each a line of JSON."""

import asyncio
import json
import sys

from openai import AsyncOpenAI, OpenAIError

openai = AsyncOpenAI(base_url="http://endpoint", api_key="key")  # its connections serve all attempts


async def attempt(line: dict) -> dict:
    client = openai.with_options(base_url=line["base_url"], api_key=line["api_key"])
    number = line["task"]["task"]
    messages = list(line["task"]["messages"])
    for _ in range(11):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        said = answer.choices[0].message.content.strip()
        if not said.isdecimal() or int(said) == number:
            break
        reply = "higher" if int(said) < number else "lower"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    return {"result": {"reward": float(said == str(number))}}


async def serve(line: dict) -> None:
    try:
        said = await attempt(line)
    except OpenAIError as error:  # also if the attempt is over
        said = {"error": str(error)}
    print(json.dumps({"id": line["id"], **said}), flush=True)


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        while line := await asyncio.to_thread(sys.stdin.readline):
            given = json.loads(line)
            if "task" in given:
                group.create_task(serve(given))


asyncio.run(main())
