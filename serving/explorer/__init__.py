"""The explorer: a page that shows what a model says, and finds photographs."""
