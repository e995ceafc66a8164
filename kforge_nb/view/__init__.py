"""Views over run documents: widget, static HTML and SVG, matplotlib."""
