"""Reads an incident's files as they stream by, one module a kind of file, into the values of `core.incident`.

`read.py` opens, recognises and hands out; `archives.py` goes through zips and tars without unpacking them. A file
that is torn, cut off, too large or of no known kind costs its own evidence only, and is told as a Problem.
"""
