"""The work of the trial's process: makes each user component as a run would, and calls it.

An error of a constructor about its options is left to the launcher's checks, which build the component again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, BinaryIO

from contracts.support.messages import one_line
from pipelinerl.batching.of_run import build_packing
from pipelinerl.components import build_domain, build_sampler, instantiate
from pipelinerl.config import Component, RunConfig
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.domains.judges import judging_of
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import location_of, root_of
from pipelinerl.judging.options import HOSTED
from pipelinerl.launcher.checking.components import check_components, has_value_head
from pipelinerl.launcher.checking.trial import component_calls as calls
from pipelinerl.launcher.checking.trial import domain_calls
from pipelinerl.launcher.checking.trial.sample_inputs import PROBLEM, answers_of
from pipelinerl.launcher.checking.trial.watch import Watch, has_user_component, isolate_process

MAKE_VERIFIER = "pipelinerl.judging.verifiers.make_verifier"  # imported only by workers that judge
OF_A_GPU = re.compile("cuda|nvidia|triton", re.IGNORECASE)  # errors of components that need a GPU
CODE_ERRORS = (NameError, AttributeError, ImportError, SyntaxError, SystemExit)  # whatever the options are


def run_trial(config: RunConfig, report: BinaryIO) -> list[str]:
    """Tries all user components. Returns warnings, one line each. Raises PartError. report: of `Watch`."""
    isolate_process()
    watch = Watch(report, config.check_parts_s)
    try:
        return Trial(config, watch).run()
    except PartError:
        if watch.is_of_call:
            try:
                check_components(config)
            except PlanError:  # the launcher's checks raise it too, and it explains more
                return []
        raise
    except Exception as error:
        return [f"not every part could be tried before the start: {type(error).__name__}: {one_line(error)}"]


class Trial:
    def __init__(self, config: RunConfig, watch: Watch):
        self._config = config
        self._watch = watch
        self._untried: list[str] = []

    def run(self) -> list[str]:
        """Tries all user components. Returns warnings, one line each. Raises PartError."""
        config = self._config
        answers = answers_of(config)
        has_values = has_value_head(config.trainer)
        needs_domain = self._needs_attempt or has_user_component([*config.filters, *config.rewards])
        domain = self._domain() if needs_domain else None
        problem, tasks, texts = self._attempt(domain) if domain else (PROBLEM, {}, [])
        of_loss = {"config": config, "answers": answers, "has_values": has_values}
        self._try("objective", config.objective, partial(calls.call_objective, **of_loss), "(loss, sums)")
        warnings: list[str] = []
        for check in (calls.check_gradient, calls.cut_loss):
            warnings += self._warnings_of("objective", config.objective, partial(check, **of_loss))
        for component in config.regularisers:
            self._try("regulariser", component, partial(calls.call_regulariser, **of_loss), "(loss, sums)")
        of_group = "one number for each rollout"
        self._try("advantage", config.advantage, partial(calls.call_advantage, config=config), of_group)
        tell_apart = partial(calls.check_advantages, config=config)
        warnings += self._warnings_of("advantage", config.advantage, tell_apart)
        weigh = partial(calls.call_normalisation, config=config)
        self._try("normalisation", config.normalisation, weigh, "an array of weights for each group")
        for component in config.filters:
            keep = partial(calls.call_filter, config=config, problem=problem)
            self._try("filter", component, keep, "a bool for each rollout")
        for component in config.rewards:
            add = partial(calls.call_reward, config=config, problem=problem)
            self._try("reward", component, add, of_group)
        for name in ("health", "trainer"):
            self._make(name, getattr(config, name))
        self._make("packing", config.packing, lambda: build_packing(config))
        if domain:
            self._sampler(domain)
        self._verifiers(domain, tasks, texts)
        return [*warnings, *self._untried]

    def _warnings_of(self, role: str, component: Component, call: Callable[[Any], None]) -> list[str]:
        try:
            self._try(role, component, call, "the same for the same input")
        except PartError as error:
            return [str(error)]
        return []

    def _try(self, role: str, component: Component, call: Callable[[Any], None], expected: str) -> None:
        if (made := self._make(role, component)) is not None:
            try:
                with self._watch.over(role, component.target, made, expected):
                    call(made)
            except PartError as error:
                if not OF_A_GPU.search(str(error)):
                    raise
                self._untried.append(f"{error}; it was not tried, because it needs a GPU")

    def _make(
        self, role: str, component: Component, make: Callable[[], object] | None = None, is_timed: bool = True
    ) -> object | None:
        """Returns the object; None if the component ships, or its constructor refuses the options."""
        if not has_user_component(component):
            return None
        with self._watch.over(role, component.target, is_timed=is_timed):
            try:
                return make() if make else instantiate(component)
            except (Exception, SystemExit) as error:
                if isinstance(root_of(error), CODE_ERRORS) and location_of(error):
                    raise
        return None

    @property
    def _needs_attempt(self) -> bool:
        config = self._config
        return has_user_component([config.domain, config.sampler, config.judging.verifiers])

    def _domain(self) -> Domain | None:
        config = self._config
        if has_user_component(config.domain):
            self._make("domain", config.domain, lambda: resolve_name(config.domain.target))
            return self._make("domain", config.domain, lambda: build_domain(config), is_timed=False)
        try:
            return build_domain(config)
        except Exception:  # the launcher's checks report it
            return None

    def _attempt(self, domain: Domain) -> tuple[Problem, Mapping[str, Any], list[str]]:
        """Runs a rollout. Returns the problem, and the tasks and texts of the domain's verifiers."""
        config = self._config
        if config.plan and domain.fetches:  # the sizes would fetch its problems
            return PROBLEM, {}, []
        if min(domain.train_size, domain.heldout_size) <= 0:
            return PROBLEM, {}, []
        path = config.domain.target
        with self._watch.over("domain", path, domain, "its problems", "train_problem", is_timed=False):
            problem = domain_calls.call_problems(domain)
            named = replace(problem, domain=problem.domain or domain.name)
        if not self._needs_attempt:
            return named, {}, []
        with self._watch.over("domain", path, domain, "an Attempt", "rollout"):
            client = domain_calls.call_rollout(domain, problem, config)
        return named, client.tasks, client.texts

    def _sampler(self, domain: Domain) -> None:
        config = self._config
        make = partial(build_sampler, config, domain)
        sampler = self._make("sampler", config.sampler, make)
        other = self._make("sampler", config.sampler, make)
        if sampler is not None and other is not None:
            expected = "the index of a training problem"
            with self._watch.over("sampler", config.sampler.target, sampler, expected, "next"):
                calls.call_sampler(sampler, other, config, domain.train_size)

    def _verifiers(self, domain: Domain | None, tasks: Mapping[str, Any], texts: list[str]) -> None:
        specs = self._config.judging.verifiers
        if domain:
            specs = judging_of(self._config.judging, domain).verifiers
        for name, spec in specs.items():
            if not has_user_component(spec) or spec.get(HOSTED):  # a hosted one needs its service
                continue
            path = spec["_target_"]
            expected = "a verifier that can be made"
            with self._watch.over("verifier", path, expected=expected, method="__init__"):
                verifier = resolve_name(MAKE_VERIFIER)(name, spec)
            if name in tasks:
                expected = "a Judgement on any text"
                with self._watch.over("verifier", path, verifier, expected, "judge"):
                    domain_calls.call_verifier(verifier, tasks[name], texts)
