"""Who may look: the key, names under which the view may be asked, and pages of other sites."""

import pytest

from hoplite_ucx.runtime.launch.view_port import key_for, listen, page_address
from hoplite_ucx.view.access import POLICY, own_names, refusal

KEY = key_for(b"a token", "cluster")
NAMES = own_names("127.0.0.1")
GOOD = {"Host": "127.0.0.1:7778", "Authorization": f"Bearer {KEY}"}


def test_the_key_is_for_one_cluster_and_does_not_show_the_token() -> None:
    assert key_for(b"a token", "cluster") == KEY
    assert len({KEY, key_for(b"a token", "other"), key_for(b"another", "cluster")}) == 3
    assert b"a token".hex() not in KEY
    assert page_address("127.0.0.1:7778", KEY) == f"http://127.0.0.1:7778/#key={KEY}"


def test_a_cluster_without_a_token_has_a_key_that_nobody_can_make() -> None:
    assert key_for(b"", "cluster") != key_for(b"", "cluster")


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        {**GOOD, "Host": "localhost:7778"},
        {**GOOD, "Host": "[::1]:7778"},
        {**GOOD, "Host": "198.18.0.4:7778"},  # a number cannot be rebound
        {**GOOD, "Host": "127.0.0.1"},
        {**GOOD, "Origin": "http://127.0.0.1:7778", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_who_has_the_key_may_look(headers: dict[str, str]) -> None:
    assert refusal(headers, NAMES, KEY) is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": GOOD["Host"]}, 401),
        ({**GOOD, "Authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({**GOOD, "Authorization": f"Basic {KEY}"}, 401),
        ({**GOOD, "Authorization": "Bearer \udcff"}, 401),
        ({**GOOD, "Host": "evil.example:7778"}, 403),
        ({**GOOD, "Host": "127.0.0.1.evil.example:7778"}, 403),
        ({**GOOD, "Host": ""}, 403),
        ({**GOOD, "Origin": "http://evil.example"}, 403),
        ({**GOOD, "Origin": "null"}, 403),
        ({**GOOD, "Origin": "http://127.0.0.1:9999"}, 403),
        ({**GOOD, "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_others_may_not(headers: dict[str, str], status: int) -> None:
    refused = refusal(headers, NAMES, KEY)
    assert refused is not None
    assert refused[0] == status
    assert "\n" not in refused[1]


def test_the_page_itself_may_be_linked_to_but_not_under_a_foreign_name() -> None:
    assert refusal({"Host": "127.0.0.1:7778", "Sec-Fetch-Site": "cross-site"}, NAMES, None) is None
    assert refusal({"Host": "evil.example"}, NAMES, None) is not None


def test_the_policy_allows_nothing_but_this_server() -> None:
    allowed = {part.strip().partition(" ")[2] for part in POLICY["Content-Security-Policy"].split(";")}
    assert allowed == {"'none'", "'self'"}


def test_a_port_in_use_is_an_error_unless_any_will_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", None) as usual, listen("127.0.0.1", None) as other:
            assert usual.getsockname()[1] != other.getsockname()[1]
