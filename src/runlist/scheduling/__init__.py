"""The one scheduling loop: a policy hears of events, and its decisions are made safe and applied."""
