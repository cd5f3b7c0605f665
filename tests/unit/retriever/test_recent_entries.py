from services.retriever.recent_entries import Remembered
from tests.unit.retriever.test_planning import entry


def test_the_longest_not_asked_for_goes_first() -> None:
    remembered = Remembered(2)
    remembered.put([entry("a"), entry("b")], remembered.mark)
    assert set(remembered.known(["a", "x"])) == {"a"}
    remembered.put([entry("c")], remembered.mark)
    assert set(remembered.known(["a", "b", "c"])) == {"a", "c"}
    assert len(remembered) == 2


def test_a_read_older_than_an_eviction_is_not_remembered() -> None:
    remembered = Remembered(8)
    mark = remembered.mark
    remembered.forget(["a"])
    remembered.put([entry("a")], mark)
    assert remembered.known(["a"]) == {}
    remembered.put([entry("a", ks=(5,))], remembered.mark)
    assert len(remembered.known(["a"])["a"].states) == 1


def test_a_capacity_of_none() -> None:
    remembered = Remembered(0)
    remembered.put([entry("a")], remembered.mark)
    assert len(remembered) == 0
