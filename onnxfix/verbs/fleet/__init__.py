"""Running over several models: in this process, in worker processes, or on a Ray cluster; one code path for all three.

``fleet.ray`` and ``fleet.remote`` are optional: no other module imports them unless ``--ray`` or a URL needs them.
"""
