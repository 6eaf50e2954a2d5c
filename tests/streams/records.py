"""The records that the tests of streams write and read back."""

from contracts.records import Started


def event(number: int) -> Started:
    return Started(at=1.0, group_id=number, rollouts=8, draw=number, problem=0)


def numbers(entries) -> list[int]:
    return [entry.record.group_id for entry in entries]


def there(streams, name="events", offset=0) -> list[int]:
    return numbers(streams.reader(name).read(offset, timeout_s=0))
