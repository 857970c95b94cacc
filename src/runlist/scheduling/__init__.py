"""The one scheduling loop: what happens is told to a policy, and what it decides is made safe and applied."""
