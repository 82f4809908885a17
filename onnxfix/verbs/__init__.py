"""From a model to a proven one: read, fix, verify, withdraw, report, write. ``applying`` has the stages in order."""
