"""What tests ask of the version of MindSpore; they ask nowhere else."""

import mindspore as ms
import pytest

V200 = ms.__version__.startswith("2.0.")

needs_dump = pytest.mark.skipif(not hasattr(ms._c_expression, "dump_func_graph"),
                                reason="MindSpore 2.0.0 cannot show a compiled graph as text")
