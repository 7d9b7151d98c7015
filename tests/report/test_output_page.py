"""The page about the output names every key, and none that does not exist."""

import re
from pathlib import Path

from sample_plan import sample_plan

from pdmodel.report import plan_to_dict

PAGE = Path(__file__).parent.parent.parent / "docs" / "output.md"
CONTENT = plan_to_dict(sample_plan())


def json_rows() -> dict[str, str]:
    """First cell to second cell of the table under "JSON"."""
    part = PAGE.read_text(encoding="utf-8").split("## JSON\n")[1].split("\n## ")[0]
    cells = [row.strip("|").split("|", 1) for row in part.splitlines() if row.startswith("| `")]
    return dict(cells)


def test_every_key_is_on_the_page_in_order() -> None:
    assert [key for first in json_rows() for key in re.findall(r"`(\w+)`", first)] == list(CONTENT)


def test_fields_of_parts_are_on_the_page() -> None:
    told = {
        key: set(re.findall(r"`(\w+)`", text)) for first, text in json_rows().items() for key in [first.strip("` ")]
    }
    for key in ("verdict", "bound", "times", "ports", "flows", "schedule", "settings", "enforceability", "solver"):
        part = CONTENT[key]
        fields = (part[0] if isinstance(part, list) else part).keys()
        assert fields <= told[key], key
    assert CONTENT["policies"][0].keys() <= told["policies"] | told["times"]
