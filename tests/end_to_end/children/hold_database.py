"""Another program that holds the database.

Argument: the database. Lines in: "release". Lines out: "held", "released".
"""

import sqlite3
import sys
from contextlib import closing

if __name__ == "__main__":
    with closing(sqlite3.connect(sys.argv[1], timeout=10.0, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        print("held", flush=True)
        sys.stdin.readline()
        connection.execute("COMMIT")
    print("released", flush=True)
