"""Which node and which GPUs each job gets."""

import pytest

from pipelinerl.errors import PlanError
from pipelinerl.launcher.compose import compose_config
from pipelinerl.placement import Place, place


def gpus(*places: Place) -> list[tuple[int, tuple[int, ...]]]:
    return [(place.node, place.gpus) for place in places]


def test_on_one_node_servers_come_first_then_ranks_then_the_reference():
    servers, trainers, reference = place(1, 8, servers=2, gpus_per_server=2, trainer_ranks=2, reference=True)
    assert gpus(*servers) == [(0, (0, 1)), (0, (2, 3))]
    assert gpus(*trainers) == [(0, (4,)), (0, (5,))]
    assert gpus(reference) == [(0, (6, 7))]


def test_four_nodes_of_eight_with_servers_of_two_gpus():
    servers, trainers, reference = place(
        4, 8, servers=10, gpus_per_server=2, trainer_ranks=12, reference=False
    )
    assert [server.node for server in servers] == [0] * 4 + [1] * 4 + [2] * 2
    assert servers[5].gpus == (2, 3)
    assert gpus(*trainers) == [(2, (i,)) for i in (4, 5, 6, 7)] + [(3, (i,)) for i in range(8)]
    assert reference is None


def test_no_server_is_on_two_nodes_and_ranks_take_what_is_left():
    servers, trainers, reference = place(2, 3, servers=2, gpus_per_server=2, trainer_ranks=2, reference=False)
    assert gpus(*servers, *trainers) == [(0, (0, 1)), (1, (0, 1)), (0, (2,)), (1, (2,))]


def test_no_gpu_is_given_twice():
    servers, trainers, reference = place(3, 5, servers=4, gpus_per_server=2, trainer_ranks=4, reference=True)
    taken = [(p.node, gpu) for p in [*servers, *trainers, reference] for gpu in p.gpus]
    assert len(taken) == len(set(taken)) == 14


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((1, 1, 1, 1, 1, False), "the plan needs 2 GPUs and world.gpus is 1"),
        ((2, 4, 3, 2, 3, False), r"the plan needs 9 GPUs and 2 nodes have 4 each \(world.gpus\)"),
        ((3, 3, 4, 2, 1, False), "a server needs 2 GPUs of one node, and no node has as many left"),
        ((2, 3, 1, 2, 3, True), "the plan needs 7 GPUs"),
        ((2, 5, 2, 3, 1, True), "a reference server needs 3 GPUs of one node"),
    ],
)
def test_what_does_not_fit_is_refused(counts, says):
    with pytest.raises(PlanError, match=says):
        place(*counts)


def test_on_cpus_servers_go_round_and_ranks_stay_together():
    servers, trainers, reference = place(2, 0, servers=3, gpus_per_server=4, trainer_ranks=4, reference=True)
    assert gpus(*servers) == [(0, ()), (1, ()), (0, ())]
    assert [trainer.node for trainer in trainers] == [0, 0, 1, 1]
    assert reference == Place(0)


def test_one_rank_is_on_node_0_of_any_number():
    assert place(5, 0, servers=1, gpus_per_server=1, trainer_ranks=1, reference=False).trainers == [Place(0)]


def test_the_configuration_counts_over_all_nodes():
    several = ["streams=redis", "world.nodes=2", "world.gpus=2", "world.servers=2", "world.trainer_ranks=2"]
    assert [p.node for p in compose_config(several).placement.trainers] == [1, 1]
    with pytest.raises(PlanError, match="needs 5 GPUs and 2 nodes have 2 each"):
        compose_config([*several, "world.servers=3"])
