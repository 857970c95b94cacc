"""The managed processes: they are found below their roots, adopted, checked and forgotten."""
