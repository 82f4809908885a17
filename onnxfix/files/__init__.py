"""Model files: read and written in the protobuf wire format. Weights stay in their file; unknown fields are kept."""
