"""The pictures of the documents can be taken, of any run."""

import pytest
from PIL import Image

from tests.view.browser.screenshots import PAGES, take

pytestmark = pytest.mark.engines


def test_pictures_of_four_pages_are_taken(real_run, real_tab, tmp_path):
    pictures = take(real_tab, real_run, tmp_path)
    assert [path.name for path in pictures] == [f"viewer-{page}.png" for page in PAGES]
    for path in pictures:
        assert path.stat().st_size < 200_000  # so that they may be in the repository
        with Image.open(path) as picture:
            assert picture.size == (1280, 800)
            background = max(count for count, _ in picture.convert("RGB").getcolors(2**24))
            assert background < 0.97 * 1280 * 800  # it is not blank
