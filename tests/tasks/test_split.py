"""Parts of a data set."""

from floater.tasks.corpora.split import PARTS, split


def test_parts_are_disjoint_cover_all_and_do_not_change_with_the_others():
    every = [str(i) for i in range(1000)]

    def drawn(examples, part, seed=0):
        return set(split(examples, part, valid=0.1, test=0.2, seed=seed, name=str))

    train, valid, test = (drawn(every, part) for part in PARTS)
    assert len(train) + len(valid) + len(test) == len(train | valid | test) == 1000
    assert 60 < len(valid) < 140  # four standard deviations of 9.5
    assert 150 < len(test) < 250
    assert drawn(every[:500], "test") < test
    assert drawn(every, "test", seed=1) != test
