"""The launcher of a node other than 0: runs, of what node 0 has planned, what is placed on its own."""

import sys
import time
from dataclasses import asdict
from pathlib import Path

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checks import check_components, check_machine, check_problems
from pipelinerl.launcher.hosts import Host, host_of
from pipelinerl.launcher.jobs import Job, plan_jobs
from pipelinerl.launcher.lead import Plan, as_json
from pipelinerl.launcher.model_checks import check_model
from pipelinerl.launcher.model_source import Model, fetch_model, find_model
from pipelinerl.launcher.nodes import Nodes
from pipelinerl.launcher.supervisor import SERVING, JobFailedError, NodeState, Supervisor


def follow(config: RunConfig, nodes: Nodes) -> int:
    """Node 0's exit status; another where it has none."""
    check_same(as_json(config), nodes.hear(0, "config"))
    check_components(config)
    check_machine(config)
    check_problems(config)
    nodes.say(host=host_of(config, nodes.rank, nodes.address, nodes.held))
    plan = Plan(**nodes.hear(0, "plan"))
    jobs, run_dir = own_jobs(config, nodes, plan), Path(plan.run_dir)
    wait_for_mark(Path(plan.mark), nodes)
    nodes.say(ready=True, state=asdict(before_it_begins(jobs)))
    nodes.hear(0, "begin")
    names = ", ".join(job.name for job in jobs) or "nothing"
    print(f"node {nodes.rank} runs {names}; run directory: {run_dir}", flush=True)
    status = supervise(Supervisor(jobs, run_dir, config.world.stop_timeout_s), nodes)
    print(f"node {nodes.rank} has ended; status {status}")
    return status


def before_it_begins(jobs: list[Job]) -> NodeState:
    roles = [job.role for job in jobs]
    working = any(role not in SERVING for role in roles)
    return NodeState(roles.count("server"), working, "reference" in roles)


def supervise(supervisor: Supervisor, nodes: Nodes) -> int:
    def ended(state: NodeState) -> bool:
        """Once node 0 says so: it knows of all."""
        nodes.say(state=asdict(state))
        if trouble := nodes.trouble(0):
            raise JobFailedError(trouble)
        return "over" in nodes.facts(0)

    try:
        supervisor.run(ended)
        nodes.say(ended=True)
        return nodes.hear(0, "status")
    except (JobFailedError, PlanError) as failure:
        print(f"launch.py: {failure}", file=sys.stderr)
        return 1


def own_jobs(config: RunConfig, nodes: Nodes, plan: Plan) -> list[Job]:
    model = own_model(config, plan)
    config = model.of(config)
    check_model(config, model)
    hosts = [Host(*host) for host in plan.hosts]
    jobs = plan_jobs(config, Path(plan.run_dir), hosts, plan.token, plan.redis_url)
    return [job for job in jobs if job.node == nodes.rank]


def own_model(config: RunConfig, plan: Plan) -> Model:
    """Where node 0 has it: in a directory that all share, or in this node's cache of the hub."""
    model = find_model(config, Path(plan.model))
    if model.state == "on the hub":
        model = fetch_model(model.path)
    if model.path != plan.model or model.state == "to be made":
        raise PlanError(
            f"the model is {model.path} here and {plan.model} on node 0: model.path must lie on a file "
            "system that all nodes share, or HF_HOME be the same on all"
        )
    return model


def check_same(own: object, of_node_0: object, key: str = "") -> None:
    if isinstance(own, dict) and isinstance(of_node_0, dict):
        for name in own | of_node_0:
            check_same(own.get(name), of_node_0.get(name), f"{key}.{name}" if key else name)
    elif own != of_node_0:
        raise PlanError(f"{key} is {own} here and {of_node_0} on node 0: give every node the same command")


def wait_for_mark(mark: Path, nodes: Nodes) -> None:
    deadline = time.monotonic() + nodes.timeout_s
    nodes.wait(lambda: mark.exists() or nodes.trouble(0) or time.monotonic() > deadline)
    if not mark.exists():
        raise PlanError(
            f"run_dir={mark.parent} is not here what it is on node 0: it must lie on a file system that all "
            "nodes share"
        )
