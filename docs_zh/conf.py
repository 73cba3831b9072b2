"""中文页面的 Sphinx 设置：与英文页面相同，另设语言和搜索的分词。"""

import re
import runpy
from pathlib import Path

from sphinx.search import SearchLanguage

globals().update({name: value for name, value in
                  runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs_en" / "conf.py")).items()
                  if not name.startswith("__")})

language = "zh_CN"
html_context = {"other_root": "../../docs_en/_build", "other_language": "English", "other_code": "en"}
set_up_both = globals()["setup"]


class SearchChinese(SearchLanguage):
    """按相邻两字建立索引和拆分查询。Sphinx 自带的中文搜索没有 jieba 就没有索引，9.0 的脚本还会报错。"""

    lang = "zh"
    language_name = "Chinese"
    js_splitter_code = r"""
var splitQuery = function (query) {
  var words = [];
  (query.match(/[\u4e00-\u9fff]+|\w+/g) || []).forEach(function (run) {
    if (run.length === 1 || /\w/.test(run)) words.push(run);
    else for (var i = 1; i !== run.length; i++) words.push(run.slice(i - 1, i + 1));
  });
  return words;
};
"""

    def split(self, input):
        words = []
        for run in re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", input):
            pairs = len(run) > 1 and run[0] >= "\u4e00"
            words += [run[i:i + 2] for i in range(len(run) - 1)] if pairs else [run]
        return words

    def stem(self, word):
        return word.lower()


def setup(app):
    """由 Sphinx 调用。"""
    set_up_both(app)
    app.add_search_language(SearchChinese)
