"""Tables of all kinds, beside what pandas and scikit-learn make of them, and what is one line instead."""

import re
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

import decentnode
from decentnode.config.loader import load
from decentnode.config.python_source import document_of
from decentnode.core.text import counted
from decentnode.datasets import Samples
from decentnode.datasets.table import tables_in
from decentnode.errors import BadInput, DatasetError
from decentnode.node.experiment import Experiment

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
    assert not tables_in((WHOLE, WHOLE.label)), "inputs and labels"
    indexed = WHOLE.set_index(np.arange(300)[::-1] + 7)
    for frame, columns in ((indexed, COLUMNS), (table, COLUMNS), (categorical, {})):
        assert_same(whole, load_dataset(frame, columns=columns))
    files = sorted(file for file in tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        assert_same(whole, load_dataset("table", path=str(file), columns=COLUMNS))


def test_three_tables_are_encoded_by_the_training_rows(tmp_path):
    parts = {"train": TRAIN, "test": TEST, "validation": TEST[::-1]}
    files = {}
    for (part, frame), option in zip(parts.items(), ("path", "test_path", "validation_path"), strict=True):
        files[option] = str(tmp_path / f"{part}.csv")
        frame.to_csv(files[option], index=False)
    options = {"columns": COLUMNS, "missing": "indicator"}
    two = load_dataset((TRAIN, TEST), **options)
    for loaded in (load_dataset(parts, **options), load_dataset("table", **files, **options)):
        assert torch.equal(loaded.train.inputs, two.train.inputs) and loaded.names == two.names
        assert torch.equal(loaded.test.inputs, two.test.inputs)
        backward = loaded.validation.subset(torch.arange(len(TEST)).flip(0))
        assert torch.equal(backward.inputs, two.test.inputs)
        assert torch.equal(backward.labels, two.test.labels)
        assert torch.equal(backward.mean, two.test.mean)
    with pytest.raises(BadInput, match=r"dataset.validation_path: needs test_path, too$"):
        load_dataset("table", **{**files, "test_path": None})
    with pytest.raises(DatasetError, match=r"3 parts are given; name them"):
        load_dataset((TRAIN, TEST, TEST))


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


KEPT = ("age", "dose", "city", "job", "grade", "when")


def test_a_run_on_a_table_has_the_models_of_samples_prepared_by_scikit_learn(tmp_path):
    encoder = ColumnTransformer(
        [
            ("age", "passthrough", ["age"]), ("dose", SimpleImputer(strategy="median"), ["dose"]),
            ("city", ONE_HOT(), ["city"]), ("job", ONE_HOT(), ["job"]),
            ("grade", OrdinalEncoder(categories=[GRADES]), ["grade"]), ("when", IN_SECONDS, ["when"]),
        ], sparse_threshold=0,
    ).fit(TRAIN)  # fmt: skip
    encoded = [encoder.transform(frame).astype(float) for frame in (TRAIN, TEST)]
    numbers = [0, 1, -2, -1]
    scaler = StandardScaler().fit(encoded[0][:, numbers])
    mean, std = np.zeros(encoded[0].shape[1]), np.ones(encoded[0].shape[1])
    mean[numbers], std[numbers] = scaler.mean_, scaler.scale_
    plain = tuple(
        Samples(*map(torch.from_numpy, (rows, (frame.label == "yes").to_numpy(int), mean, std)))
        for rows, frame in zip(encoded, (TRAIN, TEST), strict=True)
    )
    options = {"features": KEPT, "missing": "median", "columns": COLUMNS}
    for name, more in ((plain, {}), ((TRAIN, TEST), options)):
        run = decentnode.run(
            settings_of(name, **more), progress=False, run_dir=str(tmp_path / str(len(more)))
        )
    assert run.summary["model_hash"] == decentnode.Run(tmp_path / "0").summary["model_hash"]


def test_each_node_normalizes_by_its_own_rows_if_asked():
    """Its training and test samples; a node without rows, and the mean model, by those of all."""
    parts = {"features": ["age", "city", "zip"], "partition": {"name": "iid", "ranks": [0, 2]}}
    experiment = Experiment.from_settings(settings_of((TRAIN, TEST), standardize="node", **parts))
    rows, test_rows = (frame[["age", "zip"]].to_numpy(float) for frame in (TRAIN, TEST))
    for rank, part in [*enumerate(experiment.samples.parts), (None, [])]:
        scaler = StandardScaler().fit(rows[part] if len(part) else rows)
        tested = []
        experiment.plan.measured(0, lambda samples, tested=tested: tested.append(samples) or {}, rank)
        trained = [] if rank is None else [(experiment.samples.shard(rank).samples, rows)]
        for samples, expected in [(tested[0], test_rows), *trained]:
            inputs = samples.batch(torch.arange(len(samples))).fields[0]
            np.testing.assert_allclose(inputs[:, [0, -1]], scaler.transform(expected), rtol=0, atol=1e-5)
            assert set(inputs[:, 1:-1].unique().tolist()) == {0, 1}, "categories stay as they are"
    known = load_dataset((TRAIN, TEST), features=["age"], columns={"age": {"mean": 40, "std": 10}})
    np.testing.assert_allclose(inputs_in(known)[1], (TEST[["age"]] - 40) / 10, rtol=1e-6)
    assert known.fitted == () and known.public == ("mean and deviation of age (dataset.columns)",)
    cities = {"kind": "category", "values": ["Kyiv", "Oslo", "Rome"], "max_categories": 2}
    few = load_dataset((TRAIN, TEST), features=["city"], columns={"city": cities})
    assert few.fitted == ("which values are frequent in city (leave out max_categories)",)
    assert few.public == ("the values of city (dataset.columns)",) and few.categories == {}
    found = load_dataset((TRAIN, TEST), features=["age", "city", "zip"], columns={"zip": "category"})
    assert found.categories["city"] == range(1, 1 + len({*TRAIN.city})) and [*found.categories] == [
        "city",
        "zip",
    ]
    plain = load_dataset((TRAIN, TEST), features=["age"], standardize="none")
    assert (plain.fitted, plain.train.mean.tolist(), plain.train.std.tolist()) == ((), [0], [1])


def test_what_is_found_out_about_columns_is_said():
    loaded = load_dataset(
        (TRAIN, TEST),
        columns={**COLUMNS, "member": "skip", "dose": {"missing": "drop"}},
        missing="indicator",
    )
    gaps = [int(frame.dose.isna().sum()) for frame in (TRAIN, TEST)]
    kept = [frame[frame.dose.notna()] for frame in (TRAIN, TEST)]
    without = sum(int(frame.job.isna().sum()) for frame in kept)
    unknown = int((kept[1].city == "Kyiv").sum())
    assert unknown and loaded.notices == (
        f"dataset: {sum(gaps)} rows without a value left out (missing: drop)",
        f"dataset: test rows have categories that no input stands for: city in {counted(unknown, 'row')}",
    )
    lines = [re.sub(" +", " ", line) for line in loaded.schema]
    assert lines[0] == "column kind inputs values rows without one"
    assert lines[2].startswith("dose number 1 ") and lines[7] == "member skip"
    assert lines[4] == f"job category 3 cook, nurse, missing {without}: a category"
    assert lines[5] == "grade ordered 1 low < mid < high"
    assert lines[8].startswith(f"when time 1 {kept[0].when.min()} to")
    assert lines[9] == "label label no, yes"
    assert loaded.fitted[0] == "the values of city, job, zip (list them in dataset.columns)"


@pytest.mark.parametrize(
    ("values", "options", "line"),
    [
        (["1", "x", "3", "4"], {}, "has 'x' in 1 of 4 rows, and numbers in others; if that is no value, set "
         "dataset.missing_values: ['x'], else {category}"),
        (["1,200", "30", "4", "5"], {}, "has '1,200', as with a sign between thousands; set "
         "dataset.thousands: ',', or {category}"),
        (["1,5", "3", "4", "5"], {},
         "has '1,5', as with a decimal comma; set dataset.decimal: ',', or {category}"),
        (["3/12/2019", "13/1/2020"] * 2, {},
         "has '13/1/2020', as with a time; set {time} (%d is the day, %m the month), or {category}"),
        (["01/25/13", "02/03/13"] * 2, {}, "has '01/25/13', as with a time; set dataset.columns: "
         "{{v: {{kind: time, format: '%m/%d/%y'}}}} (%d is the day, %m the month), or {category}"),
        (["29.01.2000", "03.02.2001"] * 2, {"kind": "time"},
         "has '03.02.2001', which is no time as ISO 8601; set dataset.columns: "
         "{{v: {{kind: time, format: '%d.%m.%Y'}}}}"),
        (["3/12/2019", "13/1/2020"] * 2, {"kind": "time"},
         "has '13/1/2020', which is no time as ISO 8601; set {time}"),
        (["13/1/2020", "nine", "x", "y"], {"kind": "time", "format": "%d/%m/%Y"},
         "has 'nine', which is no time as '%d/%m/%Y'; set {time}"),
        ([f"text {i}" for i in range(60)], {},
         "has 60 different texts in 60 rows, such as 'text 0'; set {skip}, or {category}"),
        ([f"text {i}" for i in range(10_000)], {"kind": "category"},
         "has 8,000 categories; set dataset.columns: {{v: {{kind: category, max_categories: 100}}}}, "
         "or skip"),
        ([None] * 4, {}, "has no value in any row; set {skip}"),
        ([1, None, 3, 4], {}, "has no value in 1 of 4 rows, first in row 2; set dataset.missing, or "
         "dataset.columns: {{v: {{missing: median}}}}"),
        ([float("inf"), 2, 3, 4], {}, "has no finite number in row 1; fill it, or leave it out"),
        (["low", "high"] * 2, {"kind": "ordered"}, "has texts, whose order is not known; set "
         "dataset.columns: {{v: {{kind: ordered, values: [high, low]}}}}, the least first"),
        (["low", "huge"] * 2, {"kind": "ordered", "values": GRADES},
         "has 'huge', which is none of its values (low, mid, high)"),
        (pd.to_datetime(["2020-01-01"] * 4), {"kind": "number"},
         "has times, such as 2020-01-01T00:00:00.000000; set its kind: time"),
        ([{"a": 1}] * 4, {},
         "has values of type struct<a: int64>, no numbers, texts or times; set its kind: skip"),
    ],
)  # fmt: skip
def test_a_column_that_needs_a_word_is_one_line(values, options, line):
    frame = pd.DataFrame({"a": np.arange(len(values)) / 2, "v": values, "label": np.arange(len(values)) % 2})
    with pytest.raises(DatasetError) as raised:
        load_dataset(frame, columns={"v": options} if options else {})
    words = {"skip": "skip", "category": "category", "time": "{kind: time, format: '%d/%m/%Y'}"}
    expected = line.format(**{word: f"dataset.columns: {{v: {text}}}" for word, text in words.items()})
    assert str(raised.value) == f"dataset: the table: column 'v' {expected}"
    assert load_dataset(frame, columns={"v": "skip"}).shape == (1,), "a column that is skipped is not read"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"columns": {"agee": "skip"}},
         "dataset.columns.agee: the table has no column 'agee'; did you mean 'age'? (columns: age, dose"),
        ({"columns": {"age": "numbr"}}, "arguments: dataset.columns.age: must be 'number' or 'category' or"),
        ({"columns": {"age": {"values": [1]}}},
         "arguments: dataset.columns.age: values is for kind: ordered or category; name that, too"),
        ({"columns": {"age": {"kind": "category", "missing": "mean"}}},
         "arguments: dataset.columns.age: a category has no mean or number; set missing: category or"),
        ({"columns": {"age": "skip"}, "features": ["age"]}, "dataset.columns.age: is skip, but a feature"),
        ({"columns": {"age": {"missing": "category"}}},
         "dataset: the table: column 'age' is a number, but missing: category is for kind: category,"),
        ({"columns": {"city": {"mean": 1, "std": 2}}}, "dataset: the table: column 'city' is a category"),
        ({"columns": {"label": "category"}},
         "arguments: dataset.columns.label: is no feature, so it may have nothing but"),
        ({"standardize": "node", "mean": 0.0, "std": 1.0}, "arguments: dataset.standardize: leave it out"),
        ({"thousands": "."}, "arguments: dataset.decimal: and thousands must be two different signs"),
        ({"classes": ["no", "no"]}, "arguments: dataset.classes: names a class twice"),
        ({"classes": ["no", "maybe"]}, "dataset: the table: column 'label' has yes in row "),
        ({"label": ["age", "member"]}, "dataset: the table: column 'age' has "),
        ({"label": "age", "predict": "number", "missing": "category"},
         "dataset: the table: column 'dose' has no value in "),
    ],
)  # fmt: skip
def test_options_of_tables_that_do_not_fit_are_one_line(options, line):
    with pytest.raises(BadInput) as raised:
        load_dataset(TRAIN, **{"missing": "median", **options})
    assert str(raised.value).startswith(line) and "\n" not in str(raised.value)


def test_a_column_of_several_types_is_one_line():
    frame = pd.DataFrame({"v": [1, "x"], "label": [0, 1]})
    with pytest.raises(DatasetError, match=r"^dataset: the training table cannot be read: Could"):
        load_dataset((frame, TEST))


def test_many_categories_are_few_inputs_if_asked():
    frame = pd.DataFrame({"v": np.arange(10_000) % 5000, "label": np.arange(10_000) % 2})
    loaded = load_dataset((frame, frame), columns={"v": {"kind": "category", "max_categories": 10}})
    assert loaded.shape == (10,) and loaded.names[-1] == "v=others"
    assert loaded.train.inputs.sum(0).tolist() == [2] * 9 + [9982]
