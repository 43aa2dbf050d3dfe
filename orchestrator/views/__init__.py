"""Views of the log: what watchers and programs see of a run, folded from its events."""
