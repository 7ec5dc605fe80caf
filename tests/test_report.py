"""The page, the Markdown, the comparison of results, the gate and README's figures."""

import copy
import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest

pytest.importorskip("pytest_benchmark")
pytest.importorskip("jinja2")
pytest.importorskip("benchmarks", reason="these are the tests of a checkout, and this is a copy without benchmarks")

import browser
import made_up_result

from benchmarks import cases, compare, gate, markdown, page, readme, summary

SECTIONS = {
    "wrong": (), "summary": (), "programs": ("programs",), "heat": (), "curves": ("sweep",), "roofline": (),
    "correctness": (), "memory": (), "beside": ("empty_call", "lengths", "projection", "bfloat16"), "machine": (),
    "cases": (),
}  # fmt: skip


class Parsed(HTMLParser):
    """The ids, the sections, and the addresses that a page refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.sections, self.addresses, self.opened = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            (self.sections if tag == "section" else self.ids).append(attributes["id"])
        self.addresses += [attributes[name] for name in ("src", "href", "xlink:href") if name in attributes]
        self.opened.append(tag)


@pytest.fixture(scope="module")
def result():
    return made_up_result.result()


@pytest.fixture(scope="module")
def html(result):
    return page.render(result)


@pytest.fixture(scope="module")
def file(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html)
    return path


def test_the_page_has_every_section(html):
    assert Parsed(html).sections == list(SECTIONS)


@pytest.mark.parametrize("section", [name for name, keys in SECTIONS.items() if keys])
def test_a_section_is_left_out_where_the_result_has_nothing_for_it(result, section):
    without = {key: value for key, value in result.items() if key not in SECTIONS[section]}
    assert Parsed(page.render(without)).sections == [name for name in SECTIONS if name != section]


def test_the_page_is_one_file(html):
    parsed = Parsed(html)
    assert [a for a in parsed.addresses if not a.startswith(("#", "data:"))] == []
    assert "url(http" not in html and "@import" not in html and "script" not in parsed.opened
    assert len(html) < 1_500_000


def test_no_two_plots_share_an_id(html):
    ids = Parsed(html).ids
    assert len(ids) == len(set(ids))


def test_plots_take_colour_and_type_from_the_page(html):
    plots = html[html.index("<svg") :]
    assert "var(--ours)" in plots and "currentColor" in plots and "var(--type)" in plots
    assert not any(colour in plots for colour in page.plots.VARIABLES)


def test_names_are_escaped(html):
    assert "&lt;history&gt;" in html and "<history>" not in html


def test_the_page_says_what_is_wrong_noisy_or_missing(html):
    assert "result 0: error 1.0e+00" in html
    assert "0.99~" in html
    assert "The machine was busy" in html
    assert "4 cases were not reached" in html
    assert "jax not installed" in html


def test_first_calls_are_counted_by_engine(result):
    ours, theirs = summary.first_calls(result["cases"])
    assert (ours["engine"], ours["median"], ours["cases"]) == ("ours", 5e-4, len(result["cases"]))
    assert (theirs["engine"], theirs["most"]) == ("torch.nn", 1e-3)


def test_the_markdown_says_the_same(result):
    text = markdown.markdown(result)
    assert "WRONG: result 0: error 1.0e+00" in text
    assert "0.99x noisy" in text
    assert "4 cases were not reached" in text
    assert "| ONNX Runtime | GRU    | inference |" in text


@pytest.mark.parametrize("path", readme.kept(), ids=lambda path: path.stem)
def test_every_kept_result_can_be_drawn(path):
    assert Parsed(page.render(compare.read(path))).opened.count("section") >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_the_page(file, width, scheme):
    with browser.opened(file, width, scheme) as (shown, complaints):
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate(
            "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().height > 100)"
        )
        paper, ink, text = (
            shown.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
            for where, what in (("body", "backgroundColor"), ("body", "color"), ("svg text", "fill"))
        )
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert text == ink != paper
        assert complaints == []


# the ratio of WCAG 2, of what a canvas makes of the computed colours
LEAST_CONTRAST = """() => {
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const luminance = colour => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Math.min(...[...document.querySelectorAll('.heat')].map(cell => {
    const style = getComputedStyle(cell);
    const [low, high] = [style.color, style.backgroundColor].map(luminance).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_colour(file, scheme):
    with browser.opened(file, 1280, scheme) as (shown, _):
        assert shown.evaluate("document.querySelectorAll('.heat').length") > 30
        assert shown.evaluate(LEAST_CONTRAST) >= 4.5


def test_the_page_fits_on_paper(file):
    with browser.opened(file, 680, scheme="dark", media="print") as (shown, _):
        assert shown.evaluate("document.documentElement.scrollWidth") <= 680
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_colour_of_a_ratio_is_even_about_one():
    assert 'style="--strength: 0%"' in page.strength(1.0)
    assert page.strength(4.0).replace("win", "lose") == page.strength(0.25)
    assert page.strength(100.0) == page.strength(page.STRONGEST)


def test_times_have_three_digits_and_a_unit():
    assert [page.seconds(t) for t in (2.0, 0.0123, 4.56e-6, 1e-9)] == ["2.00 s", "12.3 ms", "4.56 µs", "1.00 ns"]


def test_the_floor_is_the_slower_of_arithmetic_and_traffic():
    shape, limits = cases.Shape(10, 32, 64, 64), {"peak_gflops": 1.0, "cache_gbs": 1e9}
    assert page.floor(shape, "GRU", "inference", limits) == shape.flops("GRU", "inference") / 1e9
    assert page.floor(shape, "GRU", "inference", limits | {"peak_gflops": 1e9, "cache_gbs": 1.0}) == (
        4 * (10 * 32 * (64 + 64) + 3 * 64 * (64 + 64 + 2)) / 1e9
    )


def test_where_a_peer_wins(result):
    first, unsure, second = summary.lost(result["cases"])
    assert (first["peer"], first["ratio"], first["certain"]) == ("onnxruntime", 0.5, True)
    assert (second["peer"], second["ratio"], second["certain"]) == ("torch_nn", 0.99, False)
    assert (unsure["peer"], unsure["ratio"], unsure["certain"]) == ("onnxruntime", 0.9, False)


def test_what_moved_is_beyond_the_quartiles(result):
    later = copy.deepcopy(result)
    fallen, within, risen = later["cases"][2], later["cases"][3], later["programs"][0]["modes"]["inference"]
    fallen["torch_nn"] = made_up_result.pairs(fallen["torch_nn"]["ratio"] * 0.8)
    within["torch_nn"] = made_up_result.pairs(within["torch_nn"]["ratio"] * 1.05)
    risen.update(made_up_result.pairs(4.0))
    rows = compare.moved(result, later)
    assert [row["what"] for row in rows] == [fallen["shape"], "<history>"]
    assert [row["change"] for row in rows] == [pytest.approx(0.8), 2.0]
    assert compare.moved(result, result) == []


def test_compare_is_a_command(result, tmp_path):
    for name, torch in (("a", "2.13.0"), ("b", "2.14.0")):
        changed = result | {"machine": result["machine"] | {"torch": torch}}
        (tmp_path / f"{name}.json").write_text(json.dumps(changed))
    (tmp_path / "c.json").write_text("[]")
    done = bench("--compare", tmp_path / "a.json", tmp_path / "b.json")
    assert done.stdout.startswith("0 of the ")
    assert "Not the same torch: 2.13.0, then 2.14.0." in done.stdout
    refused = bench("--compare", tmp_path / "a.json", tmp_path / "c.json")
    assert refused.returncode == 2 and "expected the JSON of a result" in refused.stderr


def test_the_gate_judges_by_the_upper_quartile():
    shape = cases.PROGRAMS[0]
    measured = [
        made_up_result.case("GRU", "inference", shape, 1.0),
        made_up_result.case("GRU", "training", shape, 0.9),
        made_up_result.case("RNN", "inference", shape, 9.0, wrong="result 0", torch_nn=None),
    ]
    names = [*map(gate.name, measured), "LSTM inference somewhere else"]
    rows = gate.judge(measured, dict.fromkeys(names, 1.0))
    assert [row["fails"] for row in rows] == ["", "slower than the bound", "result 0", "not measured"]


def test_the_gate_has_a_bound_for_each_of_its_cases():
    wanted = {f"{cell} {mode} {shape}" for cell in cases.CELLS for mode in cases.MODES for shape in gate.SHAPES}
    assert json.loads(gate.BOUNDS.read_text()).keys() == wanted


def test_readme_has_the_figures_of_the_newest_result():
    text = readme.README.read_text()
    assert text == readme.updated(text, *readme.newest()), "run python -m benchmarks.readme"


def test_readme_without_its_marks_is_refused(result):
    with pytest.raises(ValueError, match="expected the marks"):
        readme.updated("# seq2seq_fast\n", result, {})


def test_readme_names_every_peer_that_was_timed(result):
    text = readme.figures(result)
    assert "GRU, against ONNX Runtime" in text and "JAX" not in text
    assert "torch.nn in 1 of 36 cases, ONNX Runtime in 2 of 2 cases" in text
    assert "| <history>" in text


def bench(*arguments):
    command = [sys.executable, "-m", "seq2seq_fast", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.needs_extension
def test_a_run_keeps_page_markdown_and_json(tmp_path):
    done = bench("--cells", "RNN", "--modes", "inference", "--shapes", "T2 B1 H2,T3 B1 H2", "--peers", "",
                 "--seconds", "0.001", "--minutes", "0.001", "--threads", "1", "--output", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".json", ".md"]
    (path,) = tmp_path.glob("*-part.json")
    kept = compare.read(path)
    assert len(kept["machine"]["processors"]) == kept["machine"]["threads"] == 1
    assert len(kept["cases"]) + kept["not_reached"] == 2
    assert kept["machine"]["memory_gbs"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--cells", "GRU,CNN"), "--cells: expected some of GRU, RNN, LSTM, got 'CNN'"),
        (("--shapes", "T0 B1 H1"), "--shapes: expected some of programs"),
        (("--seconds", "0"), "--seconds: expected more than 0, got 0"),
        (("--threads", "100000"), "threads: expected at most"),
        (("--model", "nowhere:made"), "model: expected module:factory, got 'nowhere:made'"),
    ],
)
@pytest.mark.needs_extension
def test_bad_arguments_are_named(arguments, words):
    refused = bench(*arguments)
    assert refused.returncode == 2
    assert words in refused.stderr


def test_without_its_extra_bench_says_what_to_install():
    code = "import sys; sys.modules['tqdm'] = None; from seq2seq_fast.__main__ import bench; sys.exit(bench([]))"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr == "bench needs tqdm, which is not installed: pip install seq2seq_fast[bench]\n"
