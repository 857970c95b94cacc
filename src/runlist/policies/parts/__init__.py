"""Pieces that several policies share. Like policies, these see only the model."""
