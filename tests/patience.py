"""How long tests wait for what has to come: a machine that is slow, or busy with other things, is not wrong.

A test that promises something sooner says so, and measures it.
"""

PATIENCE = 30.0
