"""The targets: each has `play(data)`, and says in its first paragraph what must hold for every input."""
