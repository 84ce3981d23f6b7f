"""The fence of an object store, on moto's S3 through boto3: a zombie is refused in each order of events."""

from collections.abc import Iterator
from typing import Any

import pytest
from muster.sinks import ObjectFence, StaleToken
from sinks.sinks_owners import HEIR, ZOMBIE, owner

boto3: Any = pytest.importorskip("boto3", reason="boto3 is missing: `./x test tests/sinks` brings it")
moto: Any = pytest.importorskip("moto", reason="moto is missing: `./x test tests/sinks` brings it")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="data")
        yield client


def body(client: Any, key: str = "manifest") -> bytes:
    found: bytes = client.get_object(Bucket="data", Key=key)["Body"].read()
    return found


def test_a_zombie_does_not_replace_what_its_successor_wrote(client: Any) -> None:
    fence = ObjectFence(client, "data")
    fence.put(ZOMBIE, "manifest", b"1", ContentType="text/plain", Metadata={"by": "a"})
    fence.put(ZOMBIE, "manifest", b"2")
    fence.put(HEIR, "manifest", b"3")
    with pytest.raises(StaleToken) as caught:
        fence.put(ZOMBIE, "manifest", b"4")
    assert caught.value.highest == HEIR.token
    assert body(client) == b"3"
    fence.put(owner(1, 1, number=4), "other", b"5")


def test_other_metadata_and_options_reach_the_object(client: Any) -> None:
    ObjectFence(client, "data").put(HEIR, "x", b"1", ContentType="text/plain", Metadata={"by": "a"})
    head = client.head_object(Bucket="data", Key="x")
    assert head["ContentType"] == "text/plain"
    assert head["Metadata"] == {"by": "a", "muster-token": HEIR.token}


class Interrupted:
    """A client between whose two calls somebody else writes, once."""

    def __init__(self, client: Any, meanwhile: Any) -> None:
        self._client = client
        self._meanwhile = meanwhile

    def head_object(self, **arguments: Any) -> Any:
        try:
            return self._client.head_object(**arguments)
        finally:
            meanwhile, self._meanwhile = self._meanwhile, lambda: None
            meanwhile()

    def put_object(self, **arguments: Any) -> Any:
        return self._client.put_object(**arguments)


@pytest.mark.parametrize("there", [True, False], ids=["replaced", "created"])
def test_a_zombie_that_looked_before_its_successor_wrote_is_refused(client: Any, there: bool) -> None:
    fence = ObjectFence(client, "data")
    if there:
        fence.put(ZOMBIE, "manifest", b"1")
    slow = Interrupted(client, lambda: fence.put(HEIR, "manifest", b"2"))
    with pytest.raises(StaleToken):
        ObjectFence(slow, "data").put(ZOMBIE, "manifest", b"3")
    assert body(client) == b"2"


def test_an_owner_whose_look_is_outdated_looks_again(client: Any) -> None:
    slow = Interrupted(client, lambda: ObjectFence(client, "data").put(ZOMBIE, "manifest", b"1"))
    ObjectFence(slow, "data").put(HEIR, "manifest", b"2")
    assert body(client) == b"2"


def test_errors_of_the_store_are_its_own(client: Any) -> None:
    with pytest.raises(Exception, match=r"NoSuchBucket|does not exist"):
        ObjectFence(client, "nowhere").put(HEIR, "x", b"1")
