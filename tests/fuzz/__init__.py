"""Bytes that others choose, fed to what reads them (`./x fuzz`).

A target (`targets/`, one file each) is a function of bytes that raises where its invariant does not hold; the
first paragraph of its module says which. It draws what it needs from the bytes (`draw.py`), so a change of
the bytes changes calls, records or settings in a way that still makes sense. `guided.py` has Atheris choose
bytes by the code that they reach; where there is no Atheris, and in the tests, `plain.py` changes inputs of
the corpus at random. `corpus/` has a file of inputs for each target, which reach what was found so far.

Nothing here is a test of one behaviour: a finding becomes a test in the folder of the package that it is in.
Read `target.py` first, then one of the targets.
"""
