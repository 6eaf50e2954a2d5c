"""The processes of judging that this process has started; other tests may have left it other children."""

import psutil


def templates() -> list[psutil.Process]:
    """Returns the templates, from which workers are forked."""
    return [child for child in psutil.Process().children() if _is_of_judging(child)]


def templates_and_workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if _is_of_judging(child)]


def _is_of_judging(process: psutil.Process) -> bool:
    try:
        return "pipelinerl.judging.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
