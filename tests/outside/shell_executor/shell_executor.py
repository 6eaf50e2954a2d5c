"""An executor that starts each job by a shell script, which gets the job's name and its command."""

from dataclasses import replace
from pathlib import Path

from pipelinerl.config import Section
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.local import LocalExecutor

SCRIPT = Path(__file__).with_name("start.sh")


class ShellExecutor(LocalExecutor):
    class Options(Section):
        started: Path  # file to which the script appends names
        script: Path = SCRIPT

    @classmethod
    def of(cls, config, options):
        if not options.script.is_file():
            raise PlanError(f"executor.script: there is no {options.script}")
        executor = super().of(config, options)
        executor.shell = ("sh", str(options.script.absolute()), str(options.started.absolute()))
        return executor

    def start(self, name, process):
        super().start(name, replace(process, command=(*self.shell, name, *process.command)))
