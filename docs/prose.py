"""Checks that docstrings, comments, messages, pages and names are plain English. `make check` runs it.

The rules are a baseline: each refuses only what a machine can decide with few false alarms. Text in backticks, code
blocks and addresses are exempt.

    python docs/prose.py [PATH…]      prints and refuses every violation, or those in these folders or files
    python docs/prose.py --totals     prints the number of violations of each folder and of each rule
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SKIPPED = {"node_modules", "__pycache__", "versions", "dashboard", "build", "dist"}
"""Names of folders that hold no prose of ours, or migrations, which stay as they ran."""
GENERATED = "<!-- Made by docs/generate.py"

MAX_WORDS = 25
MAX_MARKS = 1
MIN_DOCSTRING_WORDS = 5
MIN_MESSAGE_WORDS = 3
MAX_TEST_NAME = 80

FIRST_WORD = re.compile(
    r"""(?:of|by|as|with|who|what|where|whether|for|to
    |that|those|these|they|theirs?|its?|nobody|nothing|something|somebody|someone|anybody|anyone|anything
    |whose|whoever|whatever|which|why|how|when|while|and|or|but|so|then|also|not|none
    |in|on|at|from|into|onto|over|under|until|without|within|before|after|behind|beside|below|above|between|through
    |tells|told|says|said|asks|asked|hears|heard|meets|met|made|done|given|taken|kept|ours|mine)(?![\w'`-])""",
    re.IGNORECASE | re.VERBOSE,
)
"""A docstring that starts with one of these words has no subject of its own."""

LOCAL_NAMES = frozenset({"each", "one", "found", "told", "known", "given"})

_MACHINE = (
    r"(?:service|worker|node|control|redis|sql|sqlite|postgresql|celery|server|supervisor|process|processes|rank|ranks|"
    r"job|jobs|attempt|training|client|database|store|trainer|loop|event|parent|guardian|socket|kernel|optimizer|"
    r"schedule|accelerate|torch|deepspeed|fsdp|transformers)"
)
BANNED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r"\banew\b", "'again', or 'new'"),
        (r"\bmend(?:s|ed|ing)?\b", "'fix'"),
        (r"\b(?:un)?heed(?:s|ed|ing)?\b", "'follow', 'read' or 'apply'"),
        (r"\b(?:bears?|bore|borne|bearing)\b", "'has', 'allow' or 'support'"),
        (r"\bow(?:e|es|ed|ing)\b(?! to\b)", "'must' or 'has to'"),
        (
            r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|less|fewer|different|worse|better|matter|way|need)",
            "'is not a'",
        ),
        (r"\bthe reference\b(?! (?:to|of|page|document|count))", "'Hugging Face'"),
        (r"\bso many\b(?! that\b)", "the name of the number, or 'n'"),
        (r"\b(?:is|are|was|were|be|been) away\b", "'unreachable'"),
        (
            rf"\b(?:the|a|an|every|each|its|another) {_MACHINE} "
            r"(?:tells?|told|says?|said|hears?|heard|asks?|asked|meets?|met)\b",
            "the field's word: sends, reports, logs, requests, receives",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One sentence or name that breaks one rule, and what to do about it."""

    path: str
    line: int
    rule: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


@dataclass(frozen=True, slots=True)
class Prose:
    """A text of one kind, without its markup, and the line at which it starts."""

    line: int
    text: str


Report = Callable[[int, str, str], None]


# ── Sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────

_CODE = re.compile(r"``.+?``|`[^`\n]+`", re.DOTALL)
_ADDRESS = re.compile(r"\b[a-z]+://\S*[\w/]|\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[A-Z0-9\"'(`*_\[])")
_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|no)\.", re.IGNORECASE)
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
_MARK = re.compile(r"(?<=[\w\])*\"'])[:;](?=\s|$)")
_WORD = re.compile(r"[A-Za-z0-9]")


def without_code(text: str) -> str:
    """Returns the text with every code span and every address replaced by the one word `Code`."""
    return _ADDRESS.sub(lambda match: match[1] or "Code", _CODE.sub("Code", text))


def units(text: str, line: int) -> Iterator[Prose]:
    """Yields the paragraphs and list items of a docstring or page, without code blocks, tables and headings."""
    start, collected, in_fence = line, list[str](), False
    for number, raw in enumerate(text.expandtabs().split("\n"), line):
        stripped = raw.strip()
        if is_fence := stripped.startswith(("```", "~~~")):
            in_fence = not in_fence
        is_item = bool(_ITEM.match(raw))
        is_code = not collected and raw.startswith("    ") and not is_item
        is_break = not stripped or stripped.startswith(("#", "|", "<", "──")) or is_fence or in_fence or is_code
        if (is_break or is_item) and collected:
            yield Prose(start, " ".join(collected))
            collected = []
        if is_break:
            continue
        if not collected:
            start = number
        collected.append(_ITEM.sub("", raw).strip() if is_item else stripped)
    if collected:
        yield Prose(start, " ".join(collected))


def sentences(text: str) -> list[str]:
    """Returns the sentences of a paragraph that has no code spans."""
    return [sentence for sentence in _END.split(_ABBREVIATIONS.sub("abbr", text)) if sentence.strip()]


def check_sentences(prose: Prose, report: Report) -> None:
    """Reports long sentences and sentences with more than one colon or semicolon."""
    for sentence in sentences(without_code(prose.text)):
        words = sum(bool(_WORD.search(word)) for word in sentence.split())
        if words > MAX_WORDS:
            report(prose.line, "long-sentence", f"{words} words, {MAX_WORDS} allowed: split {_start(sentence)}")
        marks = len(_MARK.findall(sentence))
        if marks > MAX_MARKS:
            report(prose.line, "colons", f"{marks} colons or semicolons, one allowed: split {_start(sentence)}")


def check_words(prose: Prose, report: Report) -> None:
    """Reports words that plain English replaces."""
    text = without_code(prose.text)
    for pattern, advice in BANNED:
        for match in pattern.finditer(text):
            report(prose.line, "word", f"write {advice} instead of {match[0]!r}")


def _start(sentence: str) -> str:
    words = sentence.split()
    return repr(" ".join(words[:6]) + (" …" if len(words) > 6 else ""))


# ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|fmt:|pragma|ruff:|mypy:|!|SPDX|-\*-)")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def check_python(source: str, report: Report, *, is_test: bool) -> None:
    """Checks one module. Messages of tests are free, because only we read them."""
    tree = ast.parse(source)
    texts, fields = set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, _Documented):
            _check_documented(node, report, texts)
        if isinstance(node, ast.ClassDef):
            fields.update(id(_target(statement)) for statement in node.body)
        elif id(node) not in fields and (variable := _variable(node)) and variable[0] in LOCAL_NAMES:
            report(variable[1], "local-name", f"name the variable {variable[0]!r} after what it holds, with a noun")
    for prose in comments(source):
        check_sentences(prose, report)
        check_words(prose, report)
    if not is_test:
        for prose in messages(tree, texts):
            check_words(prose, report)


def _check_documented(node: _Documented, report: Report, texts: set[int]) -> None:
    """Checks the node's docstring, and the strings below fields if it is a module or a class."""
    if not isinstance(node, ast.Module) and node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME:
        report(node.lineno, "test-name", f"{len(node.name)} characters, {MAX_TEST_NAME} allowed: {node.name}")
    for index, statement in enumerate(node.body):
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            continue
        text = statement.value.value
        is_below_field = index > 0 and isinstance(node.body[index - 1], ast.Assign | ast.AnnAssign)
        if isinstance(text, str) and (index == 0 or is_below_field):
            texts.add(id(statement.value))
            check_docstring(_cleaned(text, statement), report, is_field=index > 0)


def _cleaned(text: str, statement: ast.stmt) -> Prose:
    """Returns the docstring without the statement's indentation, and its line without leading empty lines."""
    leading = text[: len(text) - len(text.lstrip())]
    indentation = re.compile(rf"^ {{1,{statement.col_offset}}}" if statement.col_offset else r"^(?!)", re.MULTILINE)
    return Prose(statement.lineno + leading.count("\n"), indentation.sub("", text.strip()))


def check_docstring(prose: Prose, report: Report, *, is_field: bool = False) -> None:
    """Checks a docstring. That of a field may be short, and its first sentence may be longer than a line."""
    text = prose.text
    if not text:
        return
    if first_word := FIRST_WORD.match(text):
        report(prose.line, "first-word", f"start with a verb or a noun, not with {first_word[0]!r}")
    if not is_field and len(text.split()) < MIN_DOCSTRING_WORDS:
        report(prose.line, "short-docstring", "delete it, or say what a reader cannot see from the name")
    first_line = re.split(r"\n\s*\n", text)[0] if is_field else text.split("\n")[0]
    if re.match(r"[a-z]", text):
        report(prose.line, "first-line", "start with a capital letter")
    if not first_line.rstrip("`\"')").endswith((".", "?", "!", ":")):
        report(
            prose.line, "first-line", "make the first line a full sentence with a full stop, and the rest a paragraph"
        )
    for unit in units(text, prose.line):
        check_sentences(unit, report)
        check_words(unit, report)


def _target(statement: ast.stmt) -> ast.expr | None:
    """Returns what the statement of a class's body defines as a field."""
    match statement:
        case ast.AnnAssign(target=target) | ast.Assign(targets=[target]):
            return target
        case _:
            return None


def _variable(node: ast.AST) -> tuple[str, int] | None:
    """Returns the name that the node binds and its line, if it is a variable or a lambda's only parameter."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store(), lineno=line)
            | ast.Lambda(args=ast.arguments(args=[ast.arg(arg=name, lineno=line)]))
        ):
            return name, line
        case _:
            return None


def comments(source: str) -> Iterator[Prose]:
    """Yields each block of comment lines as one paragraph, without what is meant for tools."""
    block, block_line, last_line, column = list[str](), 0, 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        line, start = token.start
        if block and (line != last_line + 1 or start != column):
            yield from units("\n".join(block), block_line)
            block = []
        if not block:
            block_line, column = line, start
        block.append(token.string.lstrip("#").removeprefix(" "))
        last_line = line
    if block:
        yield from units("\n".join(block), block_line)


def messages(tree: ast.Module, docstrings: set[int]) -> Iterator[Prose]:
    """Yields string literals of several words, f-strings with one word for each expression."""
    part_ids = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            part_ids.update(id(part) for part in node.values)
            text = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | part_ids:
            text = node.value
        else:
            continue
        if len(text.split()) >= MIN_MESSAGE_WORDS:
            yield Prose(node.lineno, text)


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_page(text: str, report: Report) -> None:
    """Checks a Markdown page, except for pages that docs/generate.py writes from checked code."""
    if GENERATED in text:
        return
    for prose in units(text, 1):
        check_sentences(prose, report)
        check_words(prose, report)
    for number, line in enumerate(text.split("\n"), 1):
        for cell in line.strip().strip("|").split("|") if line.startswith("|") else ():
            check_sentences(Prose(number, cell), report)
            check_words(Prose(number, cell), report)


# ── The tree ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def files(root: Path) -> list[Path]:
    """Returns the modules and pages that are checked, without generated, built and hidden folders."""
    paths = list[Path]()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        paths += [Path(folder, name) for name in names if name.endswith((".py", ".md"))]
    return sorted(paths)


def check(path: Path, name: str) -> list[Violation]:
    """Returns the violations of one file, in the order of its lines."""
    violations = list[Violation]()

    def report(line: int, rule: str, advice: str) -> None:
        violations.append(Violation(name, line, rule, advice))

    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        check_python(text, report, is_test=name.startswith("tests/"))
    else:
        check_page(text, report)
    return sorted(violations, key=lambda violation: violation.line)


def is_below(name: str, entry: str) -> bool:
    """Returns True if the file is the entry, or in the entry's folder."""
    return name == entry or name.startswith(entry + "/")


def print_totals(violations: list[Violation]) -> None:
    """Prints the number of violations by folder and by rule."""
    for key in (lambda v: str(Path(v.path).parent), lambda v: v.rule):
        for name, number in sorted(Counter(map(key, violations)).items()):
            print(f"{number:6} {name}")
        print(f"{len(violations):6} in all\n")


def main(arguments: list[str] | None = None) -> int:
    """Runs the check; the exit status is 1 if anything is refused."""
    parser = argparse.ArgumentParser(description="Checks that prose is plain English.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="check only these folders and files")
    parser.add_argument("--totals", action="store_true", help="print the number of violations by folder and by rule")
    options = parser.parse_args(arguments)
    names = {str(path.relative_to(REPOSITORY)): path for path in files(REPOSITORY)}
    if options.paths:
        entries = [path.rstrip("/") for path in options.paths]
        names = {name: path for name, path in names.items() if any(is_below(name, entry) for entry in entries)}
    violations = [violation for name, path in names.items() for violation in check(path, name)]
    if options.totals:
        print_totals(violations)
        return 0
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
