"""The timeline page's server side: rows of spans, what a screen shows of them, and the routes that the canvas asks."""
