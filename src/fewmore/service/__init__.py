"""Serve a classifier over HTTP, with a page for teaching it. Needs the extra `service`.

May import `classifier` and everything below it; only `cli` imports this package.
Start at `app.py` (how the parts are assembled), then `routes/classes.py` (how a class is taught).
"""
