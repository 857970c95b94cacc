"""One module a benchmark, found by its file: its docstring says what it measures, `measure` measures it."""
