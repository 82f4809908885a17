"""Results as pages of sections: described once, and rendered as HTML, as Markdown and in notebooks."""
