"""Parts of a data set."""

from types import SimpleNamespace

from floater.lab.tasks.settings import SplitData


def test_parts_are_disjoint_cover_all_and_do_not_change_with_the_others():
    every = [SimpleNamespace(id=i) for i in range(1000)]

    def drawn(examples, part, seed=0):
        data = SplitData("", valid_share=0.1, test_share=0.2, split_seed=seed)
        return {example.id for example in data.part(examples, part)}

    train, valid, test = (drawn(every, part) for part in ("train", "valid", "test"))
    assert len(train) + len(valid) + len(test) == len(train | valid | test) == 1000
    assert 60 < len(valid) < 140  # four standard deviations of 9.5
    assert 150 < len(test) < 250
    assert drawn(every[:500], "test") < test
    assert drawn(every, "test", seed=1) != test
