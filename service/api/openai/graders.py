"""Makes a bundle of a Python grader, so that a job can call it as its reward function."""

from __future__ import annotations

import io
import re
import zipfile

REWARD = "openai_reward:reward"
_REWARD_SOURCE = """\
from footplate.components.openai_rows import reward_of
from grader import grade

reward = reward_of(grade)
"""
_GRADE = re.compile(r"^(async\s+)?def\s+grade\s*\(", re.MULTILINE)


def has_grade(source: str) -> bool:
    """Returns True if the source has a function of the name that OpenAI calls. Its code is not run here."""
    match = _GRADE.search(source)
    return match is not None and match[1] is None


def bundle_of(source: str) -> bytes:
    """Returns a zip with the grader. Equal sources are equal bytes, and so one bundle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("grader.py", source), ("openai_reward.py", _REWARD_SOURCE)):
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()
