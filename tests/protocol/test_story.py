from hoplite_ucx.protocol import story
from hoplite_ucx.protocol.story import Stories
from tests.tools.machines import ref


def test_a_story_is_told_in_order_with_its_teller_and_object() -> None:
    stories = Stories("n1")
    stories.add(0.5, ref(1), "asked for")
    stories.add(0.75, ref(2), "something else")
    stories.add(1.0, ref(1), "{} placed behind {}", "n1", "n2")
    assert stories.tell(ref(1)) == [(0.5, "n1 00000000: asked for"), (1.0, "n1 00000000: n1 placed behind n2")]


def test_an_unknown_object_has_no_story() -> None:
    assert Stories("n1").tell(ref(1)) == []


def test_details_are_turned_into_words_only_when_asked() -> None:
    class Costly:
        asked = 0

        def __str__(self) -> str:
            self.asked += 1
            return "costly"

    costly, stories = Costly(), Stories("n1")
    stories.add(0.0, ref(1), "{}", costly)
    assert costly.asked == 0
    stories.tell(ref(1))
    assert costly.asked == 1


def test_the_latest_entries_of_an_object_are_kept() -> None:
    stories = Stories("n1")
    count = story._ENTRIES_PER_OBJECT + 10
    for number in range(count):
        stories.add(float(number), ref(1), "{}", number)
    told = stories.tell(ref(1))
    assert len(told) == story._ENTRIES_PER_OBJECT
    assert told[-1][0] == count - 1


def test_the_number_of_objects_is_bounded() -> None:
    stories = Stories("n1")
    for number in range(story._OBJECTS + 1):
        stories.add(0.0, ref(number), "seen")
    assert stories.tell(ref(0)) == []
    assert stories.tell(ref(1))
    assert len(stories._entries) == story._OBJECTS


def test_of_objects_that_are_over_only_the_latest_are_remembered() -> None:
    stories = Stories("n1")
    stories.add(0.0, ref(0), "lives")
    for number in range(1, story._ENDED_OBJECTS + 2):
        stories.add(0.0, ref(number), "lived")
        stories.end(ref(number))
    stories.end(ref(9999))  # nobody has told of it
    assert stories.tell(ref(1)) == []
    assert stories.tell(ref(2))
    assert stories.tell(ref(0)), "what is not over stays"
    assert len(stories._entries) == story._ENDED_OBJECTS + 1
