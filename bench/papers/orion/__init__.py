"""Orion (EuroSys'24), tried again: operations of several programs side by side: `python -m bench.papers.orion`."""
