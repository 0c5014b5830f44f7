"""The name of the schema that holds the tables: what it may be, and how it is written in SQL."""

from postbus.errors import InvalidConfigError

# PostgreSQL cuts a longer name off, and two schemas with a long common beginning would be one.
_MAX_BYTES = 63
_FUNCTION_QUOTE = "$postbus$"


def quoted_schema(schema: str) -> str:
    """The name as a quoted identifier; InvalidConfigError for a name that PostgreSQL would change or refuse.

    >>> print(quoted_schema('my "own" schema'))
    "my ""own"" schema"
    """
    _check(schema)
    return '"' + schema.replace('"', '""') + '"'


def schema_in_query(schema: str) -> str:
    r"""As quoted_schema, without opening braces: in a query these are where a part of it comes in.

    >>> print(schema_in_query('my "own" schema'))
    "my ""own"" schema"
    >>> print(schema_in_query("{head} or \\tail"))
    U&"\007Bhead} or \\tail"
    """
    name = quoted_schema(schema)
    return "U&" + name.replace("\\", "\\\\").replace("{", "\\007B") if "{" in name else name


def schema_literal(schema: str) -> str:
    r"""The name as a string literal, whatever the server's standard_conforming_strings is.

    >>> print(schema_literal("it's"))
    'it''s'
    >>> print(schema_literal("back\\slash"))
    E'back\\slash'
    """
    _check(schema)
    return text_literal(schema)


def text_literal(text: str) -> str:
    """Any text as a string literal."""
    text = text.replace("'", "''")
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"


def _check(schema: str) -> None:
    expected = f"a name of 1 to {_MAX_BYTES} bytes in UTF-8"
    if not isinstance(schema, str) or not schema:
        raise InvalidConfigError("schema", schema, expected)
    try:
        length = len(schema.encode())
    except UnicodeEncodeError as error:
        raise InvalidConfigError("schema", schema, f"{expected}, and it has a lone surrogate") from error
    if length > _MAX_BYTES:
        raise InvalidConfigError("schema", schema, f"{expected}, and it has {length}")
    if schema.startswith("pg_"):
        raise InvalidConfigError("schema", schema, 'another name: PostgreSQL keeps "pg_" for its own schemas')
    if schema == "$user":
        raise InvalidConfigError("schema", schema, "another name: search_path takes it for that of the role")
    if "\0" in schema or _FUNCTION_QUOTE in schema:
        raise InvalidConfigError("schema", schema, f"{expected}, without NUL and without {_FUNCTION_QUOTE}")
