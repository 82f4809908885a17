"""Results as text and HTML for people, and as documents for programs and CI systems."""
