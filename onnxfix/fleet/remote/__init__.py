"""Models in object stores. Imported only where a path is a URL of something other than a local file."""
