"""A job's lane and payload, and how jobs are put together for publishing."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lanelog.config import check_name
from lanelog.demo.job import MALFORMED_LANE, PART_BYTES, Job, MalformedJob, lane_of
from lanelog.demo.publish import BATCH, batches


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        (b"README.md", "README.md"),
        (b"queue/lanelog", "queue/lanelog"),
        (b"queue/lanelog/a/b", "queue/lanelog"),
        (b"100%/a b/c", "100%25/a b"),
        (b" a / b /c", "%20a / b%20"),
        (b"\xff/\n/x", "%FF/%0A"),
    ],
)
def test_the_lane_is_the_second_level_path(path: bytes, lane: str) -> None:
    """The first two components, readable, with what a key may not contain percent-encoded."""
    assert lane_of("", path) == lane


@given(
    st.lists(st.binary(min_size=1, max_size=150).filter(lambda name: not {0, 47} & set(name)), min_size=1, max_size=3)
)
@example([b"malformed"])
@example([b"%malformed"])
def test_every_path_has_a_valid_lane(components: list[bytes]) -> None:
    """Whatever the bytes, the key is valid, and nobody's but a path's."""
    lane = lane_of("", b"/".join(components))
    assert check_name("key", lane) == lane
    assert lane != MALFORMED_LANE


@given(st.binary(min_size=1), st.binary(), st.binary())
def test_a_job_survives_its_encoding(path: bytes, source: bytes, content: bytes) -> None:
    """Path, source and content are any bytes."""
    job = Job(
        repo="r", commit="c" * 40, author="Jörg <j@x>", path=path, mode="100644", source=source, part=3, content=content
    )
    assert Job.decode(job.encode()) == job


@pytest.mark.parametrize(
    "payload", [b"", b"no header line", b"\xff\n", b"{}\n", b"[]\n", b"null\n", b'{"source": 1}\n', b"{\n"]
)
def test_what_is_no_job_is_told_apart(payload: bytes) -> None:
    """Any other payload is refused with a reason, never taken for a job."""
    with pytest.raises(MalformedJob, match="header"):
        Job.decode(payload)


@given(st.lists(st.integers(0, PART_BYTES), max_size=BATCH * 2))
@settings(max_examples=20)
def test_batches_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    """Every job is in one batch, in order; a batch ends at a count or behind the job that fills it."""
    content = bytes(PART_BYTES)
    all_jobs = [
        Job(repo="", commit=str(n), author="", path=b"p", content=content[:size]) for n, size in enumerate(sizes)
    ]
    found = list(batches(all_jobs))
    assert [job for batch in found for job in batch] == all_jobs
    assert all(0 < len(batch) <= BATCH for batch in found)
    assert all(sum(len(job.content) for job in batch[:-1]) < 4 * PART_BYTES for batch in found)
