"""Write the list of files in docs/structure.md from the modules' docstrings, or check it.

Run: ``python scripts/structure.py`` (write) or ``python scripts/structure.py --check``.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cli", "tuner", "workers", "engine", "store", "kernels")
DOCUMENT = ROOT / "docs" / "structure.md"
BEGIN, END = "<!-- files: begin -->\n", "<!-- files: end -->\n"


def first_sentence(path: Path) -> str:
    """The docstring's first paragraph, up to its first full stop, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    head, stop, _ = paragraph.partition(". ")
    return (head + "." if stop else paragraph).replace("``", "`")


def table() -> str:
    """One line a module, package by package; empty ``__init__`` files are left out."""
    lines: list[str] = []
    for package in PACKAGES:
        lines.append(f"\n### {package}/\n")
        for path in sorted((ROOT / package).rglob("*.py")):
            sentence = first_sentence(path)
            if sentence:
                lines.append(f"- `{path.relative_to(ROOT)}`: {sentence}")
            elif path.name != "__init__.py":
                raise SystemExit(f"{path.relative_to(ROOT)} has no docstring; say what it is for")
    return "\n".join(lines) + "\n"


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + table() + END + after
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        raise SystemExit("docs/structure.md lists other files; run python scripts/structure.py")


if __name__ == "__main__":
    main()
