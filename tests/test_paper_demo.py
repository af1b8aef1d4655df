"""The demo's tables, as one command makes them: their form, and that the picture is needed."""

import json

import programs
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
ROWS = "mrnn,rnn_base,one_layer_emb,mrnn_shared"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    arguments = ["--dataset", "demo", "--output", folder / "data"]
    done = programs.start(folder, "trainer.prepare", *arguments).wait(1800)
    assert done.code == 0, done.err
    arguments = ["--data", f"demo={folder / 'data'}", "--output", folder / "out", "--seeds=1"]
    arguments += ["--preset=demo", "--epochs=8", f"--rows={ROWS}", "--split=test"]
    done = programs.start(folder, "trainer.paper", *arguments).wait(5400)
    assert done.code == 0, done.err
    assert f"next: open {folder}/out/paper.html" in done.out
    return json.loads((folder / "out" / "paper.json").read_text())


def rows_of(made, table, part=0):
    found = [each for each in made["tables"] if each["name"] == table][part]
    return {(row["name"], row["note"]): row["values"] for row in found["rows"] if row["ours"]}


def test_the_tables_have_their_rows(made):
    names = [table["name"] for table in made["tables"]]
    assert names == [
        "generation", "retrieval", "retrieval", "server", "recurrent", "rerank", "variants",
    ]  # fmt: skip
    assert {name for name, _ in rows_of(made, "variants")} == {
        "m-RNN", "RNN-Base", "m-RNN-OneLayerEmb", "m-RNN-shared",
    }  # fmt: skip
    assert len(rows_of(made, "rerank")) == 14 and not made["missing"]
    [figures] = made["figures"]
    assert figures["neighbours"] and figures["changes"] and figures["described"]
    assert len(made["claims"]) == 16


def test_m_rnn_beats_rnn_base_on_bleu_and_retrieval(made):
    rows = rows_of(made, "generation")
    ours, base = (rows[name, "greedy, 1 seed"]["bleu_4"]["mean"] for name in ("m-RNN", "RNN-Base"))
    print(f"BLEU-4, greedy: {ours:.3f} with the image, {base:.3f} without")
    assert ours > 1.5 * base
    for part, note in enumerate(("sample, 1 seed", "1 seed")):
        rows = rows_of(made, "retrieval", part)
        recall = rows["m-RNN", note]["r_1"]["mean"]
        chance = rows["Random, or RNN-Base", "expected"]["r_1"]["mean"]
        print(f"R@1: {recall:.1f}, by chance {chance:.1f}")
        assert recall > 10 * chance
