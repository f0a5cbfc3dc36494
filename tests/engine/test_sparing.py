"""What is spared, and that nobody misses it; in processes of their own, as it cannot be undone."""

import subprocess
import sys
from pathlib import Path

import pytest

_SPARED = "from airflow_provider_pgetl.engine.sparing import spare_pandas; spare_pandas(); "
_RETURNED = "from airflow_provider_pgetl.engine.sparing import return_memory; return_memory(); "
_CONVERTED = "import sys, pyarrow as pa; a = pa.array([1, 2]); a.to_numpy(); pa.table({'a': a}).to_pylist(); "


def said(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize(("before", "found"), [("", "True"), (_SPARED, "False")])
def test_conversions_need_no_pandas(before: str, found: str) -> None:
    assert said(f"{before}{_CONVERTED}print('pandas' in sys.modules)") == found


def test_who_asks_for_pandas_gets_it() -> None:
    asked = "import pandas; print(a.to_pandas().sum(), isinstance(a.to_pandas(), pandas.Series))"
    assert said(f"{_SPARED}{_CONVERTED}{asked}") == "3 True"


def test_arrow_takes_its_memory_from_the_system_and_children_do_not_hear_of_it() -> None:
    told = "any('ARROW' in name for name in os.environ)"
    code = f"import os, pyarrow as pa; print(pa.default_memory_pool().backend_name, {told})"
    assert said(f"{_RETURNED}{code}") == "system False"


@pytest.mark.parametrize(("before", "found"), [("", "False"), (_RETURNED, "True")])
def test_what_is_freed_goes_back(before: str, found: str) -> None:
    """Many arrays of six megabytes, every second of which is let go of, after one that made the heap grow."""
    code = """
import os, numpy as np
del [np.ones(30 << 20, np.uint8)][:]
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
kept = [np.ones(6 << 20, np.uint8) for _ in range(40)]
full = resident(); kept = kept[::2]; print(full - resident() > 80)
"""
    assert said(f"{before}\n{code}") == found


def test_delta_keeps_one_arena_unless_the_environment_says_otherwise() -> None:
    code = "import os; print(os.environ['_RJEM_MALLOC_CONF'])"
    assert said(f"{_RETURNED}{code}").startswith("narenas:1,")
    assert said(f"import os; os.environ['_RJEM_MALLOC_CONF'] = 'tcache:false'; {_RETURNED}{code}") == "tcache:false"


def test_a_run_settles_it_before_it_reads_a_file_that_asks_for_the_library_of_a_lake(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        'id = "p"\ntables = ["public.*"]\n[source]\nuri = "postgresql://nobody@127.0.0.1:1/none"\n'
        f'[destination]\ntype = "delta"\nuri = "{tmp_path}/lake"\n'
    )
    run = f"""
import sys; from airflow_provider_pgetl.cli.app import app
print('pyarrow' in sys.modules, 'deltalake' in sys.modules)
code = app(["run", {str(file)!r}], standalone_mode=False)
import pyarrow as pa; print(pa.default_memory_pool().backend_name)"""
    assert said(run).splitlines()[0] == "False False"
    assert said(run).splitlines()[-1] == "system"


def test_the_process_that_streams_imports_neither_library_before_it_has_settled_it() -> None:
    code = "import sys, airflow_provider_pgetl.engine.streaming_process"
    assert said(f"{code}; print('pyarrow' in sys.modules, 'deltalake' in sys.modules)") == "False False"
