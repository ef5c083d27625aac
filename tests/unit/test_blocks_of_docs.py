"""What is taken out of Markdown pages: blocks, marks, the joined tutorial, links, helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import blocks, helps, links
from support.blocks import MarkError

ROOT = Path(__file__).resolve().parent.parent.parent

PAGE = """# A page

```python
from mpi4py import MPI
```

Text.

<!-- ranks: 2 -->
```python
from mpi4py import MPI  # on two
```

<!-- not run: an excerpt -->

~~~ python
req.Start()
~~~

```bash
python -c 'no block of ours'
```

- in a list

  ````python
  text = '''
  ```
  '''
  ````

```{code-block} python
print("no MPI")
```
"""


def test_python_blocks_are_found_with_their_lines():
    found = list(blocks.blocks("page.md", PAGE))
    assert [(block.line, block.language) for block in found] == [
        (4, "python"),
        (11, "python"),
        (17, "python"),
        (27, "python"),
        (33, "python"),
    ]
    assert found[3].text == "text = '''\n```\n'''\n"
    assert [block.runs for block in found] == [True, True, False, True, True]


def test_programs_have_their_ranks_and_the_lines_of_the_page():
    found = blocks.programs("page.md", PAGE)
    assert [(one.name, one.ranks) for one in found] == [
        ("page.md:4", 4),
        ("page.md:11", 2),
        ("page.md:27", 1),
        ("page.md:33", 1),
    ]
    lines = PAGE.splitlines()
    for one in found:
        first = int(one.name.partition(":")[2])
        assert one.text.splitlines()[first - 1].strip() == lines[first - 1].strip()
        assert not any(line.strip() for line in one.text.splitlines()[: first - 1])


def test_a_comment_counts_only_directly_before_its_block():
    text = "<!-- not run: this one -->\nText.\n\n```python\nx = 1\n```\n"
    assert [one.name for one in blocks.programs("p.md", text)] == ["p.md:5"]
    text = "<!-- another comment -->\n<!-- ranks: 3 -->\n\n```python\nx = 1\n```\n"
    assert [one.ranks for one in blocks.programs("p.md", text)] == [3]
    text = "<!-- not run: the first -->\n```python\nx = 1\n```\n```python\ny = 1\n```\n"
    assert [one.name for one in blocks.programs("p.md", text)] == ["p.md:6"]


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("not run", "p.md:3: say it: <!-- not run"),
        ("not run:", "p.md:3: say it: <!-- not run"),
        ("not run: ", "p.md:3: say it: <!-- not run"),
        ("ranks", "p.md:3: say it: <!-- ranks"),
        ("ranks: many", "'many' is not a positive integer"),
        ("ranks: 0", "'0' is not a positive integer"),
    ],
)
def test_incomplete_marks_are_refused(mark, words):
    text = f"<!-- {mark} -->\n```python\nx = 1\n```\n"
    with pytest.raises(MarkError, match=words):
        blocks.programs("p.md", text)


def test_a_session_is_no_program():
    text = "```pycon\n>>> 1\n1\n```\n"
    with pytest.raises(MarkError, match=r"p\.md:2: an interactive session does not run"):
        blocks.programs("p.md", text)
    assert blocks.programs("p.md", "<!-- not run: a session -->\n" + text) == []


JOINED = """<!-- one program -->
<!-- ranks: 3 -->
```python
def f():
    return 1
```

<!-- not run: what is left out -->
```python
...
```

```python
print(f())
1 / 0
```
"""


def test_the_blocks_of_a_joined_page_are_one_program():
    (one,) = blocks.programs("docs/tutorial.md", JOINED)
    assert (one.name, one.ranks) == ("docs/tutorial.md", 3)
    lines = one.text.splitlines()
    assert lines[3] == "def f():"
    assert lines[13:] == ["print(f())", "1 / 0"]
    assert "..." not in one.text
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile(one.text, "tutorial.py", "exec"), {})
    assert raised.traceback[-1].lineno + 1 == 15  # as on the page


def test_a_page_is_joined_from_its_first_block_on():
    late = "```python\nx = 1\n```\n<!-- one program -->\n```python\ny = 1\n```\n"
    with pytest.raises(MarkError, match="first block only"):
        blocks.programs("p.md", late)
    ranks = (
        "<!-- one program -->\n```python\nx = 1\n```\n<!-- ranks: 2 -->\n```python\ny = 1\n```\n"
    )
    with pytest.raises(MarkError, match="before its first block"):
        blocks.programs("p.md", ranks)


def test_every_block_of_this_repository_is_judged():
    found = blocks.all_programs(ROOT)
    names = [one.name for one in found]
    assert names.count("docs/tutorial.md") == 1
    assert any(name.startswith("README.md:") for name in names)
    for one in found:
        compile(one.text, one.name, "exec")


# ---- links ---------------------------------------------------------------------------------------


def write(folder: Path, **pages: str) -> None:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")


def test_links_that_hold(tmp_path):
    (tmp_path / "style.css").write_text("body { background: url('a.png') }")
    write(
        tmp_path,
        one='<a href="two.html#there">x</a> <a href="#here">x</a> <p id="here"></p>'
        '<link rel="stylesheet" href="style.css?v=1"><a href="https://example.org/a#b">x</a>',
        two='<h2 id="there"></h2><a href="one.html">x</a>',
    )
    assert links.check_site(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<a href="none.html">x</a>', "one.html:1: none.html: there is no such file"),
        ('<a href="#none">x</a>', "one.html:1: #none: there is no such anchor"),
        ('<a href="two.html#none">x</a>', "there is no such anchor"),
        ('<img src="none.png">', "there is no such file"),
        ('<script src="https://example.org/x.js"></script>', "it is loaded from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "it is loaded from elsewhere"),
        ('<a href="../outside.txt">x</a>', "it leaves the site"),
    ],
)
def test_links_that_do_not_hold(tmp_path, body, words):
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "outside.txt").write_text("")
    write(site, one=body, two="")
    (complaint,) = links.check_site(site)
    assert words in complaint


def test_styles_that_load_from_elsewhere(tmp_path):
    write(tmp_path, one="")
    (tmp_path / "style.css").write_text("@font-face { src: url(https://example.org/f.woff) }")
    assert links.check_site(tmp_path) == ["style.css: it loads something from elsewhere"]


def test_a_site_without_pages(tmp_path):
    assert "there are no pages" in links.check_site(tmp_path)[0]


def test_links_of_markdown(tmp_path):
    page = tmp_path / "page.md"
    text = "[a](b.md) [c](https://example.org) [d](#e)\n```\n[f](g)\n```\n`a[0](x)`\n"
    page.write_text(text)
    assert links.check_markdown(tmp_path, page) == ["page.md: b.md: there is no such file"]
    (tmp_path / "b.md").write_text("")
    assert links.check_markdown(tmp_path, page) == []


def test_links_of_this_repository():
    pages = [*blocks.pages(ROOT), ROOT / "bench" / "README.md"]
    assert [line for page in pages for line in links.check_markdown(ROOT, page)] == []


# ---- helps ---------------------------------------------------------------------------------------


def test_the_page_of_commands_names_every_command():
    shown = helps.named(helps.PAGE.read_text(encoding="utf-8"))
    assert len(shown) == len(set(shown))
    assert {name for name in shown if name.startswith("pypartial")} == set(helps.commands())


@pytest.mark.parametrize("command", helps.named(helps.PAGE.read_text(encoding="utf-8")))
def test_every_help_is_printed(command):
    assert len(helps.help_of(command).splitlines()) > 3


def test_a_command_that_does_not_exist_has_no_help():
    with pytest.raises(RuntimeError, match="exit code 2"):
        helps.help_of("pypartial bench none")
