"""Every Python example of the README and the documentation runs, and prints what it says it prints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES_WITH_EXAMPLES = [page for page in PAGES if "```python\n" in page.read_text("utf-8")]

# A block of Python, and the block of text right after it, if there is one.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """One block of code and what it must print; None: anything."""

    code: str
    line: int
    output: str | None


def examples_in(page: Path) -> Iterator[Example]:
    text = page.read_text("utf-8")
    for match in EXAMPLE.finditer(text):
        yield Example(match[1], text[: match.start()].count("\n") + 1, match[2])


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run_in_order(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """In an empty folder and an empty database, each with the names that those before it have made."""
    monkeypatch.chdir(tmp_path)
    if "DATABASE_URL" in page.read_text("utf-8"):
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_dsn"))
    names: dict[str, object] = {"__name__": "example"}
    for example in examples_in(page):
        # Line breaks before it, so that a traceback shows the line of the page.
        exec(compile("\n" * example.line + example.code, str(page), "exec"), names)

        output = capsys.readouterr().out
        assert output == (output if example.output is None else example.output)


def test_the_readme_has_examples() -> None:
    """A changed fence must not make the test above run nothing."""
    first, *others = examples_in(ROOT / "README.md")

    assert first.output == "order.placed {'order': 42}\n"
    assert len(others) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_says_what_it_is(page: Path) -> None:
    """A block without a language would be left out of the tests unnoticed."""
    fences = re.findall(r"^```(.*)$", page.read_text("utf-8"), re.MULTILINE)

    assert set(fences[::2]) <= {"python", "sh", "text"}
    assert set(fences[1::2]) <= {""}
