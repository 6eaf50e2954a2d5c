"""Weights are received into the memory of those that were replaced last, never into what is served."""

from inference_adapters.receive_memory import ReceiveMemory


def addresses(memory: ReceiveMemory, *sizes: int) -> list[int]:
    """Receives an update in buckets of these sizes, and returns where they lie."""
    allocate = memory.begin()
    return [allocate(size).data_ptr() for size in sizes]


def test_two_sets_of_buffers_take_turns():
    memory = ReceiveMemory()
    updates = []
    for _ in range(4):
        updates.append(addresses(memory, 4096, 8192, 4096))
        memory.serve()
    first, second, third, fourth = updates
    assert not set(first) & set(second)
    assert (third, fourth) == (first, second)


def test_the_memory_of_a_failed_update_is_not_used_again():
    memory = ReceiveMemory()
    addresses(memory, 4096)
    memory.serve()
    addresses(memory, 4096)
    memory.serve()
    abandoned = memory.begin()(4096)  # by a thread that may still receive into it
    assert abandoned.data_ptr() not in addresses(memory, 4096, 4096)


def test_buckets_of_other_sizes_get_memory_of_their_own():
    memory = ReceiveMemory()
    for size in (4096, 4096, 64):
        allocate = memory.begin()
        assert allocate(size).numel() == size
        memory.serve()
