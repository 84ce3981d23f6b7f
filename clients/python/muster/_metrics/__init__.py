"""What a worker counts, for programs that use OpenTelemetry.

`instruments.py` has the metrics and makes the program's instruments for them; `member.py` is what the rest of
the library calls. Nothing is imported: if the program has loaded `opentelemetry.metrics`, its meter is used,
and otherwise all of this does next to nothing.
"""
