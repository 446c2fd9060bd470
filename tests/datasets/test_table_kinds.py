"""Tables of all kinds, beside what pandas and scikit-learn make of them, and what is one line instead."""

from functools import partial

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.feather
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

from decentnode.config.loader import load
from decentnode.config.python_source import document_of

GRADES = ["low", "mid", "high"]
LAST_DAYS = pd.Timestamp("2024-02-27T06:00")


def people(rows, seed):
    """A table with columns of all kinds, some values of which are missing; the test has a city of its own."""
    rng = np.random.default_rng(seed)

    def with_gaps(values):
        return np.where(rng.random(rows) < 0.2, None, values)

    cities = np.array(["Rome", "Paris", "Oslo", "Bern", "Lima"])[(rng.random(rows) ** 2 * 5).astype(int)]
    return pd.DataFrame(
        {
            "age": rng.integers(17, 80, rows),
            "dose": with_gaps(rng.normal(3, 2, rows).round(2)).astype(float),
            "city": np.where(rng.random(rows) < 0.1, "Kyiv", cities) if seed > 1 else cities,
            "job": with_gaps(np.array(["nurse", "cook"])[rng.integers(0, 2, rows)]),
            "grade": np.array(GRADES)[rng.integers(0, 3, rows)],
            "zip": rng.integers(10, 14, rows),
            "member": rng.random(rows) < 0.4,
            "when": LAST_DAYS + pd.to_timedelta(rng.integers(0, 10**6, rows), unit="s"),
            "label": np.array(["no", "yes"])[rng.integers(0, 2, rows)],
        }
    )


TRAIN, TEST = people(300, 1), people(90, 2)
ONE_HOT = partial(OneHotEncoder, sparse_output=False, handle_unknown="ignore", dtype=np.float32)


def settings_of(name, **options):
    values = {
        "rounds": 2, "graph": {"name": "ring", "nodes": 3}, "dataset": {"name": name, **options},
        "model": "logistic_regression", "communication": "inproc",
        "training": {"optimizer": {"name": "SGD", "lr": 0.1}, "batch_size": 20, "steps_per_round": 2},
    }  # fmt: skip
    return load(partial(document_of, values))


def load_dataset(name, **options):
    """The samples of a table from Python or of that name, with options as in a configuration."""
    return settings_of(name, **options).dataset.make().load(0)


def inputs_in(loaded):
    """The inputs of training and test samples, as models get them."""
    return [part.batch(torch.arange(len(part))).fields[0].numpy() for part in (loaded.train, loaded.test)]


def turns(frame):
    """Sine and cosine of a time in its day, its week and its year."""
    time = frame.iloc[:, 0].dt
    day = (time.hour * 3600 + time.minute * 60 + time.second) / 86_400
    phases = [day, (time.dayofweek + day) / 7, (time.dayofyear - 1 + day) / (365 + time.is_leap_year)]
    return np.stack([of(2 * np.pi * phase) for phase in phases for of in (np.sin, np.cos)], axis=1)


IN_FLOATS = FunctionTransformer(lambda frame: frame.astype(float))
IN_SECONDS = FunctionTransformer(lambda frame: (frame - pd.Timestamp(0)) / pd.Timedelta(seconds=1))
TABLES = {
    "numbers": ({}, StandardScaler(), ["age", "zip"]),
    "booleans": ({}, make_pipeline(IN_FLOATS, StandardScaler()), ["member"]),
    "categories": ({}, ONE_HOT(), ["city"]),
    "categories in an order": (
        {"columns": {"city": {"kind": "category", "values": ["Oslo", "Kyiv", "Rome"]}}},
        ONE_HOT(categories=[["Oslo", "Kyiv", "Rome"]]), ["city"],
    ),
    "rare categories": (
        {"columns": {"city": {"kind": "category", "max_categories": 3}}},
        ONE_HOT(max_categories=3, handle_unknown="infrequent_if_exist"), ["city"],
    ),
    "categories that are numbers": ({"columns": {"zip": "category"}}, ONE_HOT(), ["zip"]),
    "ordered": (
        {"columns": {"grade": {"kind": "ordered", "values": GRADES}}},
        make_pipeline(OrdinalEncoder(categories=[GRADES]), StandardScaler()), ["grade"],
    ),
    "times": ({}, make_pipeline(IN_SECONDS, StandardScaler()), ["when"]),
    "times in cycles": (
        {"columns": {"when": {"kind": "time", "cycles": ["day", "week", "year"]}}},
        make_union(make_pipeline(IN_SECONDS, StandardScaler()), FunctionTransformer(turns)), ["when"],
    ),
    **{
        f"missing {how}": (
            {"missing": how},
            make_pipeline(
                SimpleImputer(strategy=how if isinstance(how, str) else "constant", fill_value=-1.0),
                StandardScaler(),
            ), ["dose"],
        ) for how in ("mean", "median", "most_frequent", -1)
    },
    "missing indicator": (
        {"columns": {"dose": {"missing": "indicator"}}},
        make_union(make_pipeline(SimpleImputer(), StandardScaler()), MissingIndicator()), ["dose"],
    ),
    "missing category": ({"missing": "median"}, ONE_HOT(), ["job"]),
    "most frequent category": (
        {"missing": "most_frequent"},
        make_pipeline(SimpleImputer(strategy="most_frequent"), ONE_HOT()), ["job"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_inputs_are_those_of_scikit_learn(name):
    """Fitted on training rows alone."""
    options, transformer, columns = TABLES[name]
    loaded = load_dataset((TRAIN, TEST), features=columns, **options)
    oracle = ColumnTransformer([("all", transformer, columns)], sparse_threshold=0).fit(TRAIN)
    for found, frame in zip(inputs_in(loaded), (TRAIN, TEST), strict=True):
        np.testing.assert_allclose(found, oracle.transform(frame), rtol=0, atol=2e-5)
    assert loaded.class_names == ("no", "yes") and len(loaded.names) == loaded.shape[0]


WHOLE = TRAIN.drop(columns=["dose", "job"])
COLUMNS = {"grade": {"kind": "ordered", "values": GRADES}, "zip": "category"}


def test_tables_of_all_formats_are_the_same_samples(tmp_path):
    table = pyarrow.Table.from_pandas(WHOLE, preserve_index=False)
    WHOLE.to_csv(tmp_path / "rows.csv", index=False)
    WHOLE.to_csv(tmp_path / "rows.csv.gz", index=False)
    WHOLE.to_parquet(tmp_path / "rows.parquet", index=False)
    pyarrow.feather.write_feather(table, str(tmp_path / "rows.feather"))
    with pyarrow.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=70)
    arrays = {name: WHOLE[name].to_numpy() for name in WHOLE}
    np.savez(
        tmp_path / "rows.npz", **{n: a.astype(str) if a.dtype == object else a for n, a in arrays.items()}
    )
    whole = load_dataset(WHOLE, columns=COLUMNS)
    assert whole.names[:3] == ("age", "city=Bern", "city=Lima") and whole.shape == (13,)
    categorical = WHOLE.astype({"city": "category", "zip": "category"}).assign(
        grade=pd.Categorical(WHOLE.grade, GRADES, ordered=True)
    )
    indexed = WHOLE.set_index(np.arange(300)[::-1] + 7)
    for frame, columns in ((indexed, COLUMNS), (table, COLUMNS), (categorical, {})):
        assert_same(whole, load_dataset(frame, columns=columns))
    files = sorted(file for file in tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        assert_same(whole, load_dataset("table", path=str(file), columns=COLUMNS))


def assert_same(one, other):
    assert (one.class_names, one.names, one.schema) == (other.class_names, other.names, other.schema)
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.labels, b.labels)
        assert torch.equal(a.mean, b.mean) and torch.equal(a.std, b.std)


ROWS = "name,sum,city,label\nRené,1234.5,Rome,no\nBob,-2,Oslo,yes\nEve,,Rome,no\nIda,1000000,Oslo,yes\n"


@pytest.mark.parametrize(
    ("written", "options"),
    [
        (ROWS.encode("latin1"), {"encoding": "latin1"}),
        (ROWS.encode("utf16"), {"encoding": "utf16"}),
        (ROWS.encode("utf-8-sig"), {}),
        (ROWS.replace(",", ";").replace(".", ",").encode(), {"separator": ";", "decimal": ","}),
        (ROWS.replace(",", "\t").encode(), {"separator": "\t"}),
        (ROWS.partition("\n")[2].encode(), {"names": ["name", "sum", "city", "label"]}),
        (ROWS.replace("1234.5", '"1,234.5"').replace("1000000", '"1,000,000"').encode(), {"thousands": ","}),
        (ROWS.replace("1234.5", '"1.234,5"').replace("1000000", "1.000.000").encode(),
         {"thousands": ".", "decimal": ","}),
        (ROWS.replace("Rome", " Rome ").replace(",,", ", ,").encode(), {}),
        (ROWS.replace(",,", ",?,").encode(), {"missing_values": ["?"]}),
        (ROWS.replace(",,", ",-999,").encode(), {"missing_values": [-999]}),
        (ROWS.replace("\n", "\r\n").replace(",,", ",nan,").encode(), {}),
    ],
    ids=["latin1", "utf16", "bom", "semicolons", "tabs", "no_header", "thousands", "dots", "blanks", "marks",
         "numbers", "nan"],
)  # fmt: skip
def test_a_file_that_is_written_in_another_way_is_the_same_table(tmp_path, written, options):
    for name, content in (("plain.csv", ROWS.encode()), ("rows.csv", written)):
        (tmp_path / name).write_bytes(content)
    columns = {"name": {"kind": "category", "values": ["René", "Bob", "Eve", "Ida"]}, "sum": {"missing": 0}}
    plain, same = (
        load_dataset(
            "table", path=str(tmp_path / name), test_path=str(tmp_path / name), columns=columns, **more
        )
        for name, more in (("plain.csv", {}), ("rows.csv", options))
    )
    assert plain.train.inputs[:, :5].tolist() == [
        [1, 0, 0, 0, 1234.5], [0, 1, 0, 0, -2], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1e6]
    ]  # fmt: skip
    assert_same(plain, same)


def test_labels_are_classes_in_the_order_that_is_said_or_several_numbers(tmp_path):
    frame = TRAIN.assign(a=TRAIN.age / 2, b=TRAIN.member, c=1 - TRAIN.member)
    make = partial(load_dataset, (frame, frame), features=["age"])
    assert make(label="city").class_names == ("Bern", "Lima", "Oslo", "Paris", "Rome")
    loaded = make(label="grade", classes=GRADES)
    assert loaded.class_names == ("low", "mid", "high")
    assert loaded.train.labels.tolist() == [GRADES.index(grade) for grade in TRAIN.grade]
    assert make(label="zip").class_names == ("10", "11", "12", "13")
    numbers = make(label=["a", "dose"], predict="number", missing="drop")
    kept = frame.dropna(subset="dose")
    assert np.array_equal(numbers.train.labels, kept[["a", "dose"]].astype(np.float32))
    assert (numbers.num_classes, numbers.class_names) == (1, ())
    assert numbers.notices == (
        f"dataset: {2 * TRAIN.dose.isna().sum()} rows without a value left out (missing: drop)",
    )
    several = make(label=["b", "c"])
    assert np.array_equal(several.train.labels, frame[["b", "c"]].astype(int)) and several.num_classes == 2
    without = make(label="job", columns={"job": {"missing": "drop"}})
    assert len(without.train) == TRAIN.job.notna().sum() and without.class_names == ("cook", "nurse")
