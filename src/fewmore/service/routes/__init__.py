"""Hold the routes, one file for each group of paths.

May import everything else in `service` but `app.py`, which includes the routers.
Start at `dependencies.py` (what every route receives), then `classes.py`.
"""
