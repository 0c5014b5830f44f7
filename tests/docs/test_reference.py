"""The documentation names what there is: commands, options, errors, settings, links."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import postbus
from postbus.ops.cli.group import postbus as group

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
README = (ROOT / "README.md").read_text("utf-8")


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, with what one types to run it."""
    if isinstance(command, click.Group):
        for child_name, child in command.commands.items():
            yield from commands(child, f"{name} {child_name}")
    else:
        yield name, command


@pytest.mark.parametrize(("name", "command"), list(commands(group, "postbus")))
def test_a_command_and_its_options_are_in_the_readme(name: str, command: click.Command) -> None:
    [line] = [line for line in README.splitlines() if line.startswith(f"{name} ") or line == name]

    for option in command.params:
        if isinstance(option, click.Option):
            assert " ".join(filter(None, (option.opts[0], option.metavar))) in line


@pytest.mark.parametrize("name", postbus.__all__)
def test_a_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", ALL_TEXT)


@pytest.mark.parametrize("name", [name for name in dir(postbus.EventBus) if not name.startswith("_")])
def test_what_a_bus_can_do_is_in_the_readme(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", README)


@pytest.mark.parametrize("name", list(inspect.signature(postbus.EventBus).parameters))
def test_a_setting_of_the_bus_is_in_the_readme(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize("field", dataclasses.fields(postbus.RetryPolicy), ids=lambda field: field.name)
def test_a_field_of_the_retry_policy_is_in_the_readme_with_its_default(
    field: "dataclasses.Field[float]",
) -> None:
    assert f"| `{field.name}` | {field.default} |" in README


def test_the_page_of_errors_is_that_of_the_code() -> None:
    """One row for each error, in the order of errors.py, with the first sentence of its docstring."""
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", (ROOT / "docs/errors.md").read_text("utf-8"), re.M
    )
    errors = [value for value in vars(postbus.errors).values() if inspect.isclass(value)]

    assert rows == [
        (
            error.__name__,
            error.__base__.__name__,
            " ".join((error.__doc__ or "").partition("\n\n")[0].split()),
        )
        for error in errors
        if error.__base__ is not None
    ]


@pytest.mark.parametrize("name", re.findall(r"`(\w+Error)`", (ROOT / "docs/errors.md").read_text("utf-8")))
def test_an_error_is_imported_from_postbus(name: str) -> None:
    """As its page says of each."""
    assert name in postbus.__all__
    assert getattr(postbus, name) is getattr(postbus.errors, name)


def anchors_of(page: Path) -> set[str]:
    """What a link can lead to within a page: its headings."""
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    """To a file, and to a heading of it or of the same page."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page

            assert linked.exists()
            assert not anchor or anchor in anchors_of(linked)
