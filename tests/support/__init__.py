"""What several test modules need: the command line in this process, models from text, seeds by lane."""
