"""What the command prints, and what it refuses."""

import json
import shlex
import subprocess
import sys

import pytest

from extensions.cluster.slurm.__main__ import main
from extensions.cluster.slurm.script import script
from pipelinerl.paths import ROOT

SHELL = ROOT / "extensions" / "cluster" / "slurm"
HEAD_OF_FOUR = f"""#!/bin/bash
#SBATCH --job-name=one
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --partition=large
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --signal=B:TERM@60
python={sys.executable}
launch={ROOT}/launch.py
run_dir=/shared/runs/one
gpus=8
arguments=(executor=ray streams=redis run_dir=/shared/runs/one world.servers=10)

"""
OF_FOUR = "nodes=4 gpus=8 time=24:00:00 partition=large -- run_dir=/shared/runs/one world.servers=10"


def test_the_script_is_this_one():
    text = script(OF_FOUR.split())
    assert text == HEAD_OF_FOUR + (SHELL / "nodes.sh").read_text() + "\n" + (SHELL / "run.sh").read_text()
    for bash in (text, script(["join=/shared/my run"])):
        assert subprocess.run(["bash", "-n"], input=bash, text=True).returncode == 0


def test_launch_is_given_each_argument_exactly():
    arguments = [
        "run_dir=/a",
        "b=['x y', \"$HOME\"]",
        "c=`id`",
        "d=it's",
        "e=",
        "f=a\n#SBATCH --nodes=9",
        "g=\\",
    ]
    text = script(["nodes=1", "--", *arguments])
    values = text[: text.index("# Ray on the nodes")]
    show = 'exec "$python" -c "import json, sys; print(json.dumps(sys.argv[1:]))" "${arguments[@]}"\n'
    shown = subprocess.run(["bash"], input=values + show, capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == ["executor=ray", "streams=redis", *arguments]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("nodes=0 -- run_dir=/a", "nodes=0: set it to a whole number, 1 or more"),
        ("nodes=２ -- run_dir=/a", "nodes=２"),
        ("nodes=2 -- run_dir=/a plan=true", "plan=true needs no job of SLURM's"),
        ("node=2 -- run_dir=/a", "node=2: not one of join, nodes, gpus"),
        ("nodes=2 nodes=3 -- run_dir=/a", "nodes is set twice"),
        ("'account=a b' -- run_dir=/a", "give it to sbatch by itself"),
        ("nodes=2", "put -- before the arguments of launch.py"),
        ("nodes=2 -- run_dir=/a run_dir=/b", "set run_dir once after --"),
        ("nodes=2 -- run_dir=runs/one", "run_dir=runs/one: set an absolute path"),
        ("nodes=2 -- run_dir=/a streams=files", "streams=files: a run on several nodes needs streams=redis"),
        ("nodes=2 -- run_dir=/a executor=local", "needs executor=ray"),
        ("join=runs/one", "join=runs/one: set an absolute path"),
        ("join=/a -- world.servers=2", "leave out -- and what follows"),
    ],
)
def test_bad_input_is_refused_in_one_line(command, words, capsys):
    assert main(shlex.split(command)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1
