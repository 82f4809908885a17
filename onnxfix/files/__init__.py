"""Model files: read and written in the protobuf wire format, weights left where they are, nothing lost on the way."""
