"""What users install: complete, light, and documented."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import postbus

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "postbus"


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which a freshly built wheel was unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(*arguments: str) -> str:
    """Run Python with *arguments* in the project's root; its output, or a failed test."""
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        pytest.fail(f"{' '.join(arguments)}\n\n{finished.stdout}{finished.stderr}", pytrace=False)
    return finished.stdout


def files_in(folder: Path) -> Iterator[Path]:
    """Every file in *folder*, relative to it, without the caches."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder)


def test_the_wheel_has_every_file_of_the_package(unpacked_wheel: Path) -> None:
    """Types and SQL are shipped with the code, and nothing is left out by .gitignore."""
    shipped = set(files_in(unpacked_wheel / "postbus"))

    assert Path("py.typed") in shipped
    assert any(path.suffix == ".sql" for path in shipped)
    assert shipped == set(files_in(PACKAGE))


def test_the_wheel_works_without_the_checkout(unpacked_wheel: Path) -> None:
    """Every public name loads from the unpacked wheel, SQL files included."""
    script = (
        f"import sys; sys.path.insert(0, {str(unpacked_wheel)!r}); import postbus;"
        "[getattr(postbus, name) for name in postbus.__all__]; print(postbus.__file__)"
    )

    assert Path(run("-c", script).strip()).is_relative_to(unpacked_wheel)


def test_msgspec_is_the_only_core_dependency(unpacked_wheel: Path) -> None:
    """Whatever else postbus can use comes with an extra."""
    [installed] = importlib.metadata.distributions(path=[str(unpacked_wheel)])
    core = [line for line in installed.requires or [] if "extra ==" not in line]

    assert [re.split(r"[^\w.-]", line)[0] for line in core] == ["msgspec"]


def test_the_readme_is_the_page_of_the_package(unpacked_wheel: Path) -> None:
    """A package index shows the README."""
    [installed] = importlib.metadata.distributions(path=[str(unpacked_wheel)])

    assert "Description" in installed.metadata, 'pyproject.toml lacks readme = "README.md"'
    assert installed.metadata["Description"].strip() == (ROOT / "README.md").read_text("utf-8").strip()


@pytest.mark.parametrize("name", postbus.__all__)
def test_a_public_name_has_a_docstring(name: str) -> None:
    """Whatever `from postbus import …` offers exists and says what it promises."""
    doc = getattr(postbus, name).__doc__

    assert doc
    assert not doc.startswith(f"{name}("), "the docstring is the one that dataclass made up"


def test_a_star_import_needs_no_extra() -> None:
    """What needs a driver is listed only where there is one; asked for by name it says what to do."""
    script = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from postbus import *\n"
        "import postbus; print(EventBus.__name__, *(n for n in postbus.__all__ if n.startswith('Pg')))\n"
        "try: postbus.PgEventBus\n"
        "except MissingExtraError as error: print(error.extra)"
    )

    assert run("-c", script).splitlines() == ["EventBus", "postgres"]


def test_a_star_import_has_everything_where_the_extras_are() -> None:
    """Each name once."""
    script = "from postbus import *; print(PgEventBus.__name__, PgEventStore.__name__, PgStateStore.__name__)"

    assert run("-c", script).split() == ["PgEventBus", "PgEventStore", "PgStateStore"]
    assert len(set(postbus.__all__)) == len(postbus.__all__)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("AnyCheckpointMode", "config"),
        ("Clock", "ports"),
        ("EventStore", "ports"),
        ("Store", "ports"),
    ],
)
def test_what_users_annotate_with_is_public(name: str, module: str) -> None:
    """The types of settings and of what the bus hands out."""
    assert name in postbus.__all__
    assert getattr(postbus, name) is getattr(importlib.import_module(f"postbus.{module}"), name)


def test_the_version_is_that_of_the_installed_package() -> None:
    """It is looked up when somebody asks: that would cost every start some milliseconds."""
    script = "import sys, postbus; print('importlib.metadata' in sys.modules, postbus.__version__)"

    assert run("-c", script).split() == ["False", importlib.metadata.version("postbus")]


def test_a_package_that_was_not_installed_has_no_version() -> None:
    """As any name that is not there, so that a default can be given."""
    script = (
        "import importlib.metadata, sys, postbus\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'find_distributions')]\n"
        "print(getattr(postbus, '__version__', 'unknown'))"
    )

    assert run("-c", script).strip() == "unknown"


def test_importing_postbus_is_light() -> None:
    """No terminal, web, validation or PostgreSQL library is loaded before it is used."""
    heavy = {"asyncpg", "click", "jinja2", "psycopg", "pydantic", "rich", "starlette"}
    loaded = run("-c", "import sys, postbus; print(*sys.modules)").split()

    assert "msgspec" in loaded
    assert heavy.isdisjoint(loaded)


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """A checkout works anywhere: no home directories, no package index of one workplace."""
    traces = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w|(?:extra-)?index-url|pythonhosted\.org")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate((ROOT / path).read_text("utf-8", "replace").splitlines(), start=1)
        if traces.search(line) and path != Path(__file__).relative_to(ROOT)
    ]

    assert not found


def project_files() -> Iterator[Path]:
    """The files that belong to the project, as far as they are present."""
    for folder in ("src", "tests", "bench", "docs", ".ci"):
        yield from (Path(folder) / path for path in files_in(ROOT / folder))
    for pattern in ("*.md", "*.toml", "LICENSE", ".gitignore"):
        yield from (path.relative_to(ROOT) for path in ROOT.glob(pattern))
