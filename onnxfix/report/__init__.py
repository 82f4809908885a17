"""What a run found and did, as data; `render` makes text of it."""
