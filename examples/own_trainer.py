"""A trainer of one's own: it puts a file's weights into servers that keep the inference contract.

    python examples/own_trainer.py weights.pt http://127.0.0.1:8000

It uses torch and the standard library alone. It sends the tensors of a state dict, by Hugging Face name, as
version 1. More URLs are more members of one group.
"""

import json
import secrets
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT_S = 30
BUCKET_BYTES = 2**24
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever HTTP_PROXY says


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with DIRECTLY.open(request, timeout=2 * TIMEOUT_S) as answer:
        return json.load(answer)


def join(urls, run, epoch):
    """Forms the weight group: this process is rank 0, and hosts the store."""
    timeout = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    name = f"{run}-{epoch}"
    body = {"run": run, "takeover": True, "epoch": epoch, "group_name": name, "backend": "gloo"}
    body |= {"master_address": "127.0.0.1", "master_port": store.port, "timeout_s": TIMEOUT_S}
    ranks = [call(f"{url}/contract")["ranks"] for url in urls]
    body["world_size"] = 1 + sum(ranks)
    with ThreadPoolExecutor() as pool:  # a server answers when every member has come: so all at once
        joins = []
        for i, url in enumerate(urls):
            own = body | {"rank_offset": 1 + sum(ranks[:i])}
            joins.append(pool.submit(call, f"{url}/init_process_group", own))
        keys = dist.PrefixStore("cpu/", dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store)))
        try:
            group = dist.ProcessGroupGloo(keys, 0, body["world_size"], timeout)
        finally:  # where no group formed, an answer says why
            for answer in joins:
                answer.result()
    return group


def buckets(tensors):
    """Yields lists of consecutive tensors that are sent together."""
    bucket = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket = []
            size = 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket


def publish(urls, group, run, epoch, version, weights):
    sent = {}
    tied = {}
    names = {}
    for name, tensor in weights.items():  # two names of one memory are tied
        first = names.setdefault((tensor.data_ptr(), tensor.shape), name)
        if first == name:
            sent[name] = tensor
        else:
            tied[name] = first
    body = {"run": run, "epoch": epoch, "version": version, "tied": tied, "timeout_s": TIMEOUT_S}
    body["bucket_bytes"] = BUCKET_BYTES
    body["parameters"] = [
        {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in sent.items()
    ]
    for url in urls:  # a refusal raises here, before anything is sent
        call(f"{url}/request_weight_update", body)
    for bucket in buckets(sent.values()):
        raw = torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in bucket])
        group.broadcast([raw], dist.BroadcastOptions()).wait()
    for url in urls:
        status = call(f"{url}/weight_update/{version}?wait_s={TIMEOUT_S}")
        if status["state"] != "live":
            raise RuntimeError(f"{url}: {status}")


if __name__ == "__main__":
    if len(sys.argv) < 3:  # of which --help is one
        print(__doc__)
        sys.exit("--help" not in sys.argv)
    file, *urls = sys.argv[1:]
    run = secrets.token_hex(8)
    weights = torch.load(file)
    group = join(urls, run, epoch=1)
    publish(urls, group, run, 1, 1, weights)
    for url in urls:
        prompt = {"model": call(f"{url}/contract")["model"], "prompt": "1 + 1 =", "max_tokens": 8}
        (choice,) = call(f"{url}/v1/completions", prompt | {"logprobs": True})["choices"]
        print(url, choice["weight_versions"], choice["token_ids"])
