"""The processes that are managed: found below their roots, taken over, looked after, forgotten."""
