"""Paths as topics and numbers are the paths that they stand for, one by one and as a request's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper import jute, paths
from controller.zookeeper.row_writes import StatePaths

TOPICS = st.lists(
    st.tuples(
        st.text("abcXYZ019._-", min_size=1, max_size=20),
        st.lists(st.one_of(st.integers(0, 12), st.integers(90, 110), st.integers(990, 2**31 - 1)), max_size=30),
    ),
    max_size=6,
)


def spelled_out(topics: list[tuple[str, list[int]]]) -> list[str]:
    return [paths.partition_state(name, number) for name, numbers in topics for number in numbers]


@given(topics=TOPICS, chroot=st.sampled_from(["", "/kafka", "/a/b"]))
def test_a_requests_bytes_are_those_of_its_paths(topics: list[tuple[str, list[int]]], chroot: str) -> None:
    written = [jute.prefixed(chroot, path) for path in spelled_out(topics)]
    assert jute.multi_read_states(topics, chroot) == jute.multi_read(jute.GET_DATA, written)


@given(topics=TOPICS, first=st.integers(-5, 100), last=st.integers(-5, 100))
def test_a_run_of_them_is_as_such_a_sequence(topics: list[tuple[str, list[int]]], first: int, last: int) -> None:
    run = StatePaths(topics)[first:last]
    assert isinstance(run, StatePaths)
    assert list(run) == spelled_out(topics)[first:last]


@given(topics=TOPICS)
def test_they_are_a_sequence_of_str(topics: list[tuple[str, list[int]]]) -> None:
    ours, written = StatePaths(topics), spelled_out(topics)
    assert list(ours) == written
    assert len(ours) == len(written)
    assert [ours[place] for place in range(-len(written), len(written))] == written + written
    assert ours[:] is ours
    assert list(ours[1:3]) == written[1:3]
    for beyond in (len(written), -len(written) - 1):
        with pytest.raises(IndexError):
            ours[beyond]
