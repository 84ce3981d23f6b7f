"""What a release consists of: checks, distributions, images, lists of their parts, and where they come from.

`./x release --dry-run` is `__main__.py`; it makes everything in build/release/VERSION and publishes nothing.
"""
