"""How a program serves requests (`serving.py`), several as threads of one process (`hosted.py`), and one that runs
everywhere (`spin.py`).
"""
