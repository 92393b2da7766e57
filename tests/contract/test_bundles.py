"""A bundle is checked before any byte of it is unpacked."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable

import pytest

from footplate.contract import bundles
from footplate.contract.bundles import InvalidBundle, look_into, missing_in, modules
from footplate.contract.spec import JobSpec

Made = bytes | Callable[[], bytes]


def packed(*files: tuple[str | zipfile.ZipInfo, str | bytes]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files:
            archive.writestr(name, text)
    return into.getvalue()


def link(path: str, to: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def encrypted() -> bytes:
    whole = bytearray(packed(("a.py", "x = 1")))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.find(mark) + offset] |= 1
    return bytes(whole)


def damaged() -> bytes:
    whole = bytearray(packed(("a.py", "x = 1\n" * 50)))
    whole[45] ^= 0xFF
    return bytes(whole)


def with_wrong_size() -> bytes:
    """Returns a zip whose directory states 100 bytes for a file of ten million bytes."""
    whole = bytearray(packed(("a.py", b"\0" * 10_000_000)))
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = whole.rfind(mark) + offset
        whole[at : at + 4] = (100).to_bytes(4, "little")
    return bytes(whole)


def overlapping() -> bytes:
    """Returns a zip with two entries that share the same bytes."""
    item = packed(("a.py", bytes(range(256)) * 40))
    start = item.find(b"PK\x01\x02")
    size = item.find(b"PK\x05\x06") - start
    entry = item[start : start + size]
    end = bytearray(item[start + size :])
    end[8:12] = (3).to_bytes(2, "little") * 2
    end[12:16] = (3 * size).to_bytes(4, "little")
    others = [entry.replace(b"a.py", name) for name in (b"b.py", b"c.py")]
    return item[:start] + entry + b"".join(others) + bytes(end)


def look(zipped: bytes) -> list[str]:
    return [file.path for file in look_into(io.BytesIO(zipped), len(zipped))]


def test_the_files_of_a_bundle_are_listed_in_order() -> None:
    assert look(packed(("pack/net.py", "x = 1"), ("a.py", ""), ("notes.txt", "hello"))) == [
        "a.py", "notes.txt", "pack/net.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "pointer", "code"),
    [
        (b"", "", "empty_bundle"),
        (packed(), "", "empty_bundle"),
        (packed(("only/", "")), "", "empty_bundle"),
        (b"print('hello')", "", "not_a_zip"),
        (packed(("a.py", "x"))[:-10], "", "not_a_zip"),
        (packed(("z.bin", b"\0" * 20_000_000)), "", "unpacks_too_large"),
        (with_wrong_size, "/a.py", "damaged"),
        (overlapping, "", "not_a_zip"),
        (packed(*((f"f{number}.py", "") for number in range(bundles.MAX_ENTRIES + 1))), "", "too_many_files"),
        (packed((link("a.py", "/etc/passwd"), "/etc/passwd")), "/a.py", "link_in_bundle"),
        (packed(("../a.py", "")), "/..~1a.py", "path_outside_bundle"),
        (packed(("/etc/a.py", "")), "/~1etc~1a.py", "path_outside_bundle"),
        (packed(("a/./b.py", "")), "/a~1.~1b.py", "path_outside_bundle"),
        (packed(("C:/a.py", "")), "/C:~1a.py", "path_outside_bundle"),
        (packed(("a\\b.py", "")), "/a\\b.py", "path_outside_bundle"),
        (packed(("a\nb.py", "")), "/a\nb.py", "bad_path"),
        (packed(("d/" * 17 + "a.py", "")), "/" + "d~1" * 17 + "a.py", "bad_path"),
        (packed(("a.py", "1"), ("A.py", "2")), "/A.py", "duplicate_name"),
        (packed(("a", "1"), ("a/b.py", "2")), "/a~1b.py", "duplicate_name"),
        (encrypted, "/a.py", "encrypted"),
        (damaged, "/a.py", "damaged"),
        (packed(("json.py", "")), "/json.py", "name_taken"),
        (packed(("torch/__init__.py", "")), "/torch", "name_taken"),
        (packed(("footplate/evil.py", "")), "/footplate", "name_taken"),
        (packed(("sitecustomize.py", "")), "/sitecustomize.py", "name_taken"),
        (packed(("random.cpython-311-x86_64-linux-gnu.so", "")), "/random.cpython-311-x86_64-linux-gnu.so",
         "name_taken"),
    ],
    # A zip contains its creation time, so its bytes as a test id would differ between two processes.
    ids=lambda value: "zip" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_a_bad_bundle_is_refused_with_a_pointer_to_the_bad_entry(made: Made, pointer: str, code: str) -> None:
    with pytest.raises(InvalidBundle) as error:
        look(made() if callable(made) else made)

    assert (pointer, code) in [(problem.pointer, problem.code) for problem in error.value.problems]


def test_a_zip_inside_a_bundle_is_accepted_and_counts_towards_its_limits() -> None:
    inner = packed(*((f"f{number}.py", "") for number in range(900)))
    assert look(packed(("a.py", ""), ("data.zip", inner))) == ["a.py", "data.zip"]

    entry = zipfile.ZipInfo("data.zip")
    with pytest.raises(InvalidBundle, match="entries"):
        look(packed(*((zipfile.ZipInfo(f"{number}.zip"), inner) for number in range(3)), (entry, "")))


def test_a_small_file_with_a_high_compression_ratio_is_accepted() -> None:
    assert look(packed(("a.py", "x = 1\n" * 100_000))) == ["a.py"]


def test_all_problems_of_a_bundle_are_reported_at_once() -> None:
    with pytest.raises(InvalidBundle) as error:
        look(packed(("../a.py", ""), ("json.py", ""), ("b.py", "")))

    assert [problem.code for problem in error.value.problems] == ["path_outside_bundle", "name_taken"]


def test_modules_of_a_bundle_are_the_names_that_python_can_import() -> None:
    paths = ["a.py", "pack/__init__.py", "pack/net.py", "free/deep/x.py", "no-name/y.py", "c.cpython-311.so", "t.txt"]

    assert modules(paths) == ["a", "c", "free", "free.deep", "free.deep.x", "pack", "pack.net"]


def test_a_module_missing_from_the_bundle_is_reported_with_the_nearest_name() -> None:
    names = {"model": {"use": "my_cod:Net"}, "trainer": {"use": "net:T"}, "loop": {"script": "trian.py"}}
    spec = JobSpec.model_validate(names)

    result = missing_in(spec, ["my_code.py", "src/net.py", "train.py"])

    assert [(item.pointer, item.code) for item in result] == [
        ("/model/use", "not_in_bundle"), ("/trainer/use", "not_in_bundle"), ("/loop/script", "not_in_bundle"),
    ]  # fmt: skip
    assert result[0].hint == "did you mean 'my_code'?"
    assert "src.net" in str(result[1].hint)
    assert result[2].hint == "did you mean 'train.py'?"
