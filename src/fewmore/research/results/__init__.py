"""Hold results and store them as small JSON files: schema, gathering, pooling, reading, writing.

May import metrics.py and machine.py beside it, io and errors; nothing here draws or prints.
Start at schema.py. The JSON has every key, always in one order, so that diffs are readable.
"""

from fewmore.research.results.gathering import gather
from fewmore.research.results.naming import (
    file_name,
    names,
    settings_of,
    shared_settings,
    short_features,
)
from fewmore.research.results.pooling import (
    RunKey,
    code_version,
    describe_pool,
    merge,
    pools,
    run_keys,
    same_benchmark,
)
from fewmore.research.results.reading import from_json, read
from fewmore.research.results.schema import (
    SHARED_STAGE1,
    WALL_CLOCK,
    Run,
    RunResult,
    RunsBySession,
    SessionSize,
)
from fewmore.research.results.writing import record, to_json, write

__all__ = [
    "SHARED_STAGE1",
    "WALL_CLOCK",
    "Run",
    "RunKey",
    "RunResult",
    "RunsBySession",
    "SessionSize",
    "code_version",
    "describe_pool",
    "file_name",
    "from_json",
    "gather",
    "merge",
    "names",
    "pools",
    "read",
    "record",
    "run_keys",
    "same_benchmark",
    "settings_of",
    "shared_settings",
    "short_features",
    "to_json",
    "write",
]
