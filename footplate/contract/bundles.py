"""Checks bundles, which are zips of users' code, and finds in them the modules and scripts that a spec names.

Nothing is unpacked here. The service checks a bundle before it stores it, and a node before it unpacks it.
"""

from __future__ import annotations

import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from footplate.contract.body import MAX_PROBLEMS, pointer_to
from footplate.contract.errors import InvalidSpec, Problem, did_you_mean, listing
from footplate.contract.spec_parts import Script

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

MIB = 1024 * 1024
MAX_BYTES = 32 * MIB
"""The largest size of the zip itself."""
MAX_UNPACKED_BYTES = 128 * MIB
MAX_RATIO = 100
"""The largest ratio of unpacked to packed size, for bundles above RATIO_FROM_BYTES."""
RATIO_FROM_BYTES = 4 * MIB
MAX_ENTRIES = 2000
MAX_PATH_CHARS = 240
MAX_DEPTH = 16
"""The most levels of nested folders."""

TAKEN = {
    "a module of Footplate": {"footplate"},
    "a module that Python imports at its start": {"sitecustomize", "usercustomize"},
    "a module of Python's standard library": sys.stdlib_module_names - {"__main__"},
    "a module that training imports": {"accelerate", "numpy", "pydantic", "safetensors", "torch", "transformers"},
}
"""The names that a bundle must not use for modules of its own, by the kind of module that would be hidden."""

_ENCRYPTED = 0x1
_ENTRY = b"PK\x01\x02"
"""The signature of each entry in a zip's central directory."""
_PACKINGS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_MODULE = re.compile(r"[A-Za-z_]\w*")


class InvalidBundle(InvalidSpec):
    """Raised for a zip that cannot be used, with every problem and the entry that the problem is about."""

    code = "invalid_bundle"
    title = "The bundle cannot be used"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a bundle: its path, its unpacked size, and whether its owner may execute it."""

    path: str
    bytes: int
    is_executable: bool


def look_into(file: IO[bytes], packed_bytes: int) -> list[Entry]:
    """Returns the files of a bundle, sorted by path. Raises InvalidBundle with every problem.

    The zip's directory is checked before any content. Then every file is read once, so that damage is found.
    """
    if packed_bytes == 0:
        hint = "send a zip of your code: zip -r code.zip my_code.py"
        raise InvalidBundle([Problem("", "empty_bundle", "the body is empty", hint)])
    if packed_bytes > MAX_BYTES:
        raise InvalidBundle([too_large()])
    # Entries are counted before zipfile makes an object of each. Entries of nested zips count as well.
    if (count := _entry_count(file)) > MAX_ENTRIES:
        detail = f"the bundle has {count} entries, and at most {MAX_ENTRIES} are allowed"
        raise InvalidBundle([Problem("", "too_many_files", detail)])
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if problems := [*_wrong_in_list(entries, packed_bytes)][:MAX_PROBLEMS]:
                raise InvalidBundle(problems)
            if damage_problems := [*_damaged(archive, entries)]:
                raise InvalidBundle(damage_problems)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OverflowError) as error:
        detail = f"the body is not a zip: {str(error)[:200]}"
        raise InvalidBundle([Problem("", "not_a_zip", detail, "zip -r code.zip my_code.py makes one")]) from error
    return sorted(
        (
            Entry(entry.filename, entry.file_size, bool(entry.external_attr >> 16 & stat.S_IXUSR))
            for entry in entries
            if not entry.is_dir()
        ),
        key=lambda entry: entry.path,
    )


def _entry_count(file: IO[bytes]) -> int:
    file.seek(0)
    count, unsearched = 0, b""
    while chunk := file.read(MIB):
        unsearched += chunk
        count += unsearched.count(_ENTRY)
        unsearched = unsearched[1 - len(_ENTRY) :]
    return count


def too_large() -> Problem:
    return Problem(
        "", "bundle_too_large", f"the bundle is larger than {MAX_BYTES // MIB} MiB",
        "put only code into it: name data and weights as data://… and models://…",
    )  # fmt: skip


def _wrong_in_list(entries: list[zipfile.ZipInfo], packed_bytes: int) -> Iterator[Problem]:
    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        yield Problem("", "empty_bundle", "the bundle has no file", "zip -r code.zip my_code.py adds one")
    yield from _bomb(files, packed_bytes)
    filenames: dict[str, str] = {}
    for entry in entries:
        pointer = pointer_to(entry.filename.rstrip("/"))[: MAX_PATH_CHARS + 1]
        for code, detail, hint in _wrong_in_entry(entry):
            yield Problem(pointer, code, detail, hint)
        folded_name = entry.filename.rstrip("/").casefold()
        if folded_name in filenames:
            detail = f"the zip has {entry.filename[:80]!r} twice, or a name that differs from it only in case"
            yield Problem(pointer, "duplicate_name", detail)
        filenames[folded_name] = entry.filename
    # No file may have the name of a folder in which another entry lies.
    file_names = {entry.filename for entry in files}
    for path in sorted(file_names):
        if parent := next((folder for folder in map(str, PurePosixPath(path).parents) if folder in file_names), None):
            yield Problem(pointer_to(path), "duplicate_name", f"{parent[:80]!r} is both a file and a folder in the zip")
    for name in sorted({entry.filename.split("/", 1)[0] for entry in entries}):
        yield from _shadows(name)


def _bomb(files: list[zipfile.ZipInfo], packed_bytes: int) -> Iterator[Problem]:
    unpacked_bytes = sum(entry.file_size for entry in files)
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        size = f"{unpacked_bytes / MIB:,.0f} MiB"
        text = f"the bundle unpacks to {size}, and at most {MAX_UNPACKED_BYTES // MIB} are allowed"
        yield Problem("", "unpacks_too_large", text, "name data and weights as data://… and models://…")
    elif unpacked_bytes > RATIO_FROM_BYTES and unpacked_bytes > MAX_RATIO * packed_bytes:
        ratio = unpacked_bytes / max(packed_bytes, 1)
        text = f"the bundle unpacks to {ratio:,.0f} times its size, and at most {MAX_RATIO} are allowed"
        yield Problem("", "unpacks_too_large", text)
    if sum(entry.compress_size for entry in files) > packed_bytes:
        yield Problem("", "not_a_zip", "the zip's files overlap: together they are larger than the zip")


def _wrong_in_entry(entry: zipfile.ZipInfo) -> Iterator[tuple[str, str, str | None]]:
    path = entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        kind_text = "a link" if kind == stat.S_IFLNK else "not a plain file"
        yield "link_in_bundle", f"{path[:80]!r} is {kind_text}", "zip follows links unless it has the option -y"
    if entry.flag_bits & _ENCRYPTED:
        yield "encrypted", f"{path[:80]!r} is encrypted", "zip it without a password"
    elif entry.compress_type not in _PACKINGS:
        yield "unknown_packing", f"{path[:80]!r} has an unsupported compression", "use stored or deflated: plain zip"
    has_drive = re.match("[A-Za-z]:", path) is not None
    if "\\" in path or has_drive or not {"", ".", ".."}.isdisjoint(path.rstrip("/").split("/")):
        yield "path_outside_bundle", f"{path[:80]!r} leads out of the bundle", "zip -r from inside of the folder"
    elif any(ord(char) < 32 or ord(char) == 127 for char in entry.orig_filename) or not path.isprintable():
        yield "bad_path", f"{path[:80]!r} has control characters", None
    elif len(path) > MAX_PATH_CHARS or path.count("/") > MAX_DEPTH:
        yield "bad_path", f"a path may have at most {MAX_PATH_CHARS} characters and {MAX_DEPTH} folders", None


def _shadows(top: str) -> Iterator[Problem]:
    """Yields a problem if a name would hide a module that training or Python needs."""
    name = top.split(".", 1)[0]
    if "." in top and not top.endswith((".py", ".pyc", ".so", ".pyd")):
        return
    if hidden_kind := next((kind for kind, names in TAKEN.items() if name in names), None):
        hint = f"rename it, for example my_{name.lstrip('_')}"
        yield Problem(pointer_to(top), "name_taken", f"{top!r} would hide {hidden_kind}", hint)


def _damaged(archive: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo]) -> Iterator[Problem]:
    for entry in entries:
        try:
            with archive.open(entry) as file:
                while file.read(MIB):
                    pass
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
            detail = f"{entry.filename[:80]!r} cannot be read: {str(error)[:120]}"
            yield Problem(pointer_to(entry.filename), "damaged", detail, "zip it again")
            return


# The modules and scripts that a spec names


def modules(paths: Iterable[str]) -> list[str]:
    """Returns the names that can be imported: `net.py` is `net`, and `pack/net.py` is `pack` and `pack.net`."""
    names: set[str] = set()
    for path in paths:
        *folders, file = path.split("/")
        stem, dot, suffix = file.partition(".")
        if not dot or not (suffix == "py" or suffix.endswith(("so", "pyd"))) or not _MODULE.fullmatch(stem):
            continue
        if not all(_MODULE.fullmatch(folder) for folder in folders):
            continue
        names.update(".".join(folders[:length]) for length in range(1, len(folders) + 1))
        if stem != "__init__":
            names.add(".".join([*folders, stem]))
    return sorted(names)


def missing_in(spec: JobSpec, paths: Iterable[str]) -> list[Problem]:
    """Returns a problem for each module or script that the spec names and its bundle lacks."""
    bundle_paths = list(paths)
    known_modules = modules(bundle_paths)
    problems = []
    for used in spec.components:
        module, colon, _ = used.component.use.partition(":")
        if colon and module not in known_modules:
            problems.append(unknown_module(f"{used.pointer}/use", module, known_modules))
    if isinstance(spec.loop, Script) and (script := spec.loop.script) not in bundle_paths:
        scripts = [path for path in bundle_paths if path.endswith(".py")]
        text = f"the bundle has no file {script[:80]!r}; there is: {_some(scripts)}"
        problems.append(Problem("/loop/script", "not_in_bundle", text, did_you_mean(script[:80], scripts)))
    return problems


def unknown_module(pointer: str, module: str, module_names: list[str]) -> Problem:
    text = f"the bundle has no module {module[:80]!r}; there is: {_some(module_names)}"
    hint = did_you_mean(module[:80], module_names)
    if hint is None and (nested_names := [name for name in module_names if name.endswith("." + module)]):
        hint = f"the module is in a folder: name {nested_names[0]}, or zip from inside of that folder"
    return Problem(pointer, "not_in_bundle", text, hint)


def _some(names: list[str]) -> str:
    return listing(names, 12) or "nothing that Python could import"
