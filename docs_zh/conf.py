"""中文页面的 Sphinx 设置：与英文页面相同，另设语言。"""

import runpy
from pathlib import Path

globals().update({name: value for name, value in
                  runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs_en" / "conf.py")).items()
                  if not name.startswith("__")})

language = "zh_CN"
html_context = {"other_root": "../../docs_en/_build", "other_language": "English", "other_code": "en"}
