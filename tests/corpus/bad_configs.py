"""Configurations and overrides that are wrong, and the lines that say so."""

from decentnode.config.removed import TEST_FAULTS

DATASETS = (
    "amazon, celeba, cifar10, cifar100, digits, femnist, hugging_face, idx, image_folder, movielens, "
    "parallel, quadratic, reddit, sent140, shakespeare, synthetic, table, text, tokens"
)

EDITS: dict[str, tuple[str, str, list[str]]] = {
    "key": ("seed: 1", "sed: 1", ["2 sed: unknown key; did you mean 'seed'?"]),
    "key, needed": ("rounds: 3", "ruonds: 3", ["3 ruonds: unknown key; did you mean 'rounds'?"]),
    "key, nothing near": ("seed: 1", "zebra: 1", ["2 zebra: unknown key (known: ...)"]),
    "key of a section": (
        "batch_size",
        "bach_size",
        ["12 training.bach_size: unknown key; did you mean 'batch_size'?"],
    ),
    "option": (
        "alpha",
        "alhpa",
        ["8 dataset.partition.alhpa: unknown option of dirichlet; did you mean 'alpha'?"],
    ),
    "option of a transform": (
        "weights: metropolis_hastings",
        "transforms: [{name: cast, dtpe: bf16}]",
        ["14 sharing.transforms[0].dtpe: unknown option of cast; did you mean 'dtype'?"],
    ),
    "option of a class of torch": (
        "momentum",
        "momentm",
        ["11 training.optimizer.momentm: unknown option of SGD; did you mean 'momentum'?"],
    ),
    "generic option": (
        "weights",
        "weigts",
        ["14 sharing.weigts: unknown option of gossip; did you mean 'weights'?"],
    ),
    "nested option": (
        "nodes: 4",
        "nodes: 4, user: me",
        ["7 mapping.machines[0].user: unknown key (known: address, nodes, listen)"],
    ),
    "scheme": (
        "name: gossip",
        "name: gosip",
        ["14 sharing.name: unknown sharing 'gosip'; did you mean 'gossip'? (known: ...)"],
    ),
    "graph": (
        "{name: file, path: ring.edges}",
        "rng",
        ["4 graph: unknown graph 'rng'; did you mean 'ring'? (known: ...)"],
    ),
    "optimizer in small letters": (
        "name: SGD",
        "name: sgd",
        ["11 training.optimizer.name: unknown optimizer 'sgd'; did you mean 'SGD'? (known: ...)"],
    ),
    "no name": (
        "weights: metropolis_hastings",
        "transforms: [{dtype: bf16}]",
        ["14 sharing.transforms[0].name: missing; name one of: ..."],
    ),
    "name that is no text": (
        "name: mlp",
        "name: 3",
        [
            "9 model.name: must be a name, not 3; name one of: "
            "celeba_cnn, cifar_cnn, cnn, gpt2, lenet, logistic_regression, lstm, matrix_factorization, mlp, "
            "quadratic, reddit_lstm, resnet18, resnet50, resnet8, shakespeare_lstm, transformer, vgg11, vit"
        ],
    ),
    "module that is not there": (
        "{name: mlp, hidden: [8]}",
        "nowhere:Net",
        [
            "9 model: cannot import 'nowhere:Net': No module named 'nowhere' in {here}, "
            "beside the configuration, or installed"
        ],
    ),
    "module with a mistake": (
        "{name: mlp, hidden: [8]}",
        "corpus_broken:Net",
        ["9 model: cannot import 'corpus_broken:Net': ZeroDivisionError: division by zero"],
    ),
    "negative rounds": ("rounds: 3", "rounds: -3", ["3 rounds: must be a whole number > 0, not -3"]),
    "text for a number": ("rounds: 3", "rounds: '3'", ["3 rounds: must be a whole number > 0, not '3'"]),
    "true for a number": ("rounds: 3", "rounds: true", ["3 rounds: must be a whole number > 0, not true"]),
    "a fraction": ("rounds: 3", "rounds: 3.0", ["3 rounds: must be a whole number > 0, not 3.0"]),
    "1.1 number": ("rounds: 3", "rounds: 1_000", ["3 rounds: must be a whole number > 0, not '1_000'"]),
    "1.1 truth": (
        "evaluation: {every: 10}",
        "evaluation: {average_model: yes}",
        ["16 evaluation.average_model: must be true or false, not 'yes'"],
    ),
    "large": (
        "seed: 1",
        "seed: 99999999999999999999",
        ["2 seed: 99999999999999999999 is too large; whole numbers have at most 63 bits"],
    ),
    "not a number": ("lr: 0.1", "lr: .nan", ["11 training.optimizer.lr: .nan is not a finite number"]),
    "infinite": ("lr: 0.1", "lr: 1e999", ["11 training.optimizer.lr: 1e999 is not a finite number"]),
    "one of several": ("seed: 1", "device: gpu", ["2 device: must be 'cpu' or 'cuda' or 'auto', not 'gpu'"]),
    "range": ("deadline: 60", "deadline: 0", ["17 failures.deadline: must be a number > 0, not 0"]),
    "two-sided range": (
        "zeromq",
        "{base_port: 70000}",
        ["15 communication.base_port: must be a whole number > 0 and < 65536, not 70000"],
    ),
    "list": ("hidden: [8]", "hidden: [8, 0]", ["9 model.hidden[1]: must be a whole number > 0, not 0"]),
    "no list": ("hidden: [8]", "hidden: 8", ["9 model.hidden: must be a list of whole numbers > 0, not 8"]),
    "number or list": (
        "steps_per_round: 5",
        "steps_per_round: [5, x, 5, -1]",
        [
            "13 training.steps_per_round[1]: must be a whole number >= 0, not 'x'",
            "13 training.steps_per_round[3]: must be a whole number >= 0, not -1",
        ],
    ),
    "number or list, neither": (
        "steps_per_round: 5",
        "steps_per_round: many",
        [
            "13 training.steps_per_round: must be a whole number >= 0 or a list of whole "
            "numbers >= 0 or null, not 'many'"
        ],
    ),
    "number for a section": (
        "evaluation: {every: 10}",
        "evaluation: 10",
        [
            "16 evaluation: must be a mapping with every, final, background, nodes, samples, batch_size, "
            "average_model, figures, not 10"
        ],
    ),
    "list for a plug-in": (
        "{name: mlp, hidden: [8]}",
        "[mlp]",
        ["9 model: must be a name, or a mapping with its options, not a list of 1"],
    ),
    "name for the transforms": (
        "weights: metropolis_hastings",
        "transforms: cast",
        ["14 sharing.transforms: must be a list of transforms, not 'cast'"],
    ),
    "name of the run": (
        "name: trial",
        "name: a/b",
        ["1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not 'a/b'"],
    ),
    "rounds": ("rounds: 3\n", "", ["1 rounds: missing; it must be a whole number > 0"]),
    "dataset": (
        "dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}\n",
        "",
        ["1 dataset: missing; name one of: " + DATASETS],
    ),
    "training": (
        "training:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n"
        "  steps_per_round: 5\n",
        "",
        ["1 training: missing; it must be a mapping with optimizer and steps_per_round or epochs_per_round"],
    ),
    "training that is null": (
        "  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n  steps_per_round: 5\n",
        "",
        ["10 training: missing; it must be a mapping with optimizer and steps_per_round or epochs_per_round"],
    ),
    "required option": (
        "{name: file, path: ring.edges}",
        "{name: regular, degree: 2}",
        ["4 graph.nodes: missing; it must be a whole number > 0"],
    ),
    "required option of torch": (
        "batch_size: 16",
        "scheduler: StepLR",
        ["12 training.scheduler.step_size: missing; it has no default"],
    ),
    "steps": (
        "  steps_per_round: 5\n",
        "",
        ["10 training: give exactly one of steps_per_round and epochs_per_round"],
    ),
    "steps twice": (
        "steps_per_round: 5",
        "steps_per_round: 5\n  epochs_per_round: 1",
        ["10 training: give exactly one of steps_per_round and epochs_per_round"],
    ),
    "file": (
        "ring.edges",
        "rong.edges",
        ["4 graph.path: no such file: {here}/rong.edges; did you mean 'ring.edges'?"],
    ),
    "graph file": (
        "ring.edges",
        "bad.edges",
        [
            "4 graph: {here}/bad.edges:2: rank 9 is out of range; with 4 nodes it is 0..3",
            "4 graph: {here}/bad.edges:3: node 1 is its own neighbor; remove that, it "
            "always has its own model",
        ],
    ),
    "torch": ("lr: 0.1", "lr: -1", ["11 training.optimizer: SGD: Invalid learning rate: -1.0"]),
    "torch, a type": ("lr: 0.1", "lr: fast", ["11 training.optimizer.lr: must be a number, not 'fast'"]),
    "loss": (
        "batch_size: 16",
        "loss: {name: CrossEntropyLoss, reduction: none}",
        ["12 training.loss: CrossEntropyLoss: reduction 'none' gives no single loss; use 'mean' or 'sum'"],
    ),
    "address": (
        "127.0.0.1",
        "10.0.0.300",
        [
            "7 mapping.machines[0].address: '10.0.0.300' is not an address; give an IPv4 "
            "or IPv6 address or a host name"
        ],
    ),
    "wildcard": (
        "127.0.0.1",
        "0.0.0.0",
        [
            "7 mapping.machines[0].address: '0.0.0.0' is not the address of one machine; "
            "give the one that the others reach"
        ],
    ),
    "address with a port": (
        "127.0.0.1",
        "'node1:29600'",
        [
            "7 mapping.machines[0].address: 'node1:29600' is more than an address; give "
            "an IPv4 or IPv6 address or a host name without protocol and port"
        ],
    ),
    "brackets": (
        "127.0.0.1",
        "'[::1]'",
        ["7 mapping.machines[0].address: '[::1]' is not an IPv6 address; write it bare, such as fd00::1"],
    ),
    "no machines": (
        "\n    - {address: 127.0.0.1, nodes: 4}",
        " []",
        ["6 mapping.machines: the list is empty; give at least one {address: ..., nodes: ...}"],
    ),
    "one address twice": (
        "nodes: 4}",
        "nodes: 2}\n    - {address: 127.0.0.1, nodes: 2}",
        [
            "8 mapping.machines[1]: 127.0.0.1 is the address of machines[0] too; give "
            "each machine its own, or one entry with all its nodes"
        ],
    ),
    "count": (
        "nodes: 4",
        "nodes: 5",
        ["5 mapping: the machines carry 5 nodes, the graph has 4; correct either, they must be equal"],
    ),
    "length of a list": (
        "steps_per_round: 5",
        "steps_per_round: [5, 5, 5]",
        ["13 training.steps_per_round: must be one number, or one for each of the 4 ranks, not a list of 3"],
    ),
    "machine": (
        "nodes: 4}\n",
        "nodes: 2}\n    - {address: 10.0.0.2, nodes: 2}\nmachine: 2\n",
        ["9 machine: must be the index of a machine, 0..1, not 2"],
    ),
    "order of transforms": (
        "weights: metropolis_hastings",
        "transforms: [cast, cast]",
        [
            "14 sharing.transforms[1]: cast takes dense or sparse but cast gives "
            "quantized; leave one of them out"
        ],
    ),
    "a transform of the scheme": (
        "name: gossip, weights: metropolis_hastings",
        "name: jwins, fractions: []",
        ["14 sharing: top_k needs one fraction or more (jwins itself puts it into the chain)"],
    ),
    "a transform and the scheme": (
        "name: gossip, weights: metropolis_hastings",
        "name: choco, transforms: [{name: gaussian_noise, sigma: 1, scope: neighbor}]",
        [
            "14 sharing.transforms[0]: gaussian_noise sends each neighbor "
            "another payload, but choco needs the same payload for all"
        ],
    ),
    "complete graph": (
        "name: gossip",
        "name: all_reduce",
        [
            "14 sharing: all_reduce needs a graph where every node receives from every other, such as "
            "fully_connected; this one is not"
        ],
    ),
    "directed graph": (
        "ring.edges",
        "ring.edges, directed: true",
        ["14 sharing.weights: metropolis_hastings weights need an undirected graph; use uniform or file"],
    ),
    "key twice": ("seed: 1", "seed: 1\nseed: 2", ["3 seed: this key appears twice; the first is in line 2"]),
    "tag": (
        "seed: 1",
        "seed: !!python/object:os.system x",
        ["2 seed: the tag 'python/object:os.system' is not read; write a plain value"],
    ),
    "half a character": (
        "name: trial",
        'name: "\\ud800"',
        ["1 name: this text has a character that is not allowed (null, or half of a surrogate pair)"],
    ),
    "key that is a number": ("seed: 1", "1: seed", ["2: the key 1 is not text; put it in quotes"]),
    "key that is a list of a text's tag": (
        "seed: 1",
        "? !!str [a]\n: 1",
        ["2: a key is a string, not a list or a mapping"],
    ),
    "key that is a list": ("seed: 1", "? [a]\n: 1", ["2: a key is a string, not a list or a mapping"]),
    "merge": (
        "momentum: 0.9",
        "<<: {momentum: 0.9}",
        [
            "11 training.optimizer: merge keys (<<) are not read; write the keys out, or "
            "use an alias for a whole section"
        ],
    ),
    "several": (
        "rounds: 3\ngraph: {name: file, path: ring.edges}",
        "rounds: x\ngraph: ring\nmachin: 1",
        [
            "3 rounds: must be a whole number > 0, not 'x'",
            "4 graph.nodes: missing; it must be a whole number > 0",
            "5 machin: unknown key; did you mean 'machine'?",
        ],
    ),
    "name, a number": ("name: trial", "name: 5", ["1 name: must be text, not 5"]),
    "name, empty": (
        "name: trial",
        "name: ''",
        ["1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not ''"],
    ),
    "name, too long": (
        "name: trial",
        "name: " + "a" * 101,
        [
            "1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not "
            "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
        ],
    ),
    "name, a blank": (
        "name: trial",
        "name: my run",
        ["1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not 'my run'"],
    ),
    "name, a dot first": (
        "name: trial",
        "name: ../up",
        ["1 name: must be made of letters, digits, '_', '-' and '.', at most 100, not '../up'"],
    ),
    "seed, negative": ("seed: 1", "seed: -1", ["2 seed: must be a whole number >= 0, not -1"]),
    "seed, a fraction": ("seed: 1", "seed: 1.5", ["2 seed: must be a whole number >= 0, not 1.5"]),
    "seed, a list": ("seed: 1", "seed: [1]", ["2 seed: must be a whole number >= 0, not a list of 1"]),
    "seed, a truth": ("seed: 1", "seed: false", ["2 seed: must be a whole number >= 0, not false"]),
    "seed, with an exponent": ("seed: 1", "seed: 1e3", ["2 seed: must be a whole number >= 0, not 1000.0"]),
    "rounds, none": ("rounds: 3", "rounds: 0", ["3 rounds: must be a whole number > 0, not 0"]),
    "rounds, null": ("rounds: 3", "rounds: null", ["3 rounds: missing; it must be a whole number > 0"]),
    "rounds, infinite": ("rounds: 3", "rounds: .inf", ["3 rounds: .inf is not a finite number"]),
    "rounds, a mapping": (
        "rounds: 3",
        "rounds: {a: 1}",
        ["3 rounds: must be a whole number > 0, not a mapping"],
    ),
    "rounds, with a unit": (
        "rounds: 3",
        "rounds: 3 rounds",
        ["3 rounds: must be a whole number > 0, not '3 rounds'"],
    ),
    "rounds, 64 bits": (
        "rounds: 3",
        "rounds: 9223372036854775808",
        ["3 rounds: 9223372036854775808 is too large; whole numbers have at most 63 bits"],
    ),
    "device, a number": ("seed: 1", "device: 0", ["2 device: must be 'cpu' or 'cuda' or 'auto', not 0"]),
    "device, with an index": (
        "seed: 1",
        "device: cuda:0",
        ["2 device: must be 'cpu' or 'cuda' or 'auto', not 'cuda:0'"],
    ),
    "run_dir, a number": ("seed: 1", "run_dir: 5", ["2 run_dir: must be text or null, not 5"]),
    "machine, negative": (
        "seed: 1",
        "machine: -1",
        ["2 machine: must be a whole number >= 0 or null, not -1"],
    ),
    "machine, a name": (
        "seed: 1",
        "machine: node1",
        ["2 machine: must be a whole number >= 0 or null, not 'node1'"],
    ),
    "key in capitals": ("seed: 1", "Seed: 1", ["2 Seed: unknown key; did you mean 'seed'?"]),
    "key of another section": ("seed: 1", "batch_size: 3", ["2 batch_size: unknown key (known: ...)"]),
    "plural": (
        "failures: {deadline: 60}",
        "failure: {deadline: 60}",
        ["17 failure: unknown key; did you mean 'failures'?"],
    ),
    "graph, null": ("{name: file, path: ring.edges}", "null", ["4 graph: missing; name one of: ..."]),
    "graph, empty": ("{name: file, path: ring.edges}", "{}", ["4 graph.name: missing; name one of: ..."]),
    "graph, a number": (
        "{name: file, path: ring.edges}",
        "4",
        ["4 graph: must be a name, or a mapping with its options, not 4"],
    ),
    "graph, a list": (
        "{name: file, path: ring.edges}",
        "[ring]",
        ["4 graph: must be a name, or a mapping with its options, not a list of 1"],
    ),
    "graph, no nodes": (
        "{name: file, path: ring.edges}",
        "{name: ring, nodes: 0}",
        ["4 graph.nodes: must be a whole number > 0, not 0"],
    ),
    "graph, nodes with a point": (
        "{name: file, path: ring.edges}",
        "{name: ring, nodes: 4.0}",
        ["4 graph.nodes: must be a whole number > 0, not 4.0"],
    ),
    "graph, nodes in quotes": (
        "{name: file, path: ring.edges}",
        "{name: ring, nodes: '4'}",
        ["4 graph.nodes: must be a whole number > 0, not '4'"],
    ),
    "graph, far too many nodes": (
        "{name: file, path: ring.edges}",
        "{name: ring, nodes: 1000000000}",
        ["4 graph: 1,000,000,000 nodes are too many for a graph; at most 1,000,000"],
    ),
    "graph, a size it cannot have": (
        "{name: file, path: ring.edges}",
        "{name: hypercube, dimension: 17}",
        ["4 graph.dimension: must be a whole number >= 0 and <= 16, not 17"],
    ),
    "graph, degree too high": (
        "{name: file, path: ring.edges}",
        "{name: regular, nodes: 4, degree: 4}",
        ["4 graph: regular: degree must be below nodes, got degree 4 for 4 nodes"],
    ),
    "graph, degree odd": (
        "{name: file, path: ring.edges}",
        "{name: regular, nodes: 5, degree: 3}",
        ["4 graph: regular: nodes * degree must be even, got 5 * 3"],
    ),
    "graph, degree 1": (
        "{name: file, path: ring.edges}",
        "{name: regular, nodes: 4, degree: 1}",
        ["4 graph: regular: degree must be at least 2 to connect 4 nodes, got 1"],
    ),
    "graph, all three rules": (
        "{name: file, path: ring.edges}",
        "{name: small_world, nodes: 4, degree: 5, rewire: 0.1}",
        [
            "4 graph: small_world: degree must be below nodes, got degree 5 for 4 nodes",
            "4 graph: small_world: degree must be even, half of it on each side, got 5",
        ],
    ),
    "graph of one's own that changes and does not say so": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Changes'",
        [
            "4 graph: Changes declares static, but changes: targets(0, 0) is (1,), targets(0, 1) is (3,); "
            "set static = False, or give its period (AperiodicGraph or PeriodicGraph of "
            "decentnode.graph)"
        ],
    ),
    "graph of one's own, wrong period": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Late'",
        [
            "4 graph: Late declares that it repeats after 2 rounds, but does not: targets(0, 0) is (1,), "
            "targets(0, 2) is (2,); correct period (AperiodicGraph or PeriodicGraph of "
            "decentnode.graph)"
        ],
    ),
    "graph of one's own in parts": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Apart'",
        [
            "4 graph: Apart: the graph falls into 2 components, nodes 0 and 2 do not reach each other; "
            "add edges or set allow_disconnected = True"
        ],
    ),
    "graph of one's own with a lonely node": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Lonely'",
        ["4 graph: Lonely: 1 of 4 nodes have no neighbor (3); add edges or set allow_disconnected = True"],
    ),
    "graph of one's own, one way": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:OneWay'",
        [
            "4 graph: OneWay: targets(0, 0) has 1, but targets(1, 0) lacks 0; correct that, or set "
            "directed = True"
        ],
    ),
    "graph of one's own, itself": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Itself'",
        ["4 graph: Itself: targets(0, 0) must be ranks 0..3 other than 0, ascending, not (0,)"],
    ),
    "graph of one's own that raises": (
        "{name: file, path: ring.edges}",
        "'corpus_graphs:Raises'",
        ["4 graph: Raises: targets(0, 0) fails: KeyError: 0"],
    ),
    "graph, rewire": (
        "{name: file, path: ring.edges}",
        "{name: small_world, nodes: 4, degree: 2, rewire: 1.5}",
        ["4 graph.rewire: must be a number >= 0 and <= 1, not 1.5"],
    ),
    "graph, probability 0": (
        "{name: file, path: ring.edges}",
        "{name: erdos_renyi, nodes: 4, probability: 0}",
        [
            "4 graph: none of 100 draws of ErdosRenyi(nodes=4, seed=1, probability=0.0) "
            "was connected; take a probability above ln(n)/n = 0.347"
        ],
    ),
    "graph, probability not a number": (
        "{name: file, path: ring.edges}",
        "{name: erdos_renyi, nodes: 4, probability: .nan}",
        ["4 graph.probability: .nan is not a finite number"],
    ),
    "graph, two kinds of option": (
        "{name: file, path: ring.edges}",
        "{name: grid, rows: 2, colums: 2}",
        [
            "4 graph.colums: unknown option of grid; did you mean 'columns'?",
        ],
    ),
    "graph, options of a file": (
        "path: ring.edges",
        "path: ring.edges, nodes: 4",
        ["4 graph.nodes: unknown option of file (known: path, type, directed, allow_disconnected)"],
    ),
    "graph, type of a file": (
        "path: ring.edges",
        "path: ring.edges, type: csv",
        ["4 graph.type: must be 'edges' or 'adjacency' or 'auto', not 'csv'"],
    ),
    "graph, path is null": ("path: ring.edges", "path: null", ["4 graph.path: must be text, not null"]),
    "graph, path is a folder": (
        "path: ring.edges",
        "path: .",
        ["4 graph: {here}: cannot be read: Is a directory"],
    ),
    "graph, path of an unknown user": (
        "path: ring.edges",
        "path: ~nobody_here/ring.edges",
        ["4 graph.path: no usable path: '~nobody_here/ring.edges': there is no such user"],
    ),
    "graph, path too long": (
        "path: ring.edges",
        "path: " + "a" * 260 + ".edges",
        ["4 graph.path: no usable path: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...': File name too long"],
    ),
    "graph, short form of a missing file": (
        "{name: file, path: ring.edges}",
        "graphs/ring.edges",
        ["4 graph.path: no such file: {here}/graphs/ring.edges"],
    ),
    "graph, asymmetric file": (
        "path: ring.edges",
        "path: asymmetric.adj",
        [
            "4 graph: {here}/asymmetric.adj:3: node 1 lists 2, but node 2 does not list "
            "1; add it or set directed",
            "4 graph: {here}/asymmetric.adj:5: node 3 lists 0, but node 0 does not list "
            "3; add it or set directed",
        ],
    ),
    "machines, a number": (
        "\n    - {address: 127.0.0.1, nodes: 4}",
        " 4",
        ["6 mapping.machines: must be a list of mappings with address and nodes, not 4"],
    ),
    "machines, a mapping": (
        "\n    - {address: 127.0.0.1, nodes: 4}",
        " {address: 127.0.0.1, nodes: 4}",
        ["6 mapping.machines: must be a list of mappings with address and nodes, not a mapping"],
    ),
    "machines, of numbers": (
        "{address: 127.0.0.1, nodes: 4}",
        "4",
        ["7 mapping.machines[0]: must be a mapping with address and nodes, not 4"],
    ),
    "machines, without nodes": (
        ", nodes: 4}",
        "}",
        ["7 mapping.machines[0].nodes: missing; it must be a whole number > 0"],
    ),
    "machines, without address": (
        "{address: 127.0.0.1, ",
        "{",
        ["7 mapping.machines[0].address: missing; it must be text"],
    ),
    "machines, no node": (
        "nodes: 4",
        "nodes: 0",
        ["7 mapping.machines[0].nodes: must be a whole number > 0, not 0"],
    ),
    "machines, a fraction of a node": (
        "nodes: 4",
        "nodes: 1.5",
        ["7 mapping.machines[0].nodes: must be a whole number > 0, not 1.5"],
    ),
    "machines, missing": (
        "  machines:\n    - {address: 127.0.0.1, nodes: 4}",
        "  name: linear",
        ["5 mapping.machines: missing; it must be a list of mappings with address and nodes"],
    ),
    "mapping, unknown": (
        "mapping:\n",
        "mapping:\n  name: liner\n",
        ["6 mapping.name: unknown mapping 'liner'; did you mean 'linear'? (known: environment, linear)"],
    ),
    "mapping, unknown key": (
        "mapping:\n",
        "mapping:\n  hosts: 3\n",
        ["6 mapping.hosts: unknown option of linear (known: machines, rendezvous_port)"],
    ),
    "rendezvous port 0": (
        "mapping:\n",
        "mapping:\n  rendezvous_port: 0\n",
        ["6 mapping.rendezvous_port: must be a whole number > 0 and < 65536, not 0"],
    ),
    "rendezvous port 70000": (
        "mapping:\n",
        "mapping:\n  rendezvous_port: 70000\n",
        ["6 mapping.rendezvous_port: must be a whole number > 0 and < 65536, not 70000"],
    ),
    "rendezvous port, text": (
        "mapping:\n",
        "mapping:\n  rendezvous_port: http\n",
        ["6 mapping.rendezvous_port: must be a whole number > 0 and < 65536, not 'http'"],
    ),
    "address, empty": (
        "127.0.0.1",
        "''",
        ["7 mapping.machines[0].address: '' is not an address; give an IPv4 or IPv6 address or a host name"],
    ),
    "address, a number": ("127.0.0.1", "127", ["7 mapping.machines[0].address: must be text, not 127"]),
    "address, a URL": (
        "127.0.0.1",
        "'tcp://10.0.0.1'",
        [
            "7 mapping.machines[0].address: 'tcp://10.0.0.1' is more than an address; "
            "give an IPv4 or IPv6 address or a host name without protocol and port"
        ],
    ),
    "address, multicast": (
        "127.0.0.1",
        "224.0.0.1",
        [
            "7 mapping.machines[0].address: '224.0.0.1' is not the address of one "
            "machine; give the one that the others reach"
        ],
    ),
    "address, every IPv6": (
        "127.0.0.1",
        "'::'",
        [
            "7 mapping.machines[0].address: '::' is not the address of one machine; give "
            "the one that the others reach"
        ],
    ),
    "address, a long name": (
        "127.0.0.1",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.example",
        [
            "7 mapping.machines[0].address: "
            "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.example' "
            "is not an address; give an IPv4 or IPv6 address or a host name"
        ],
    ),
    "address, a blank": (
        "127.0.0.1",
        "'my host'",
        [
            "7 mapping.machines[0].address: 'my host' is not an address; give an IPv4 or "
            "IPv6 address or a host name"
        ],
    ),
    "address, three numbers": (
        "127.0.0.1",
        "10.0.1",
        [
            "7 mapping.machines[0].address: '10.0.1' is not an address; give an IPv4 or "
            "IPv6 address or a host name"
        ],
    ),
    "address, broken IPv6": (
        "127.0.0.1",
        "'fd00:::1'",
        ["7 mapping.machines[0].address: 'fd00:::1' is not an IPv6 address; write it bare, such as fd00::1"],
    ),
    "one IPv6 address twice": (
        "{address: 127.0.0.1, nodes: 4}",
        "{address: 'fd00::1', nodes: 2}\n    - {address: 'fd00:0::1', nodes: 2}",
        [
            "8 mapping.machines[1]: fd00:0::1 is the address of machines[0] too; give "
            "each machine its own, or one entry with all its nodes"
        ],
    ),
    "dataset, null": (
        "{name: digits, partition: {name: dirichlet, alpha: 0.5}}",
        "null",
        ["8 dataset: missing; name one of: " + DATASETS],
    ),
    "dataset, unknown": (
        "name: digits",
        "name: digit",
        [f"8 dataset.name: unknown dataset 'digit'; did you mean 'digits'? (known: {DATASETS})"],
    ),
    "dataset, option of another": (
        "name: digits",
        "name: digits, path: x",
        [
            "8 dataset.path: unknown option of digits (known: train_size, test_size, sample, partition, "
            "skew, validation)"
        ],
    ),
    "train_size 0": (
        "name: digits",
        "name: digits, train_size: 0",
        ["8 dataset.train_size: must be a whole number > 0 or null, not 0"],
    ),
    "train_size, a fraction": (
        "name: digits",
        "name: digits, train_size: 0.5",
        ["8 dataset.train_size: must be a whole number > 0 or null, not 0.5"],
    ),
    "test_size, negative": (
        "name: digits",
        "name: digits, test_size: -5",
        ["8 dataset.test_size: must be a whole number > 0 or null, not -5"],
    ),
    "variant": (
        "name: digits",
        "name: idx, variant: fashion",
        [
            "8 dataset.variant: must be 'fashion-mnist' or 'mnist' or 'kmnist' or "
            "'emnist-balanced' or 'emnist-byclass' or 'emnist-bymerge' or "
            "'emnist-digits' or 'emnist-letters' or 'emnist-mnist', not 'fashion'"
        ],
    ),
    "synthetic, too few samples": (
        "name: digits",
        "name: synthetic, samples_per_node: 4",
        ["8 dataset.samples_per_node: must be a whole number >= 5 or null, not 4"],
    ),
    "synthetic, negative": (
        "name: digits",
        "name: synthetic, alpha: -1",
        ["8 dataset.alpha: must be a number >= 0, not -1"],
    ),
    "quadratic, a zero": (
        "name: digits",
        "name: quadratic, a: [1, 0]",
        ["8 dataset.a[1]: must be a number > 0, not 0"],
    ),
    "quadratic, neither word nor list": (
        "name: digits",
        "name: quadratic, b: ranks",
        ["8 dataset.b: must be 'rank' or 'normal' or a list of numbers, not 'ranks'"],
    ),
    "partition, unknown": (
        "name: dirichlet",
        "name: dirichle",
        [
            "8 dataset.partition.name: unknown partition 'dirichle'; did you mean "
            "'dirichlet'? (known: dirichlet, iid, natural, quantity, shards, sizes)"
        ],
    ),
    "partition, a number": (
        "{name: dirichlet, alpha: 0.5}",
        "3",
        ["8 dataset.partition: must be a name, or a mapping with its options, not 3"],
    ),
    "natural with a rest of its own": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: natural, rest: drop}",
        ["8 dataset.partition.rest: must be 'pool' or 'refuse' or 'leave_out', not 'drop'"],
    ),
    "skew, not a list": (
        "partition: {name: dirichlet, alpha: 0.5}",
        "skew: rotation",
        ["8 dataset.skew: must be a list of skew, not 'rotation'"],
    ),
    "skew, unknown": (
        "partition: {name: dirichlet, alpha: 0.5}",
        "skew: [noise, {name: rotaton}]",
        [
            "8 dataset.skew[1].name: unknown skew 'rotaton'; did you mean 'rotation'? "
            "(known: color, label_noise, noise, rotation)"
        ],
    ),
    "skew, an option that is none": (
        "partition: {name: dirichlet, alpha: 0.5}",
        "skew: [{name: label_noise, rate: 1.5}]",
        [
            "8 dataset.skew[0].rate: must be a number >= 0 and <= 1 or a list of numbers >= 0 and <= 1, "
            "not 1.5"
        ],
    ),
    "validation, all of it": (
        "partition: {name: dirichlet, alpha: 0.5}",
        "validation: {source: test, size: 1.0}",
        ["8 dataset.validation.size: must be a whole number > 0 or a number > 0 and < 1, not 1.0"],
    ),
    "validation without a source": (
        "partition: {name: dirichlet, alpha: 0.5}",
        "validation: {size: 5}",
        ["8 dataset.validation.source: missing; it must be 'train' or 'test'"],
    ),
    "alpha 0": ("alpha: 0.5", "alpha: 0", ["8 dataset.partition.alpha: must be a number > 0, not 0"]),
    "alpha, negative": (
        "alpha: 0.5",
        "alpha: -0.5",
        ["8 dataset.partition.alpha: must be a number > 0, not -0.5"],
    ),
    "alpha, infinite": (
        "alpha: 0.5",
        "alpha: .inf",
        ["8 dataset.partition.alpha: .inf is not a finite number"],
    ),
    "min_size, negative": (
        "alpha: 0.5",
        "min_size: -1",
        ["8 dataset.partition.min_size: must be a whole number >= 0, not -1"],
    ),
    "ranks, negative": (
        "alpha: 0.5",
        "ranks: [0, -1]",
        ["8 dataset.partition.ranks[1]: must be a whole number >= 0, not -1"],
    ),
    "ranks, a number": (
        "alpha: 0.5",
        "ranks: 3",
        ["8 dataset.partition.ranks: must be a list of whole numbers >= 0 or null, not 3"],
    ),
    "labels_per_node 0": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: shards, labels_per_node: 0}",
        ["8 dataset.partition.labels_per_node: must be a whole number > 0, not 0"],
    ),
    "sizes, missing": (
        "{name: dirichlet, alpha: 0.5}",
        "sizes",
        ["8 dataset.partition.sizes: missing; it must be a list of numbers >= 0"],
    ),
    "sizes, negative": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: sizes, sizes: [0.5, -0.5]}",
        ["8 dataset.partition.sizes[1]: must be a number >= 0, not -0.5"],
    ),
    "model, null": (
        "{name: mlp, hidden: [8]}",
        "null",
        [
            "9 model: missing; name one of: "
            "celeba_cnn, cifar_cnn, cnn, gpt2, lenet, logistic_regression, lstm, matrix_factorization, mlp, "
            "quadratic, reddit_lstm, resnet18, resnet50, resnet8, shakespeare_lstm, transformer, vgg11, vit"
        ],
    ),
    "model, unknown": (
        "name: mlp",
        "name: MLP",
        [
            "9 model.name: unknown model 'MLP' (known: "
            "celeba_cnn, cifar_cnn, cnn, gpt2, lenet, logistic_regression, lstm, matrix_factorization, mlp, "
            "quadratic, reddit_lstm, resnet18, resnet50, resnet8, shakespeare_lstm, transformer, vgg11, vit)"
        ],
    ),
    "hidden, text": (
        "hidden: [8]",
        "hidden: ['8']",
        ["9 model.hidden[0]: must be a whole number > 0, not '8'"],
    ),
    "hidden, null": (
        "hidden: [8]",
        "hidden: null",
        ["9 model.hidden: must be a list of whole numbers > 0, not null"],
    ),
    "channels, three": (
        "{name: mlp, hidden: [8]}",
        "{name: cnn, channels: [1, 2, 3]}",
        [
            "9 model.channels: must be a list of exactly 2 (a whole number > 0, a whole "
            "number > 0), not a list of 3"
        ],
    ),
    "norm": (
        "{name: mlp, hidden: [8]}",
        "{name: resnet18, norm: layer}",
        ["9 model.norm: must be 'group' or 'batch', not 'layer'"],
    ),
    "start, text": (
        "{name: mlp, hidden: [8]}",
        "{name: quadratic, start: zero}",
        ["9 model.start: must be a number, not 'zero'"],
    ),
    "model, a module without a class": (
        "{name: mlp, hidden: [8]}",
        "'json:'",
        ["9 model: 'json:' names no class; write module:Class"],
    ),
    "model, not a network": (
        "{name: mlp, hidden: [8]}",
        "'json:JSONDecoder'",
        [
            "9 model: 'json:JSONDecoder' is no model; it must be a subclass of "
            "decentnode.models.base.Model or torch.nn.modules.module.Module"
        ],
    ),
    "model, relative module": (
        "{name: mlp, hidden: [8]}",
        "'.models:Net'",
        ["9 model: '.models:Net' names no class; write module:Class"],
    ),
    "model, a module with bad syntax": (
        "{name: mlp, hidden: [8]}",
        "'syntax:Net'",
        [
            "9 model: cannot import 'syntax:Net': No module named 'syntax' in {here}, "
            "beside the configuration, or installed"
        ],
    ),
    "model, a module that ends": (
        "{name: mlp, hidden: [8]}",
        "'quits:Net'",
        [
            "9 model: cannot import 'quits:Net': No module named 'quits' in {here}, "
            "beside the configuration, or installed"
        ],
    ),
    "model, file instead of module": (
        "{name: mlp, hidden: [8]}",
        "'outside.py:Net'",
        ["9 model: cannot import 'outside.py:Net': No module named 'outside'"],
    ),
    "optimizer, missing": (
        "  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n",
        "",
        ["10 training.optimizer: missing; name one of: ..."],
    ),
    "optimizer, null": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "null",
        ["11 training.optimizer: missing; name one of: ..."],
    ),
    "optimizer, a number": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "0.1",
        ["11 training.optimizer: must be a name, or a mapping with its options, not 0.1"],
    ),
    "optimizer, misspelled": (
        "name: SGD",
        "name: Adma",
        ["11 training.optimizer.name: unknown optimizer 'Adma'; did you mean 'Adamax'? (known: ...)"],
    ),
    "lr, text": ("lr: 0.1", "lr: '0.1'", ["11 training.optimizer.lr: must be a number, not '0.1'"]),
    "lr, null": ("lr: 0.1", "lr: null", ["11 training.optimizer.lr: must be a number, not null"]),
    "lr, a list": ("lr: 0.1", "lr: [0.1]", ["11 training.optimizer.lr: must be a number, not a list of 1"]),
    "momentum, negative": (
        "momentum: 0.9",
        "momentum: -0.9",
        ["11 training.optimizer: SGD: Invalid momentum value: -0.9"],
    ),
    "nesterov without momentum": (
        "momentum: 0.9",
        "nesterov: true",
        ["11 training.optimizer: SGD: Nesterov momentum requires a momentum and zero dampening"],
    ),
    "betas, one": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "{name: Adam, betas: [0.9]}",
        ["11 training.optimizer: Adam: tuple index out of range"],
    ),
    "betas, a number": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "{name: Adam, betas: 0.9}",
        ["11 training.optimizer: Adam: 'float' object is not subscriptable"],
    ),
    "betas, out of range": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "{name: Adam, betas: [0.9, 1.5]}",
        ["11 training.optimizer: Adam: Invalid beta parameter at index 1: 1.5"],
    ),
    "eps, negative": (
        "{name: SGD, lr: 0.1, momentum: 0.9}",
        "{name: Adam, eps: -1}",
        ["11 training.optimizer: Adam: Invalid epsilon value: -1.0"],
    ),
    "batch_size 0": (
        "batch_size: 16",
        "batch_size: 0",
        ["12 training.batch_size: must be a whole number > 0 or null, not 0"],
    ),
    "batch_size, negative": (
        "batch_size: 16",
        "batch_size: -1",
        ["12 training.batch_size: must be a whole number > 0 or null, not -1"],
    ),
    "batch_size, a fraction": (
        "batch_size: 16",
        "batch_size: 16.5",
        ["12 training.batch_size: must be a whole number > 0 or null, not 16.5"],
    ),
    "batch_size and batch_tokens": (
        "batch_size: 16",
        "batch_size: 16\n  batch_tokens: 64",
        ["10 training: give one of batch_size and batch_tokens, not both"],
    ),
    "epochs, negative": (
        "steps_per_round: 5",
        "epochs_per_round: -0.5",
        ["13 training.epochs_per_round: must be a number >= 0 or a list of numbers >= 0 or null, not -0.5"],
    ),
    "steps, an empty list": (
        "steps_per_round: 5",
        "steps_per_round: []",
        ["13 training.steps_per_round: must be one number, or one for each of the 4 ranks, not a list of 0"],
    ),
    "clip_norm 0": (
        "batch_size: 16",
        "clip_norm: 0",
        ["12 training.clip_norm: must be a number > 0 or null, not 0"],
    ),
    "clip_norm, infinite": (
        "batch_size: 16",
        "clip_norm: .inf",
        ["12 training.clip_norm: .inf is not a finite number"],
    ),
    "dtype": (
        "batch_size: 16",
        "dtype: float16",
        ["12 training.dtype: must be 'float64' or 'float32' or 'bfloat16', not 'float16'"],
    ),
    "amp": (
        "batch_size: 16",
        "amp: true",
        ["12 training.amp: must be 'bfloat16' or 'float16' or null, not true"],
    ),
    "amp and dtype": (
        "batch_size: 16",
        "dtype: float64\n  amp: bfloat16",
        ["13 training.amp: needs training.dtype: float32; float64 would lose its digits"],
    ),
    "accumulate": (
        "batch_size: 16",
        "accumulate: 0",
        ["12 training.accumulate: must be a whole number > 0, not 0"],
    ),
    "compile": (
        "batch_size: 16",
        "compile: fast",
        [
            "12 training.compile: must be true or false or 'default' or 'reduce-overhead' or 'max-autotune' "
            "or 'eager' or 'aot_eager', not 'fast'"
        ],
    ),
    "augmentation, unknown": (
        "batch_size: 16",
        "augmentation: [flip, {name: crp}]",
        ["12 training.augmentation[1].name: unknown augmentation 'crp'; did you mean 'crop'? (known: ...)"],
    ),
    "augmentation, no list": (
        "batch_size: 16",
        "augmentation: crop",
        ["12 training.augmentation: must be a list of augmentation, not 'crop'"],
    ),
    "augmentation, twice": (
        "batch_size: 16",
        "augmentation: [mixup, mixup]",
        ["12 training.augmentation: mixup mixes a batch once; name it once"],
    ),
    "privacy, unknown": (
        "batch_size: 16",
        "privacy: dp_sdg",
        ["12 training.privacy: unknown privacy 'dp_sdg'; did you mean 'dp_sgd'? (known: dp_sgd)"],
    ),
    "privacy, out of range": (
        "batch_size: 16",
        "privacy: {name: dp_sgd, clip: 0, epsilon: -1, delta: 1.0}",
        [
            "12 training.privacy.clip: must be a number > 0, not 0",
            "12 training.privacy.delta: must be a number > 0 and < 1, not 1.0",
            "12 training.privacy.epsilon: must be a number > 0 or null, not -1",
        ],
    ),
    "privacy without noise": (
        "batch_size: 16",
        "privacy: {name: dp_sgd, clip: 1, delta: 1.0e-5}",
        ["12 training.privacy: give noise, or epsilon, for which the noise is computed"],
    ),
    "privacy, sampling": (
        "batch_size: 16",
        "privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5, sampling: shuffle}",
        [
            "12 training.privacy.sampling: rdp covers poisson, not shuffle; use that, or accountant: none, "
            "which claims nothing"
        ],
    ),
    "privacy and others": (
        "batch_size: 16",
        "privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}\n  compile: true\n"
        "  augmentation: [mixup]\n  scheduler: ReduceLROnPlateau\n  batch_tokens: 100\n  amp: float16",
        [
            "13 training.compile: dp_sgd does not compile the gradients of samples; leave it out",
            "14 training.augmentation: mixup mixes samples, and dp_sgd bounds what each adds; leave it out",
            "15 training.scheduler: ReduceLROnPlateau reads training losses, which are not private",
            "16 training.batch_tokens: dp_sgd draws each sample by itself; use batch_size",
            "17 training.amp: float16 scales losses, and dp_sgd clips gradients; use bfloat16",
        ],
    ),
    "privacy, float formats and LBFGS": (
        "optimizer: {name: SGD, lr: 0.1, momentum: 0.9}",
        "optimizer: LBFGS\n  dtype: bfloat16\n  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}",
        [
            "11 training.optimizer: LBFGS takes several gradients in a step, and each spends; use SGD",
            "12 training.dtype: dp_sgd clips exactly, which bfloat16 cannot; use float32",
        ],
    ),
    "schedule_step": (
        "batch_size: 16",
        "schedule_step: epoch",
        ["12 training.schedule_step: must be 'round' or 'step', not 'epoch'"],
    ),
    "memory_format": (
        "batch_size: 16",
        "memory_format: channels-last",
        ["12 training.memory_format: must be 'auto' or 'contiguous' or 'channels_last', not 'channels-last'"],
    ),
    "mix_buffers": (
        "batch_size: 16",
        "mix_buffers: 1",
        ["12 training.mix_buffers: must be true or false, not 1"],
    ),
    "scheduler, unknown": (
        "batch_size: 16",
        "scheduler: CosineAnnealing",
        [
            "12 training.scheduler: unknown scheduler 'CosineAnnealing'; did you mean "
            "'CosineAnnealingLR'? (known: ...)"
        ],
    ),
    "scheduler, step 0": (
        "batch_size: 16",
        "scheduler: {name: StepLR, step_size: 0}",
        ["12 training.scheduler: StepLR: cannot be stepped once per round: integer modulo by zero"],
    ),
    "scheduler, text": (
        "batch_size: 16",
        "scheduler: {name: StepLR, step_size: ten}",
        [
            "12 training.scheduler: StepLR: cannot be stepped once per round: "
            "unsupported operand type(s) for %: 'int' and 'str'"
        ],
    ),
    "scheduler, T_max 0": (
        "batch_size: 16",
        "scheduler: {name: CosineAnnealingLR, T_max: 0}",
        [
            "12 training.scheduler: CosineAnnealingLR: cannot be stepped once per round: "
            "integer modulo by zero"
        ],
    ),
    "scheduler, milestones": (
        "batch_size: 16",
        "scheduler: {name: MultiStepLR, milestones: 3}",
        ["12 training.scheduler: MultiStepLR: 'int' object is not iterable"],
    ),
    "scheduler, not for YAML": (
        "batch_size: 16",
        "scheduler: {name: LambdaLR}",
        ["12 training.scheduler.name: unknown scheduler 'LambdaLR' (known: ...)"],
    ),
    "scheduler, a gamma that is text": (
        "batch_size: 16",
        "scheduler: {name: ExponentialLR, gamma: x}",
        [
            "12 training.scheduler: ExponentialLR: cannot be stepped once per round: "
            "can't multiply sequence by non-int of type 'float'"
        ],
    ),
    "loss, unknown": (
        "batch_size: 16",
        "loss: CrossEntropy",
        ["12 training.loss: unknown loss 'CrossEntropy'; did you mean 'CrossEntropyLoss'? (known: ...)"],
    ),
    "loss, its option": (
        "batch_size: 16",
        "loss: {name: CrossEntropyLoss, label_smoothing: 2}",
        [
            "12 training.loss: CrossEntropyLoss: no loss of scores and labels: "
            "label_smoothing must be between 0.0 and 1.0. Got: 2"
        ],
    ),
    "loss, its weights": (
        "batch_size: 16",
        "loss: {name: CrossEntropyLoss, weight: 3}",
        [
            "12 training.loss: CrossEntropyLoss: cannot assign 'int' object to buffer "
            "'weight' (torch Tensor or None required)"
        ],
    ),
    "loss, of three inputs": (
        "batch_size: 16",
        "loss: TripletMarginLoss",
        ["12 training.loss: unknown loss 'TripletMarginLoss'; did you mean 'MultiMarginLoss'? (known: ...)"],
    ),
    "training, a list": (
        "training:\n",
        "training: []\nname2:\n",
        [
            "10 training: must be a mapping with optimizer and steps_per_round or "
            "epochs_per_round, not a list of 0",
            "11 name2: unknown key; did you mean 'name'?",
        ],
    ),
    "sharing, a number": (
        "{name: gossip, weights: metropolis_hastings}",
        "1",
        ["14 sharing: must be a name, or a mapping with its options, not 1"],
    ),
    "sharing, an option of another": (
        "name: gossip",
        "name: gossip, gamma: 0.5",
        ["14 sharing.gamma: unknown option of gossip (known: fill, weights, transforms)"],
    ),
    "fill": (
        "name: gossip",
        "name: gossip, fill: mean",
        ["14 sharing.fill: must be 'own' or 'zero', not 'mean'"],
    ),
    "weights, unknown": (
        "weights: metropolis_hastings",
        "weights: metropolis",
        [
            "14 sharing.weights: unknown weights 'metropolis'; did you mean "
            "'metropolis_hastings'? (known: file, from_graph, metropolis_hastings, uniform)"
        ],
    ),
    "weights, a number": (
        "weights: metropolis_hastings",
        "weights: 0.5",
        ["14 sharing.weights: must be a name, or a mapping with its options, not 0.5"],
    ),
    "weights, a file without its path": (
        "weights: metropolis_hastings",
        "weights: file",
        ["14 sharing.weights.path: missing; it must be text"],
    ),
    "weights, a missing file": (
        "weights: metropolis_hastings",
        "weights: {name: file, path: w.txt}",
        ["14 sharing.weights.path: no such file: {here}/w.txt"],
    ),
    "weights, a broken file": (
        "weights: metropolis_hastings",
        "weights: {name: file, path: bad_weights.txt}",
        [
            "14 sharing.weights: {here}/bad_weights.txt:1: 4 weights in a file of 1 "
            "rows; the matrix is n times n",
            "14 sharing.weights: {here}/bad_weights.txt:1: the weights that node 1 gives "
            "sum to 0; they must sum to 1",
            "14 sharing.weights: {here}/bad_weights.txt:1: the weights that node 2 gives "
            "sum to 0; they must sum to 1",
            "14 sharing.weights: {here}/bad_weights.txt:1: the weights that node 3 gives "
            "sum to 0; they must sum to 1",
        ],
    ),
    "gamma 0": (
        "name: gossip",
        "name: choco, gamma: 0",
        ["14 sharing.gamma: must be a number > 0 and <= 1, not 0"],
    ),
    "gamma 2": (
        "name: gossip",
        "name: choco, gamma: 2",
        ["14 sharing.gamma: must be a number > 0 and <= 1, not 2"],
    ),
    "moniqua, bits": (
        "name: gossip",
        "name: moniqua, bits: 9",
        ["14 sharing.bits: must be a whole number >= 1 and <= 8, not 9"],
    ),
    "beta 1": (
        "name: gossip",
        "name: quasi_global, beta: 1",
        ["14 sharing.beta: must be a number >= 0 and < 1, not 1"],
    ),
    "stc, a server of another graph": (
        "name: gossip",
        "name: stc, server: 9",
        ["14 sharing: stc with server 9 needs a star around that rank; this graph is none"],
    ),
    "secure_aggregation, bits": (
        "name: gossip",
        "name: secure_aggregation, bits: 16",
        ["14 sharing.bits: must be 32 or 64, not 16"],
    ),
    "jwins, an unknown wavelet": (
        "name: gossip",
        "name: jwins, wavelet: sym99",
        [
            "14 sharing: wavelet knows no family 'sym99'; did you mean 'sym9'? (jwins "
            "itself puts it into the chain)"
        ],
    ),
    "relay_sum on a ring": (
        "name: gossip",
        "name: relay_sum",
        [
            "14 sharing: relay_sum needs a graph that is a tree, such as chain, star or "
            "binary_tree; this one is not"
        ],
    ),
    "fed_avg without a server": (
        "name: gossip",
        "name: fed_avg",
        ["14 sharing: fed_avg needs a graph with a server, such as federated; file has none"],
    ),
    "gossip with a server": (
        "{name: file, path: ring.edges}",
        "{name: federated, nodes: 4}",
        [
            "14 sharing: gossip is for peers, but federated has a server; use one of: fed_adam, fed_avg, ...",
            "14 sharing.weights: metropolis_hastings weights need an undirected graph; use uniform or file",
        ],
    ),
    "two numbers of clients": (
        "{name: file, path: ring.edges}",
        "{name: federated, nodes: 4, rate: 0.5, clients: 2}",
        ["4 graph: federated: give the rate or the number of clients, not both"],
    ),
    "choco_per_edge that forgets at once": (
        "name: gossip",
        "name: choco_per_edge, memory: 0",
        ["14 sharing.memory: must be a whole number > 0 or null, not 0"],
    ),
    "choco_per_edge with a selection by change": (
        "name: gossip, weights: metropolis_hastings",
        "name: choco_per_edge, transforms: [{name: top_k, by: change}]",
        ["14 sharing.transforms[0]: top_k remembers one thing that was sent to all, but ..."],
    ),
    "levels on one level": (
        "name: gossip",
        "name: levels",
        ["14 sharing: levels needs a graph of two levels, such as hierarchical; file has one"],
    ),
    "option of a level": (
        "name: gossip",
        "name: levels, inner: {name: gossip, fil: own}",
        ["14 sharing.inner.fil: unknown option of gossip; did you mean 'fill'?"],
    ),
    "a walk on nothing": (
        "{name: file, path: ring.edges}",
        "{name: token_walk, nodes: 4}",
        ["4 graph: token_walk: give either degree or path"],
    ),
    "clusters that do not fit": (
        "{name: file, path: ring.edges}",
        "{name: hierarchical, nodes: 4, nodes_per_cluster: 3}",
        ["4 graph: hierarchical: nodes must be a multiple of nodes_per_cluster, got 4 and 3"],
    ),
    "clusters of too many nodes": (
        "{name: file, path: ring.edges}",
        "{name: hierarchical, nodes: 2000000, nodes_per_cluster: 1}",
        ["4 graph: 2,000,000 nodes are too many for a graph; at most 1,000,000"],
    ),
    "choco on a directed graph": (
        "path: ring.edges}",
        "path: ring.edges, directed: true}\nsharing2: 1",
        [
            "5 sharing2: unknown key; did you mean 'sharing'?",
            "15 sharing.weights: metropolis_hastings weights need an undirected graph; use uniform or file",
        ],
    ),
    "a scheme that needs plain SGD": (
        "name: gossip",
        "name: gradient_tracking",
        [
            "11 training.optimizer: gradient_tracking needs plain SGD, as its equations "
            "are about gradient steps; not momentum 0.9"
        ],
    ),
    "a scheme that cannot lose a node": (
        "failures: {deadline: 60}",
        "failures: {on_loss: continue}\nsharing: choco",
        ["18 sharing: this key appears twice; the first is in line 14"],
    ),
    "transforms, a mapping": (
        "weights: metropolis_hastings",
        "transforms: {name: cast}",
        ["14 sharing.transforms: must be a list of transforms, not a mapping"],
    ),
    "transforms, a number in the list": (
        "weights: metropolis_hastings",
        "transforms: [5]",
        ["14 sharing.transforms[0]: must be a name, or a mapping with its options, not 5"],
    ),
    "transforms, null in the list": (
        "weights: metropolis_hastings",
        "transforms: [null]",
        ["14 sharing.transforms[0]: missing; name one of: ..."],
    ),
    "transforms, unknown": (
        "weights: metropolis_hastings",
        "transforms: [topk]",
        ["14 sharing.transforms[0]: unknown transform 'topk'; did you mean 'top_k'? (known: ...)"],
    ),
    "fraction 0": (
        "weights: metropolis_hastings",
        "transforms: [{name: top_k, fraction: 0}]",
        [
            "14 sharing.transforms[0].fraction: must be a number > 0 and <= 1 or a list "
            "of numbers > 0 and <= 1, not 0"
        ],
    ),
    "fraction in percent": (
        "weights: metropolis_hastings",
        "transforms: [{name: top_k, fraction: 10}]",
        [
            "14 sharing.transforms[0].fraction: must be a number > 0 and <= 1 or a list "
            "of numbers > 0 and <= 1, not 10"
        ],
    ),
    "fraction, not a number": (
        "weights: metropolis_hastings",
        "transforms: [{name: top_k, fraction: .nan}]",
        ["14 sharing.transforms[0].fraction: .nan is not a finite number"],
    ),
    "fractions, one out of range": (
        "weights: metropolis_hastings",
        "transforms: [{name: top_k, fraction: [0.1, 2]}]",
        ["14 sharing.transforms[0].fraction[1]: must be a number > 0 and <= 1, not 2"],
    ),
    "bits": (
        "weights: metropolis_hastings",
        "transforms: [{name: uniform, bits: 3}]",
        ["14 sharing.transforms[0].bits: must be 1 or 2 or 4 or 8, not 3"],
    ),
    "levels": (
        "weights: metropolis_hastings",
        "transforms: [{name: qsgd, levels: 200}]",
        ["14 sharing.transforms[0].levels: must be a whole number >= 1 and <= 127, not 200"],
    ),
    "block": (
        "weights: metropolis_hastings",
        "transforms: [{name: sign, scale: block, block: 0}]",
        ["14 sharing.transforms[0].block: must be a whole number > 0, not 0"],
    ),
    "rank of a product": (
        "weights: metropolis_hastings",
        "transforms: [{name: low_rank, rank: 0}]",
        ["14 sharing.transforms[0].rank: must be a whole number > 0, not 0"],
    ),
    "norm missing": (
        "weights: metropolis_hastings",
        "transforms: [clip]",
        ["14 sharing.transforms[0].norm: missing; it must be a number > 0"],
    ),
    "sigma, negative": (
        "weights: metropolis_hastings",
        "transforms: [{name: gaussian_noise, sigma: -1}]",
        ["14 sharing.transforms[0].sigma: must be a number > 0, not -1"],
    ),
    "wavelet, unknown": (
        "weights: metropolis_hastings",
        "transforms: [{name: wavelet, family: syn2}]",
        ["14 sharing.transforms[0]: wavelet knows no family 'syn2'; did you mean 'sym2'?"],
    ),
    "level of zstd": (
        "weights: metropolis_hastings",
        "transforms: [{name: zstd, level: 23}]",
        ["14 sharing.transforms[0].level: must be a whole number >= -7 and <= 22, not 23"],
    ),
    "a byte coder first": (
        "weights: metropolis_hastings",
        "transforms: [zstd, {name: top_k, fraction: 0.1}]",
        ["14 sharing.transforms[1]: top_k takes dense but zstd gives bytes; put it before zstd"],
    ),
    "an index coder without indices": (
        "weights: metropolis_hastings",
        "transforms: [rice]",
        [
            "14 sharing.transforms[0]: rice takes quantized or sparse but the signal "
            "gives dense; put one that selects or rounds before it, such as top_k"
        ],
    ),
    "a selection after rounding": (
        "weights: metropolis_hastings",
        "transforms: [cast, top_k]",
        ["14 sharing.transforms[1]: top_k takes dense but cast gives quantized; put it before cast"],
    ),
    "noise after a selection": (
        "weights: metropolis_hastings",
        "transforms: [top_k, {name: gaussian_noise, sigma: 1}]",
        ["14 sharing.transforms[1]: gaussian_noise takes dense but top_k gives sparse; put it before top_k"],
    ),
    "error feedback around nothing": (
        "weights: metropolis_hastings",
        "transforms: [error_feedback]",
        [
            "14 sharing.transforms[0]: error_feedback corrects the transforms after it, "
            "and there are none; add one, such as sign",
        ],
    ),
    "error feedback before a selection of models": (
        "weights: metropolis_hastings",
        "transforms: [error_feedback, top_k]",
        [
            "14 sharing.transforms: gossip takes error feedback before transforms that round, not before one "
            "that selects; leave it out"
        ],
    ),
    "two coders": (
        "weights: metropolis_hastings",
        "transforms: [zstd, lz4]",
        [
            "14 sharing.transforms[1]: lz4 takes dense or quantized or sparse but zstd "
            "gives bytes; leave one of them out"
        ],
    ),
    "communication, unknown": (
        "communication: zeromq",
        "communication: zmq",
        [
            "15 communication: unknown communication 'zmq'; did you mean 'zeromq'? "
            "(known: hybrid, inproc, torch_distributed, zeromq)"
        ],
    ),
    "a group of nodes that are not there": (
        "communication: zeromq",
        "communication: {name: hybrid, group_ranks: [0, 9]}",
        ["15 communication.group_ranks: must be ranks of the 4 nodes of the graph, not 9"],
    ),
    "communication, a number": (
        "communication: zeromq",
        "communication: 5",
        ["15 communication: must be a name, or a mapping with its options, not 5"],
    ),
    "local": (
        "communication: zeromq",
        "communication: {local: shm}",
        ["15 communication.local: must be 'shared_memory' or 'ipc' or 'tcp', not 'shm'"],
    ),
    "base_port 0": (
        "communication: zeromq",
        "communication: {base_port: 0}",
        ["15 communication.base_port: must be a whole number > 0 and < 65536, not 0"],
    ),
    "base_port, text": (
        "communication: zeromq",
        "communication: {base_port: '29600'}",
        ["15 communication.base_port: must be a whole number > 0 and < 65536, not '29600'"],
    ),
    "nodes_per_process 0": (
        "communication: zeromq",
        "communication: {nodes_per_process: 0}",
        ["15 communication.nodes_per_process: must be a whole number > 0, not 0"],
    ),
    "options of another transport": (
        "communication: zeromq",
        "communication: {name: inproc, base_port: 29600}",
        ["15 communication.base_port: unknown option of inproc (known: overlap)"],
    ),
    "ports beyond the last": (
        "communication: zeromq",
        "communication: {local: tcp, base_port: 65533}",
        ["15 communication.base_port: the ports 65533..65536 are needed, the last that exists is 65535"],
    ),
    "every, negative": (
        "every: 10",
        "every: -1",
        ["16 evaluation.every: must be a whole number >= 0, not -1"],
    ),
    "every, text": (
        "every: 10",
        "every: never",
        ["16 evaluation.every: must be a whole number >= 0, not 'never'"],
    ),
    "evaluation, unknown key": (
        "every: 10",
        "evry: 10",
        ["16 evaluation.evry: unknown key; did you mean 'every'?"],
    ),
    "evaluation, batch_size 0": (
        "every: 10",
        "batch_size: 0",
        ["16 evaluation.batch_size: must be a whole number > 0 or null, not 0"],
    ),
    "evaluation, more nodes than there are": (
        "every: 10",
        "nodes: 5",
        ["16 evaluation.nodes: must be at most the 4 nodes of the graph, not 5"],
    ),
    "evaluation, a rank that is not there": (
        "every: 10",
        "nodes: [0, 4]",
        ["16 evaluation.nodes: must be ranks of the graph, 0..3, not 4"],
    ),
    "evaluation, no nodes": (
        "every: 10",
        "nodes: []",
        ["16 evaluation.nodes: no node is given; give a number or ranks, or leave it out for all"],
    ),
    "evaluation, background as text": (
        "every: 10",
        "background: 'yes'",
        ["16 evaluation.background: must be true or false or a whole number > 0, not 'yes'"],
    ),
    "figures": (
        "every: 10",
        "figures: 'false'",
        ["16 evaluation.figures: must be true or false, not 'false'"],
    ),
    "evaluation, a list": (
        "{every: 10}",
        "[10]",
        [
            "16 evaluation: must be a mapping with every, final, background, nodes, samples, batch_size, "
            "average_model, figures, not a list of 1"
        ],
    ),
    "final, text": (
        "every: 10",
        "final: no",
        ["16 evaluation.final: must be true or false, not 'no'"],
    ),
    "records, not a mapping": (
        "evaluation: {every: 10}",
        "records: {models: 5}",
        ["16 records.models: must be a mapping with every or null, not 5"],
    ),
    "records, negative": (
        "evaluation: {every: 10}",
        "records: {models: {every: -1}}",
        ["16 records.models.every: must be a whole number >= 0, not -1"],
    ),
    "on_loss": (
        "deadline: 60",
        "on_loss: ignore",
        ["17 failures.on_loss: must be 'auto' or 'continue' or 'stop', not 'ignore'"],
    ),
    "on_loss, wait": (
        "deadline: 60",
        "on_loss: wait",
        [
            "17 failures.on_loss: 'wait' was removed; use on_loss: continue with restart.attempts, or "
            "on_loss: stop and `decentnode resume`"
        ],
    ),
    "deadline, negative": (
        "deadline: 60",
        "deadline: -1",
        ["17 failures.deadline: must be a number > 0, not -1"],
    ),
    "deadline, infinite": (
        "deadline: 60",
        "deadline: .inf",
        ["17 failures.deadline: .inf is not a finite number"],
    ),
    "deadline, with a unit": (
        "deadline: 60",
        "deadline: 60s",
        ["17 failures.deadline: must be a number > 0, not '60s'"],
    ),
    "grace, negative": ("deadline: 60", "grace: -1", ["17 failures.grace: must be a number >= 0, not -1"]),
    "start_deadline 0": (
        "deadline: 60",
        "start_deadline: 0",
        ["17 failures.start_deadline: must be a number > 0, not 0"],
    ),
    "stop_deadline 0": (
        "deadline: 60",
        "stop_deadline: 0",
        ["17 failures.stop_deadline: must be a number > 0, not 0"],
    ),
    "start, unknown": (
        "deadline: 60",
        "start: most",
        ["17 failures.start: must be 'all' or 'at_least N' with the number of nodes, not 'most'"],
    ),
    "start, at least nothing": (
        "deadline: 60",
        "start: at_least 0",
        ["17 failures.start: must be 'all' or 'at_least N' with the number of nodes, not 'at_least 0'"],
    ),
    "start, a number": ("deadline: 60", "start: 3", ["17 failures.start: must be text, not 3"]),
    "start, at least too many": (
        "deadline: 60",
        "start: at_least 5",
        ["17 failures.start: must be at most the 4 nodes of the graph, not 5"],
    ),
    "start without all, where a loss stops the run": (
        "deadline: 60",
        "start: at_least 3, on_loss: stop",
        [
            "17 failures.start: would end in round 1 with failures.on_loss: stop; use continue there",
        ],
    ),
    "restart, a number": (
        "deadline: 60",
        "restart: 3",
        ["17 failures.restart: must be a mapping with attempts, not 3"],
    ),
    "restart, negative": (
        "deadline: 60",
        "restart: {attempts: -1}",
        ["17 failures.restart.attempts: must be a whole number >= 0, not -1"],
    ),
    "restart, unknown key": (
        "deadline: 60",
        "restart: {attemps: 1}",
        ["17 failures.restart.attemps: unknown key; did you mean 'attempts'?"],
    ),
    "failures, unknown key": (
        "deadline: 60",
        "timeout: 60",
        [
            "17 failures.timeout: unknown key (known: on_loss, deadline, grace, "
            "start_deadline, stop_deadline, start, restart, allow_different_code)"
        ],
    ),
    "failures, text": (
        "{deadline: 60}",
        "stop",
        [
            "17 failures: must be a mapping with on_loss, deadline, grace, "
            "start_deadline, stop_deadline, start, restart, allow_different_code, not 'stop'"
        ],
    ),
    "checkpoint, negative": (
        "seed: 1",
        "checkpoint: {every: -1}",
        ["2 checkpoint.every: must be a whole number >= 0, not -1"],
    ),
    "checkpoint, a number": (
        "seed: 1",
        "checkpoint: 10",
        ["2 checkpoint: must be a mapping with every, not 10"],
    ),
    "checkpoint, unknown key": (
        "seed: 1",
        "checkpoint: {evry: 10}",
        ["2 checkpoint.evry: unknown key; did you mean 'every'?"],
    ),
    "duplicate in a section": (
        "batch_size: 16",
        "batch_size: 16\n  batch_size: 32",
        ["13 training.batch_size: this key appears twice; the first is in line 12"],
    ),
    "duplicate section": (
        "communication: zeromq",
        "communication: zeromq\nmodel: lenet",
        ["16 model: this key appears twice; the first is in line 9"],
    ),
    "duplicate in braces": (
        "every: 10",
        "every: 10, every: 20",
        ["16 evaluation.every: this key appears twice; the first is in line 16"],
    ),
    "tab as indent": ("  batch_size", "\tbatch_size", ["12: a tab; YAML is indented with spaces"]),
    "indent": (
        "  batch_size",
        "   batch_size",
        [
            "12: not valid YAML: expected <block end>, but found '<block mapping "
            "start>'; the entries of one section begin in the same column"
        ],
    ),
    "no space after the colon": (
        "seed: 1",
        "seed:1",
        ["2: not valid YAML: could not find expected ':'; write 'key: value', with a blank after the colon"],
    ),
    "quote without its end": (
        "name: trial",
        "name: 'trial",
        ["1: not valid YAML: found unexpected end of stream; a quote that begins here has no end"],
    ),
    "bracket without its end": (
        "hidden: [8]",
        "hidden: [8",
        [
            "9: not valid YAML: expected ',' or ']', but got '}'; close what is open "
            "with } or ], and put commas between its entries"
        ],
    ),
    "bad escape": (
        "name: trial",
        'name: "\\q"',
        [
            "1: not valid YAML: found unknown escape character 'q'; write \\\\ for a "
            "backslash, or use single quotes"
        ],
    ),
    "anchor without a name": (
        "seed: 1",
        "seed: & 1",
        [
            "2: not valid YAML: expected alphabetic or numeric character, but found ' '; "
            "put text that begins with &, * or % in quotes"
        ],
    ),
    "alias of nothing": (
        "seed: 1",
        "seed: *one",
        ["2: not valid YAML: found undefined alias 'one'; put text that begins with * in quotes"],
    ),
    "a percent sign": (
        "seed: 1",
        "%seed: 1",
        [
            "2: not valid YAML: expected alphabetic or numeric character, but found ':'; "
            "put text that begins with &, * or % in quotes"
        ],
    ),
    "an at sign": (
        "seed: 1",
        "seed: @1",
        [
            "2: not valid YAML: found character '@' that cannot start any token; put "
            "text that begins with it in quotes"
        ],
    ),
    "a directive": (
        "name: trial",
        "%YAML 9.9\n---\nname: trial",
        ["1: not valid YAML: found incompatible YAML document (version 1.* is required)"],
    ),
    "a block text": ("seed: 1", "seed: |\n  1", ["2 seed: must be a whole number >= 0, not '1\\n'"]),
    "a null key": ("seed: 1", "~: 1", ["2: the key ~ is not text; put it in quotes"]),
    "a date": ("seed: 1", "seed: 2026-11-21", ["2 seed: must be a whole number >= 0, not '2026-11-21'"]),
    "a comma instead of a point": (
        "lr: 0.1",
        "lr: 0,1",
        ["11 training.optimizer: the key 1 is not text; put it in quotes"],
    ),
    "binary tag": (
        "name: trial",
        "name: !!binary aGVsbG8=",
        ["1 name: the tag 'binary' is not read; write a plain value"],
    ),
    "set tag": (
        "hidden: [8]",
        "hidden: !!set {8}",
        [
            "9 model.hidden: the key 8 is not text; put it in quotes",
            "9 model.hidden: must be a list of whole numbers > 0, not a mapping",
        ],
    ),
    "float tag": ("seed: 1", "seed: !!float x", ["2 seed: 'x' is not a number"]),
    "int tag": ("seed: 1", "seed: !!int '0b1'", ["2 seed: '0b1' is not a number"]),
    "many digits": (
        "seed: 1",
        "seed: 9999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "9999999999999999999999999999999999999999999999999999999999999999999999999999"
        "999999999999999999999999999999999999999999999999999999999999999999",
        [
            "2 seed: 9999999999999999999999999999999999999999... is too large; whole "
            "numbers have at most 63 bits"
        ],
    ),
    "task, unknown": (
        "seed: 1",
        "task: clasification",
        ["2 task: unknown task 'clasification'; did you mean 'classification'? (known: ...)"],
    ),
    "task, an option of another": (
        "seed: 1",
        "task: {name: next_token, top_k: [5]}",
        ["2 task.top_k: unknown option of next_token"],
    ),
    "writers, a mapping": (
        "seed: 1",
        "records: {writers: {name: csv}}",
        ["2 records.writers: must be a list of writers, not a mapping"],
    ),
    "writers, unknown": (
        "seed: 1",
        "records: {writers: [csv, tensorbord]}",
        ["2 records.writers[1]: unknown writer 'tensorbord'; did you mean 'tensorboard'? (known: ...)"],
    ),
    "writers, an option of another": (
        "seed: 1",
        "records: {writers: [{name: csv, per_rank: true}]}",
        ["2 records.writers[0].per_rank: unknown option of csv (known: file)"],
    ),
    "writers, a mode that is not there": (
        "seed: 1",
        "records: {writers: [{name: wandb, mode: of}]}",
        ["2 records.writers[0].mode: must be 'online' or 'offline' or 'disabled' or null, not 'of'"],
    ),
    "writers, a class of another kind": (
        "seed: 1",
        "records: {writers: ['corpus_graphs:Honest']}",
        [
            "2 records.writers[0]: 'corpus_graphs:Honest' is no writer; it must be a subclass of "
            "decentnode.results.writers.base.Writer"
        ],
    ),
    "adversaries, unknown": (
        "seed: 1",
        "adversaries: [{name: sign_flp, ranks: [1]}]",
        ["2 adversaries[0].name: unknown attack 'sign_flp'; did you mean 'sign_flip'? (known: ...)"],
    ),
    "adversaries, a rank that is not there": (
        "seed: 1",
        "adversaries: [{name: sign_flip, ranks: [4]}]",
        ["2 adversaries[0].ranks: rank 4 does not exist; the graph has 0..3"],
    ),
    "adversaries, two attacks of a rank": (
        "seed: 1",
        "adversaries: [{name: sign_flip, ranks: [1]}, {name: noise, ranks: [2, 1]}]",
        ["2 adversaries[1].ranks: rank 1 already makes the attack of adversaries[0]; name it once"],
    ),
    "adversaries, a victim that is no neighbor": (
        "seed: 1",
        "adversaries: [{name: membership, ranks: [0], victims: [2]}]",
        ["2 adversaries[0].victims: rank 2 is no neighbor of ranks 0; these are 1, 3"],
    ),
    "adversaries, a link that is not there": (
        "seed: 1",
        "adversaries: [{name: record, links: [[1, 3]]}]",
        ["2 adversaries[0].links: ranks 1 and 3 never exchange in this graph; name ranks that do"],
    ),
    "adversaries, samples that an eavesdropper lacks": (
        "seed: 1",
        "adversaries: [{name: lira, links: [[0, 1]]}]",
        [
            "2 adversaries[0].public: lira needs samples, and an eavesdropper has none; give it a share of "
            "the test samples, such as public: 0.5, or name ranks"
        ],
    ),
    "adversaries, samples that no party has": (
        "seed: 1",
        "adversaries: [{name: linkability, ranks: [0], method: loss}]",
        [
            "2 adversaries[0].method: loss needs the samples of the candidates, which no party has; "
            "knows_samples: true grants them, and distance and timing need none"
        ],
    ),
    "adversaries, nobody listens": (
        "seed: 1",
        "adversaries: [{name: dlg}]",
        ["2 adversaries[0]: nobody listens; give ranks, or links such as [[0, 1]]"],
    ),
    "adversaries, nobody is honest": (
        "seed: 1",
        "adversaries: [{name: sign_flip, ranks: [0, 1, 2, 3]}]",
        ["2 adversaries: all nodes are adversaries; leave some honest"],
    ),
    "a rule that needs more neighbors": (
        "name: gossip",
        "name: krum",
        [
            "14 sharing: krum with faults 1 needs 5 models, and rank 0 has 3 with its own; lower faults, add "
            "neighbors, or set few: own"
        ],
    ),
    "faults, a mapping": (
        "seed: 1",
        "faults: {name: crash}",
        ["2 faults: must be a list of faults, not a mapping"],
    ),
    "faults, a word": ("seed: 1", "faults: crash", ["2 faults: must be a list of faults, not 'crash'"]),
    "faults, unknown": (
        "seed: 1",
        "faults: [{name: crsh}]",
        ["2 faults[0].name: unknown fault 'crsh'; did you mean 'crash'? (known: ...)"],
    ),
    "faults, an option of another": (
        "seed: 1",
        "faults: [{name: crash, seconds: 3}]",
        ["2 faults[0].seconds: unknown option of crash; did you mean 'rounds'?"],
    ),
    "faults, a rank that is not there": (
        "seed: 1",
        "faults: [{name: crash, ranks: 4}]",
        ["2 faults[0]: rank 4 does not exist; the graph has the ranks 0..3"],
    ),
    "faults, a negative rank": (
        "seed: 1",
        "faults: [{name: crash, ranks: -1}]",
        ["2 faults[0].ranks: must be 'all' or a whole number >= 0 or a list of whole numbers >= 0, not -1"],
    ),
    "faults, a list with text": (
        "seed: 1",
        "faults: [{name: crash, ranks: [0, x]}]",
        ["2 faults[0].ranks[1]: must be a whole number >= 0, not 'x'"],
    ),
    "faults, a machine that is not there": (
        "seed: 1",
        "faults: [{name: crash, machine: 1}]",
        ["2 faults[0].machine: must be the index of a machine, 0..0, not 1"],
    ),
    "faults, after the end": (
        "seed: 1",
        "faults: [{name: crash, rounds: 3}]",
        ["2 faults[0].rounds: never comes: the rounds are 0..2, and it begins in 3"],
    ),
    "faults, a round before the first": (
        "seed: 1",
        "faults: [{name: crash, rounds: -1}]",
        [
            "2 faults[0].rounds: must be a whole number >= 0 or a list of exactly 2 (a "
            "whole number >= 0, a whole number >= 0) or null, not -1"
        ],
    ),
    "faults, three rounds": (
        "seed: 1",
        "faults: [{name: crash, rounds: [0, 1, 2]}]",
        [
            "2 faults[0].rounds: must be a list of exactly 2 (a whole number >= 0, a "
            "whole number >= 0), not a list of 3"
        ],
    ),
    "faults, rounds backwards": (
        "seed: 1",
        "faults: [{name: crash, rounds: [2, 1]}]",
        ["2 faults[0].rounds: must be the first and the last, not 2 and then 1"],
    ),
    "faults, a probability in percent": (
        "seed: 1",
        "faults: [{name: drop, probability: 10}]",
        ["2 faults[0].probability: must be a number >= 0 and <= 1, not 10"],
    ),
    "faults, an activity": (
        "seed: 1",
        "faults: [{name: crash, activity: training}]",
        [
            "2 faults[0].activity: must be 'begin' or 'train' or 'send' or 'receive' or "
            "'mix' or 'evaluate' or 'checkpoint', not 'training'"
        ],
    ),
    "faults, no time": (
        "seed: 1",
        "faults: [{name: stop, seconds: 0}]",
        ["2 faults[0].seconds: must be a number > 0, not 0"],
    ),
    "faults, no slower": (
        "seed: 1",
        "faults: [{name: slow, factor: 1}]",
        ["2 faults[0].factor: must be a number > 1, not 1"],
    ),
    "faults, waiting made longer by several": (
        "seed: 1",
        "faults: [{name: slow, activity: receive}]",
        [
            "2 faults[0].activity: 'receive' is for one rank, named in `ranks`: several nodes that take long "
            "to wait for each other wait ever longer"
        ],
    ),
    "faults, no groups": (
        "seed: 1",
        "faults: [partition]",
        ["2 faults[0].groups: missing; it must be a list of lists of whole numbers >= 0"],
    ),
    "faults, groups that overlap": (
        "seed: 1",
        "faults: [{name: partition, groups: [[0, 1], [1, 2]]}]",
        ["2 faults[0].groups: rank 1 is named 2 times; once is right"],
    ),
    "faults, a group of others": (
        "seed: 1",
        "faults: [{name: partition, groups: [[0, 9], [1]]}]",
        ["2 faults[0]: rank 9 does not exist; the graph has the ranks 0..3"],
    ),
    "faults, one group": (
        "seed: 1",
        "faults: [{name: partition, groups: [[0, 1]]}]",
        ["2 faults[0].groups: must be two lists of ranks or more, none of them empty"],
    ),
    **{
        f"faults, {name}": (
            "seed: 1",
            f"faults: [{{name: {name}, rounds: 5}}]",
            [
                f"2 faults[0].name: '{name}' was removed; it is for tests: more_faults:{cls}, in "
                "eval/reliability of the repository"
            ],
        )
        for name, cls in TEST_FAULTS.items()
    },
    "faults, null in the list": ("seed: 1", "faults: [null]", ["2 faults[0]: missing; name one of: ..."]),
    "faults of messages in one process": (
        "communication: zeromq",
        "communication: inproc\nfaults: [drop]",
        [
            "16 faults[0]: drop acts on messages between processes; give each node "
            "a process of its own (zeromq with nodes_per_process: 1)"
        ],
    ),
    "security, unknown": (
        "seed: 1",
        "security: off",
        ["2 security: must be 'auto' or 'none' or a mapping with keys, not 'off'"],
    ),
    "security, a number": (
        "seed: 1",
        "security: 1",
        ["2 security: must be 'auto' or 'none' or a mapping with keys, not 1"],
    ),
    "security, another key": (
        "seed: 1",
        "security: {key: keys}",
        ["2 security.key: unknown key; did you mean 'keys'?"],
    ),
    "security, null for a folder": (
        "seed: 1",
        "security: {keys: null}",
        ["2 security.keys: must be a path, not null"],
    ),
    "graph, a grid far too large": (
        "{name: file, path: ring.edges}",
        "{name: grid, rows: 100000, columns: 100000}",
        ["4 graph: 10,000,000,000 nodes are too many for a graph; at most 1,000,000"],
    ),
    "graph, mixed directions": (
        "path: ring.edges",
        "path: mixed.edges",
        [
            "4 graph: {here}/mixed.edges:6: '2 3' is there, '3 2' is not, unlike others; "
            "add it or set directed"
        ],
    ),
    "key with a line break": ("seed: 1", '"a\\nb": 1', ["2 a\\nb: unknown key (known: ...)"]),
    "anchor that is used as a number": (
        "seed: 1",
        "seed: &a [1]",
        ["2 seed: must be a whole number >= 0, not a list of 1"],
    ),
    "alias of a section": (
        "evaluation: {every: 10}",
        "evaluation: &e {every: 10}\ncheckpoint: *e\nfaults: *e",
        ["18 faults: must be a list of faults, not a mapping"],
    ),
    "Windows line ends and a defect": (
        "seed: 1\n",
        "seed: x\r\n",
        ["2 seed: must be a whole number >= 0, not 'x'"],
    ),
    "everything at once": (
        "rounds: 3\ngraph: {name: file, path: ring.edges}",
        "rounds: x\ngraph: ring\nmachin: 1",
        [
            "3 rounds: must be a whole number > 0, not 'x'",
            "4 graph.nodes: missing; it must be a whole number > 0",
            "5 machin: unknown key; did you mean 'machine'?",
        ],
    ),
}
"""What in BASE is replaced by what, and what is said, without `x.yaml:`."""

LOADED: dict[str, tuple[str, str, list[str]]] = {
    "more training samples than there are": (
        "name: digits",
        "name: digits, train_size: 99999",
        ["8 dataset.train_size: 99999 samples asked for, the train set has 1437"],
    ),
    "more test samples than there are": (
        "name: digits",
        "name: digits, test_size: 99999",
        ["8 dataset.test_size: 99999 samples asked for, the test set has 360"],
    ),
    "fewer samples than nodes": (
        "name: digits",
        "name: digits, train_size: 3",
        ["8 dataset.partition: 4 training ranks need a sample each, there are 3"],
    ),
    "privacy and batch norm": (
        "{name: mlp, hidden: [8]}\ntraining:",
        "{name: resnet18, norm: batch, width: 4}\ntraining:\n"
        "  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}",
        [
            "11 training.privacy: BatchNorm2d '1' of the model mixes samples, so that each changes the "
            "gradients of others; use GroupNorm (norm: group)"
        ],
    ),
    "privacy and a delta that allows everything": (
        "batch_size: 16",
        "batch_size: 16\n  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 0.5}",
        ["13 training.privacy.delta: must be below 1 / ..."],
    ),
    "privacy and a budget that no step keeps to": (
        "batch_size: 16",
        "batch_size: 16\n  privacy: {name: dp_sgd, clip: 1, noise: 0.5, epsilon: 0.1, delta: 1.0e-5}",
        [
            "13 training.privacy.epsilon: the steps of the first round exceed it at every node; allow more, "
            "use more noise, or fewer samples in a step"
        ],
    ),
    "a rank that does not exist": (
        "alpha: 0.5",
        "ranks: [0, 4]",
        ["8 dataset.partition.ranks: 4 is no rank; ranks are 0..3"],
    ),
    "no training rank": (
        "alpha: 0.5",
        "ranks: []",
        ["8 dataset.partition.ranks: is empty; at least one rank must train"],
    ),
    "a training rank twice": (
        "alpha: 0.5",
        "ranks: [1, 1]",
        ["8 dataset.partition.ranks: names a rank twice"],
    ),
    "min_size too large": (
        "alpha: 0.5",
        "min_size: 1000",
        ["8 dataset.partition.min_size: 4 training ranks of at least 1000 need 4000 samples, there are 1437"],
    ),
    "more labels per node than labels": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: shards, labels_per_node: 11}",
        ["8 dataset.partition.labels_per_node: is 11, the training samples have 10 labels"],
    ),
    "too few labels per node": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: shards, labels_per_node: 1}",
        [
            "8 dataset.partition.labels_per_node: 4 training ranks of 1 labels cannot "
            "hold all 10; it must be at least 3"
        ],
    ),
    "no groups": (
        "{name: dirichlet, alpha: 0.5}",
        "natural",
        ["8 dataset.partition: natural needs a dataset with groups; this one has none"],
    ),
    "sizes for other ranks": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: sizes, sizes: [1, 2]}",
        ["8 dataset.partition.sizes: has 2 entries for 4 training ranks"],
    ),
    "sizes that do not sum up": (
        "{name: dirichlet, alpha: 0.5}",
        "{name: sizes, sizes: [0.5, 0.2, 0.2, 0.2]}",
        [
            "8 dataset.partition.sizes: sum to 1.1; fractions must sum to 1, counts to "
            "the 1437 training samples"
        ],
    ),
    "groups that do not divide the width": (
        "{name: mlp, hidden: [8]}",
        "{name: resnet18, groups: 7}",
        ["9 model: resnet18: groups 7 does not divide width 64"],
    ),
    "a model for another data set": (
        "{name: mlp, hidden: [8]}",
        "quadratic",
        ["9 model: quadratic takes the samples of dataset quadratic, and no other"],
    ),
    "batch_tokens of images": (
        "batch_size: 16",
        "batch_tokens: 64",
        ["12 training.batch_tokens: the samples of the dataset are no tokens; use batch_size"],
    ),
    "batches that batch norm cannot take": (
        "model: {name: mlp, hidden: [8]}\ntraining:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n"
        "  batch_size: 16",
        "model: {name: resnet18, norm: batch, width: 4}\ntraining:\n  optimizer: {name: SGD, lr: 0.1}\n"
        "  batch_size: 1",
        ["12 training.batch_size: batch norm needs 2 samples or more at once, not 1"],
    ),
    "a rank with less than batch norm can take": (
        "dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}\nmodel: {name: mlp, hidden: [8]}",
        "dataset: {name: digits, train_size: 4}\nmodel: {name: resnet18, norm: batch, width: 4}",
        [
            "8 dataset.partition: rank 0 has a single sample, but batch norm needs 2 at once; give each "
            "rank 2 or none"
        ],
    ),
    "running statistics beside clipped models": (
        "mlp, hidden: [8]}\ntraining:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n"
        "  steps_per_round: 5\nsharing: {name: gossip, weights: metropolis_hastings}",
        "resnet18, norm: batch, width: 4}\ntraining:\n  optimizer: {name: SGD, lr: 0.1}\n"
        "  mix_buffers: true\n  steps_per_round: 5\n"
        "sharing: {name: gossip, transforms: [{name: clip, norm: 1}]}",
        [
            "12 training.mix_buffers: running statistics would travel beside the transforms, where clip does "
            "not hide them; leave it out, and every node keeps its own"
        ],
    ),
    "a loss that is always 0": (
        "{name: digits, partition: {name: dirichlet, alpha: 0.5}}",
        "{name: quadratic, nodes: 4}",
        ["10 training.loss: CrossEntropyLoss is always 0 where there is one class; use NLLLoss"],
    ),
    "fewer samples than nodes in quadratic": (
        "{name: digits, partition: {name: dirichlet, alpha: 0.5}}",
        "{name: quadratic, nodes: 3}\nx: 1",
        ["9 x: unknown key (known: ...)"],
    ),
    "a network with too few scores": (
        "{name: mlp, hidden: [8]}",
        "{name: 'corpus_nets:Net', width: 3}",
        ["9 model: Net gives (2, 3) for 2 samples; it must give (2, 10)"],
    ),
    "a network that cannot be built": (
        "{name: mlp, hidden: [8]}",
        "'corpus_nets:Raises'",
        ["9 model: Raises cannot be built: KeyError: 'weights'"],
    ),
    "a network in another precision": (
        "{name: mlp, hidden: [8]}",
        "'corpus_nets:Wide'",
        [
            "9 model: '1.weight' is torch.float64; the vector is torch.float32 (training.dtype), so set "
            "training.dtype: float64, or call .to(torch.float32)"
        ],
    ),
    "a network that fails": (
        "{name: mlp, hidden: [8]}",
        "'corpus_nets:Fails'",
        ["9 model: Fails does not take samples of shape (1, 8, 8): KeyError: 'x'"],
    ),
    "a GPU that is not there": (
        "seed: 1",
        "device: cuda",
        ["2 device: cuda is asked for, but torch finds no GPU here; use cpu or auto"],
    ),
    "a data set that is not there": (
        "name: digits",
        "name: idx, path: nowhere",
        [
            "8 dataset.path: no complete set of fashion-mnist files in {here}/nowhere; "
            "fetch them with: decentnode download idx variant=fashion-mnist --to {here}/nowhere"
        ],
    ),
    "a file instead of a data set": (
        "name: digits",
        "name: cifar10, path: ring.edges",
        [
            "8 dataset.path: no complete set of cifar10 files in {here}/ring.edges; "
            "fetch them with: decentnode download cifar10 --to {here}/ring.edges"
        ],
    ),
    "a path that is too long": (
        "name: digits",
        "name: idx, path: " + "a" * 260,
        ["8 dataset.path: no usable path: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...': File name too long"],
    ),
}
"""The same, found when samples and model are looked at."""

UNREADABLE: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"]),
    "only a comment": (
        b"# none\n",
        ["x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"],
    ),
    "list": (b"\n- 1\n", ["x.yaml:2: this is not a mapping; a configuration has lines such as 'seed: 1'"]),
    "text": (b"hello", ["x.yaml:1: this is not a mapping; a configuration has lines such as 'seed: 1'"]),
    "tab": (b"a:\n\tb: 1\n", ["x.yaml:2: a tab; YAML is indented with spaces"]),
    "brace": (
        b"a: {b: 1\nc: 2\n",
        [
            "x.yaml:2: not valid YAML: expected ',' or '}', but got ':'; close what is "
            "open with } or ], and put commas between its entries"
        ],
    ),
    "colons": (
        b"a: b: c\n",
        [
            "x.yaml:1: not valid YAML: mapping values are not allowed here; one 'key: "
            "value' per line; put text with a colon in quotes"
        ],
    ),
    "alias": (
        b"a: 1\nb: *c\n",
        ["x.yaml:2: not valid YAML: found undefined alias 'c'; put text that begins with * in quotes"],
    ),
    "documents": (
        b"a: 1\n---\nb: 2\n",
        ["x.yaml:2: a second document begins; a configuration is one document"],
    ),
    "control character": (
        b"a: 1\nb: \x01\n",
        ["x.yaml:2: character 0x0001 is not allowed in YAML; remove it"],
    ),
    "latin-1": (b"a: 1\nname: caf\xe9\n", ["x.yaml:2: not UTF-8 text (byte 0xe9); save it as UTF-8"]),
    "deep": (b"a: " + b"[" * 9999, ["x.yaml:1: nested deeper than 32 levels"]),
    "endless": (b"a: &a [*a]\n", ["x.yaml:1: nested deeper than 32 levels"]),
    "billion laughs": (
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 9)),
        ["x.yaml:1: aliases make this too large; at most 100000 values"],
    ),
    "large": (b"#" * 300_000, ["x.yaml: too large for a configuration; at most 262144 bytes are read"]),
    "utf-16": (
        "name: trial\nseed: 1\n".encode("utf-16"),
        ["x.yaml:1: not UTF-8 text (byte 0xff); save it as UTF-8"],
    ),
    "utf-32": (
        "name: trial\nseed: 1\n".encode("utf-32"),
        ["x.yaml:1: not UTF-8 text (byte 0xff); save it as UTF-8"],
    ),
    "utf-16 without a mark": (
        "name: trial\n".encode("utf-16-le"),
        ["x.yaml:1: character 0x0000 is not allowed in YAML; remove it"],
    ),
    "a picture": (
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        ["x.yaml:1: not UTF-8 text (byte 0x89); save it as UTF-8"],
    ),
    "zipped": (b"\x1f\x8b\x08\x00abc", ["x.yaml:1: not UTF-8 text (byte 0x8b); save it as UTF-8"]),
    "zeros": (bytes(100), ["x.yaml:1: character 0x0000 is not allowed in YAML; remove it"]),
    "a program": (
        b"\x7fELF\x02\x01\x01" + bytes(range(256)),
        ["x.yaml:2: not UTF-8 text (byte 0x80); save it as UTF-8"],
    ),
    "a mark and nothing": (
        b"\xef\xbb\xbf",
        ["x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"],
    ),
    "only blanks": (b"  \n\n", ["x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"]),
    "only a document start": (
        b"---\n",
        ["x.yaml:2: the file is empty; a configuration has lines such as 'seed: 1'"],
    ),
    "null": (b"null\n", ["x.yaml:1: the file is empty; a configuration has lines such as 'seed: 1'"]),
    "a number": (b"42\n", ["x.yaml:1: this is not a mapping; a configuration has lines such as 'seed: 1'"]),
    "deep mappings": (
        b"".join(b" " * i + b"a:\n" for i in range(100)),
        ["x.yaml:32: nested deeper than 32 levels"],
    ),
    "deep brackets after a key": (
        b"graph: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
        ["x.yaml:1: nested deeper than 32 levels"],
    ),
    "JSON with a mistake": (
        b'{"seed": 1,, "rounds": 2}',
        ["x.yaml:1: not valid YAML: expected the node content, but found ','; write a value, or null"],
    ),
    "JSON cut": (
        b'{"seed": 1',
        [
            "x.yaml:1: not valid YAML: expected ',' or '}', but got '<stream end>'; "
            "close what is open with } or ], and put commas between its entries"
        ],
    ),
    "TOML": (
        b"[training]\nlr = 0.1\n",
        [
            "x.yaml:2: not valid YAML: expected '<document start>', but found "
            "'<scalar>'; a configuration has lines such as 'seed: 1'"
        ],
    ),
    "Python": (
        b"import os\nprint(1)\n",
        ["x.yaml:1: this is not a mapping; a configuration has lines such as 'seed: 1'"],
    ),
    "two documents": (
        b"a: 1\n...\n---\nb: 2\n",
        ["x.yaml:3: a second document begins; a configuration is one document"],
    ),
    "an alias before its anchor": (
        b"a: *x\nb: &x 1\n",
        ["x.yaml:1: not valid YAML: found undefined alias 'x'; put text that begins with * in quotes"],
    ),
    "a list item among keys": (
        b"a: 1\n- b\n",
        [
            "x.yaml:2: not valid YAML: expected <block end>, but found '-'; the entries "
            "of one section begin in the same column"
        ],
    ),
    "vertical tab": (b"a: \x0b\n", ["x.yaml:1: character 0x000b is not allowed in YAML; remove it"]),
    "a half character": (b"a: \xf0\x9f\x98\n", ["x.yaml:1: not UTF-8 text (byte 0xf0); save it as UTF-8"]),
    "a character that does not exist": (
        b'seed: 1\nname: "\\U00110000"\n',
        ["x.yaml:2: not valid YAML: \\U is followed by a character's number, at most 0010FFFF"],
    ),
    "a character far beyond the last": (
        b'name: "\\UFFFFFFFF"\n',
        ["x.yaml:1: not valid YAML: \\U is followed by a character's number, at most 0010FFFF"],
    ),
    "a tab after a list dash": (b"a:\n-\tb\n\t- c\n", ["x.yaml:2: a tab; YAML is indented with spaces"]),
}
"""Whole files that give nothing to check."""

OVERRIDES: dict[str, tuple[list[str], list[str]]] = {
    "no sign": (
        ["rounds"],
        ["command line: rounds: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "a scheme that cannot take the precision": (
        ["training.dtype=bfloat16", "sharing=exact_diffusion"],
        [
            "command line: training.dtype: exact_diffusion needs the precision of float32, not bfloat16; set "
            "training.dtype: float32, and cast for the wire"
        ],
    ),
    "a transform that cannot take the precision": (
        ["training.dtype=bfloat16", "sharing.transforms=[fourier]"],
        [
            "command line: sharing.transforms[0]: fourier needs the precision of float32, not bfloat16; set "
            "training.dtype: float32, and cast for the wire"
        ],
    ),
    "a scheme whose own transform cannot take the precision": (
        ["training.dtype=bfloat16", "sharing=jwins"],
        [
            "command line: sharing: wavelet needs the precision of float32, not bfloat16; set "
            "training.dtype: float32, and cast for the wire (jwins itself puts it into the chain)"
        ],
    ),
    "no key": (["=3"], ["command line: =3: an override is key=value, such as training.optimizer.lr=0.05"]),
    "dashes": (["--rounds=3"], ["decentnode: No such option: --rounds (see decentnode --help)"]),
    "one dash": (["-rounds=3"], ["decentnode: No such option: -r (see decentnode --help)"]),
    "blank around the sign": (
        ["rounds = 3"],
        ["command line: rounds = 3: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "two points": (
        ["training..lr=3"],
        ["command line: training..lr=3: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "a point first": (
        [".rounds=3"],
        ["command line: rounds=3: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "unknown key": (["round=3"], ["command line: round: unknown key; did you mean 'rounds'?"]),
    "unknown section": (
        ["trainig.batch_size=3"],
        ["command line: trainig.batch_size: unknown key; did you mean 'training'?"],
    ),
    "deep unknown": (
        ["training.optimizer.lr.x=3"],
        ["command line: training.optimizer.lr.x: training.optimizer.lr is 0.1 and has no keys"],
    ),
    "below a number": (["seed.x=1"], ["command line: seed.x: seed is 1 and has no keys"]),
    "entry out of range": (
        ["mapping.machines[1].nodes=3"],
        ["command line: mapping.machines.1.nodes: mapping.machines has the entries 0..0, not 1"],
    ),
    "entry that is no number": (
        ["mapping.machines.first.nodes=3"],
        ["command line: mapping.machines.first.nodes: mapping.machines has the entries 0..0, not first"],
    ),
    "entry that is a digit of another kind": (
        ["mapping.machines.²=4"],
        ["command line: mapping.machines.²: mapping.machines has the entries 0..0, not ²"],
    ),
    "entry of 5,000 digits": (
        [f"mapping.machines[{'1' * 5000}].nodes=4"],
        [
            f"command line: mapping.machines.{'1' * 40}....nodes: "
            f"mapping.machines has the entries 0..0, not {'1' * 40}..."
        ],
    ),
    "a character that does not exist": (
        ['name="\\U00110000"'],
        [
            "command line: name: not valid YAML: \\U is followed by a character's number, at most 0010FFFF",
        ],
    ),
    "a scheme that needs descent": (
        ["sharing=gradient_tracking", "training.optimizer={name: SGD, lr: 0.1, maximize: true}"],
        [
            "command line: training.optimizer: gradient_tracking needs plain SGD, as its equations are about "
            "gradient steps; not maximize: true"
        ],
    ),
    "momentum that diverges on a graph that changes": (
        [
            "sharing=decent_lam",
            "training.optimizer={name: SGD, lr: 0.1}",
            "graph={name: one_peer_exponential, nodes: 4}",
        ],
        [
            "command line: sharing: decent_lam diverges on this graph: even without gradients, what models "
            "differ by grows 1.08 times a round; use quasi_global, a beta below 0.9, or an undirected graph "
            "that stays the same"
        ],
    ),
    "momentum that is too fast for a graph": (
        [
            "sharing={name: quasi_global, mu: 0}",
            "training.optimizer={name: SGD, lr: 0.1}",
            "graph={name: torus, rows: 4, columns: 4}",
            "mapping.machines[0].nodes=16",
        ],
        [
            "command line: sharing: quasi_global diverges on this graph: even without gradients, what models "
            "differ by grows 1.5 times a round; use a mu above 0, or a beta below 0.9"
        ],
    ),
    "momentum with a coarse transform": (
        [
            "sharing={name: decent_lam, transforms: [{name: random_k, fraction: 0.5}, zstd]}",
            "training.optimizer={name: SGD, lr: 0.1}",
        ],
        [
            "command line: sharing.transforms[0]: random_k is too coarse for decent_lam, whose momentum "
            "makes the error grow; use quasi_global, or leave it out"
        ],
    ),
    "entry of no list": (["seed[0]=1"], ["command line: seed.0: seed is 1 and has no keys"]),
    "wrong type": (["rounds=three"], ["command line: rounds: must be a whole number > 0, not 'three'"]),
    "negative": (["rounds=-3"], ["command line: rounds: must be a whole number > 0, not -3"]),
    "not finite": (
        ["training.optimizer.lr=nan", "training.optimizer.lr=.nan"],
        ["command line: training.optimizer.lr: .nan is not a finite number"],
    ),
    "open brace": (
        ["sharing={name: gossip"],
        [
            "command line: sharing: not valid YAML: expected ',' or '}', but got "
            "'<stream end>'; close what is open with } or ], and put commas between its "
            "entries"
        ],
    ),
    "open quote": (
        ["name='x"],
        [
            "command line: name: not valid YAML: found unexpected end of stream; a quote "
            "that begins here has no end"
        ],
    ),
    "key twice in braces": (
        ["evaluation={every: 1, every: 2}"],
        ["command line: evaluation.every: this key appears twice"],
    ),
    "nothing after the sign": (["rounds="], ["command line: rounds: missing; it must be a whole number > 0"]),
    "unknown name": (
        ["sharing=gosip"],
        ["command line: sharing: unknown sharing 'gosip'; did you mean 'gossip'? (known: ...)"],
    ),
    "a missing graph": (
        ["graph=rings.edges"],
        ["command line: graph.path: no such file: {here}/rings.edges; did you mean 'ring.edges'?"],
    ),
    "several": (
        ["rounds=x", "seed=-1", "modle=mlp"],
        [
            "command line: modle: unknown key; did you mean 'model'?",
            "command line: seed: must be a whole number >= 0, not -1",
            "command line: rounds: must be a whole number > 0, not 'x'",
        ],
    ),
    "file twice": (
        ["x.yaml"],
        ["command line: x.yaml: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "too deep": (
        ["a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b=1"],
        [
            "command line: a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a."
            "a.a.a.a.a.a.a.a.a.b: nested deeper than 32 levels",
            "command line: a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a."
            "a.a.a.a.a.a.a.a.a.b: unknown key (known: ...)",
        ],
    ),
    "huge": (
        [
            "seed=99999999999999999999999999999999999999999999999999999999999999999999999"
            "9999999999999999999999999999999999999999999999999999999999999999999999999999"
            "9999999999999999999999999999999999999999999999999999999999999999999999999999"
            "9999999999999999999999999999999999999999999999999999999999999999999999999999"
            "9"
        ],
        [
            "command line: seed: 9999999999999999999999999999999999999999... is too "
            "large; whole numbers have at most 63 bits"
        ],
    ),
    "a tab": (["seed=\t1"], ["command line: seed: a tab; YAML is indented with spaces"]),
    "a tag": (
        ["name=!!python/name:os.system"],
        ["command line: name: the tag 'python/name:os.system' is not read; write a plain value"],
    ),
    "weights below gossip": (
        ["sharing.weigths=uniform"],
        ["command line: sharing.weigths: unknown option of gossip; did you mean 'weights'?"],
    ),
    "transform out of range": (
        ["sharing.transforms[0].fraction=0.1"],
        ["command line: sharing.transforms.0.fraction: must be a list of transforms, not a mapping"],
    ),
    "privacy with a scheme that reads samples": (
        ["sharing=ubar", "training.privacy={name: dp_sgd, clip: 1, noise: 1, delta: 1e-5}"],
        ["command line: sharing: ubar mixes by losses of a node's samples, and no noise covers those; ..."],
    ),
    "privacy with gradients that are sent": (
        [
            "training.name=ddp",
            "sharing=none",
            "training.privacy={name: dp_sgd, clip: 1, noise: 1, delta: 1e-5}",
        ],
        [
            "command line: training.privacy: makes the steps of each node private by itself, but ddp sends "
            "gradients within them; use training.name: local"
        ],
    ),
    "training that nobody knows": (
        ["training.name=dpp"],
        ["command line: training.name: unknown training 'dpp'; did you mean 'ddp'? (known: ddp, local)"],
    ),
    "an option of ddp without it": (
        ["training.bucket_mb=3"],
        ["command line: training.bucket_mb: unknown key (known: ...)"],
    ),
    "ddp with a scheme": (
        ["training.name=ddp"],
        ["x.yaml:14 sharing: ddp keeps one model on all nodes, so nothing is left to share; use none"],
    ),
    "ddp with an exchange to overlap": (
        ["training.name=ddp", "sharing=none", "communication.overlap=true"],
        [
            "command line: communication.overlap: ddp overlaps its all-reduce with the backward pass by "
            "itself; leave it out"
        ],
    ),
    "ddp without a process for each node": (
        ["training.name=ddp", "sharing=none", "communication=inproc"],
        ["command line: communication: ddp needs a process for each node; ..."],
    ),
    "links by messages, and nodes that rejoin": (
        [
            "graph={name: flipper, nodes: 4, degree: 2}",
            "failures={start: at_least 3, restart: {attempts: 1}}",
        ],
        [
            "command line: failures.restart.attempts: nodes of flipper cannot rejoin: a new process does not "
            "know its neighbors; leave it out",
            "command line: failures.start: nodes of flipper cannot rejoin: ...",
        ],
    ),
    "links by messages, and nothing to send": (
        ["graph={name: flipper, nodes: 4, degree: 2}", "sharing=none"],
        ["command line: graph: none exchanges nothing, so no node needs flipper; use ring"],
    ),
    "links by gradients, and overlap": (
        ["graph={name: similarity, nodes: 4, neighbors: 1, of: gradient}", "communication.overlap=true"],
        [
            "command line: communication.overlap: similarity of gradients needs the models as the local "
            "steps have left them; leave it out"
        ],
    ),
    "service, a port that has another use": (
        [
            "graph={name: peer_sampler, nodes: 4, degree: 2, port: 31000}",
            "mapping.machines=[{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]",
            "mapping.rendezvous_port=31000",
        ],
        ["command line: graph.port: 31000 is mapping.rendezvous_port; take another"],
    ),
    "links by messages, and masks": (
        ["graph={name: flipper, nodes: 4, degree: 2}", "sharing={name: secure_aggregation}"],
        [
            "command line: sharing: secure_aggregation needs to know all that a neighbor receives from, and "
            "flipper does not say so; use epidemic_oracle"
        ],
    ),
    "chunks, and a graph too small for them": (
        ["graph={name: relayed, nodes: 4, degree: 2}", "sharing={name: shatter, chunks: 3}"],
        [
            "command line: sharing: shatter: 2 neighbors with 1 chunks each are too few for 3 chunks; use "
            "fewer, a larger degree, or a larger per_neighbor"
        ],
    ),
    "chunks without relays": (
        ["graph={name: ring, nodes: 4}", "sharing={name: shatter, chunks: 2}"],
        [
            "command line: sharing: shatter needs relays between neighbors; use graph: {name: relayed, "
            "nodes: 4, degree: ...}"
        ],
    ),
    "sparse sums without a selection": (
        ["graph={name: ring, nodes: 4}", "sharing={name: cesar}"],
        [
            "command line: sharing.transforms: cesar needs random_k, or top_k with one fraction, and at most "
            "a coder of indices after it; this chain does not select values"
        ],
    ),
    "sums on a graph without enough senders": (
        ["graph={name: one_peer_hypercube, nodes: 4}", "sharing={name: secure_aggregation}"],
        [
            "command line: sharing: secure_aggregation hides models among at least 2 senders to each node, "
            "but rank 0 hears 1 alone, and no node ever hears enough"
        ],
    ),
    "sums that a receiver cannot ask for": (
        [
            "graph={name: epidemic_local, nodes: 4, degree: 3}",
            "sharing={name: secure_aggregation, threshold: 0.5}",
        ],
        [
            "command line: sharing: secure_aggregation with threshold needs an undirected graph, as a node "
            "tells its senders who has arrived; leave threshold out, or use a graph such as epidemic_oracle"
        ],
    ),
    "links by messages, and weights of a file": (
        ["graph={name: flipper, nodes: 4, degree: 2}", "sharing.weights=from_graph"],
        [
            "command line: sharing.weights: from_graph weights need a graph that comes with its own, ...",
            "command line: sharing.weights: flipper has metropolis_hastings weights; leave it out",
        ],
    ),
    "ddp that goes on without a node": (
        ["training.name=ddp", "sharing=none", "failures={on_loss: continue, restart: {attempts: 1}}"],
        [
            "command line: failures.on_loss: ddp cannot continue without a node; ...",
            "command line: failures.restart.attempts: ddp cannot continue without a node; ...",
        ],
    ),
    "ddp with other steps on each rank": (
        ["training.name=ddp", "sharing=none", "training.steps_per_round=[1, 2, 2, 2]"],
        ["command line: training.steps_per_round: ddp makes the same steps on all ranks; give one number"],
    ),
    "choco on a graph that changes": (
        ["sharing=choco", "graph={name: random_matching, nodes: 4}"],
        [
            "command line: sharing: choco needs a graph that is the same in every round; this one is not; "
            "use choco_per_edge"
        ],
    ),
    "multi_gossip, accelerated on a graph that changes": (
        ["sharing={name: multi_gossip, acceleration: chebyshev}", "graph={name: random_matching, nodes: 4}"],
        [
            "command line: sharing: multi_gossip with acceleration needs a graph that is the same in every "
            "round; this one is not; use acceleration: none"
        ],
    ),
    "multi_gossip that quantizes": (
        ["sharing={name: multi_gossip, transforms: [qsgd]}"],
        ["command line: sharing.transforms[0]: qsgd is too coarse for multi_gossip, ..."],
    ),
    "consensus_control that slows down another optimizer": (
        ["sharing={name: consensus_control, slow_down: true}", "training.optimizer={name: Adam}"],
        ["command line: training.optimizer: consensus_control needs plain SGD, ...; not Adam"],
    ),
    "consensus_control of rounded models": (
        ["sharing={name: consensus_control, transforms: [cast]}"],
        ["command line: sharing.transforms[0]: cast changes the models that consensus_control compares; ..."],
    ),
    "seconds_per_round without a number of steps": (
        ["training.seconds_per_round=1", "training.steps_per_round=null"],
        ["x.yaml:10 training: give exactly one of steps_per_round and epochs_per_round"],
    ),
    "seconds_per_round 0": (
        ["training.seconds_per_round=0"],
        ["command line: training.seconds_per_round: must be a number > 0 or null, not 0"],
    ),
    "ddp with steps that fit a time": (
        ["training.name=ddp", "sharing=none", "training.seconds_per_round=1"],
        ["command line: training.seconds_per_round: ddp makes the same steps on all ranks; leave it out"],
    ),
    "churn without a graph": (
        ["graph={name: churn, schedule: [[0, 1, 2]]}"],
        ["command line: graph.graph: missing; it must be a Graph"],
    ),
    "churn of a graph with a wrong option": (
        ["graph={name: churn, graph: {name: ring, nods: 4}, schedule: [[0, 1, 2]]}"],
        [
            "command line: graph.graph.nods: unknown option of ring; did you mean 'nodes'?",
        ],
    ),
    "churn of nodes that agree on edges": (
        ["graph={name: churn, graph: {name: similarity, nodes: 8, neighbors: 1}, schedule: [[3, 1, 2]]}"],
        ["command line: graph: churn: similarity is more than the edges of each round (...); choose ..."],
    ),
    "noise that no accountant can compute with": (
        ["training.privacy={name: dp_sgd, clip: 1, delta: 1e-5, noise: 1e300}"],
        ["command line: training.privacy.noise: must be 0, or from 0.001 to 10000, not 1e+300"],
    ),
    "mimic of itself": (
        ["adversaries=[{name: mimic, ranks: [0], victim: 0}]"],
        ["command line: adversaries[0].victim: rank 0 is an adversary itself; name an honest one of 0..3"],
    ),
    "churn of a rank that is none": (
        ["graph={name: churn, graph: {name: ring, nodes: 4}, schedule: [[4, 1, 2]]}"],
        ["command line: graph: churn: rank 4 of the schedule is none of ring, 0..3"],
    ),
    "churn with a span of one number": (
        ["graph={name: churn, graph: {name: ring, nodes: 4}, schedule: [[1]]}"],
        ["command line: graph.schedule[0]: must be ..."],
    ),
    "ddp with nodes that rest": (
        [
            "training.name=ddp",
            "sharing=none",
            "graph={name: partial_participation, nodes: 4, degree: 2, probability: 0.5}",
        ],
        ["command line: graph: ddp makes the same steps on all ranks, and nodes of partial..."],
    ),
    "ddp with an optimizer that looks at the loss": (
        ["training.name=ddp", "sharing=none", "training.optimizer={name: LBFGS}"],
        ["command line: training.optimizer: LBFGS looks at each rank's own loss, ..."],
    ),
    "ddp between machines": (
        [
            "training.name=ddp",
            "sharing=none",
            "security=none",
            "mapping.machines=[{address: 10.0.0.1, nodes: 2}, {address: 10.0.0.2, nodes: 2}]",
        ],
        [
            "x.yaml:10 training.trusted_network: gloo and NCCL send in plain between machines, to ports "
            "that anybody there can reach; write true where nobody else is in that network, or use "
            "training.name: local"
        ],
    ),
    "a scheme of rounds without rounds": (
        ["time_model=asynchronous"],
        ["x.yaml:14 sharing: gossip exchanges in rounds, and time_model asynchronous has none; ..."],
    ),
    "a service of rounds without rounds": (
        ["time_model=asynchronous", "sharing=ad_psgd", "graph={name: peer_sampler, nodes: 4, degree: 2}"],
        [
            "command line: graph: peer_sampler answers for rounds, and time_model asynchronous has none; use "
            "epidemic_local"
        ],
    ),
    "an asynchronous scheme with rounds": (
        ["sharing=ad_psgd"],
        ["command line: sharing: ad_psgd needs time_model: asynchronous; with rounds, ..."],
    ),
    "a replay of nothing": (
        ["time_model={name: asynchronous, schedule: replay}", "sharing=swift"],
        ["command line: time_model.schedule_path: is the recorded run of schedule: replay; ..."],
    ),
    "an asynchronous scheme on edges of one way": (
        ["time_model=asynchronous", "sharing=ad_psgd", "graph={name: exponential, nodes: 4}"],
        ["command line: sharing: ad_psgd needs a graph that is undirected; this one is not"],
    ),
    "pace, an option out of range": (
        ["training.pace={step_seconds: 0.01, slowdown: {distribution: stragglers, share: 2}}"],
        ["command line: training.pace.slowdown.share: must be a number > 0 and <= 1, not 2"],
    ),
    "pace, an option of another distribution": (
        ["training.pace={step_seconds: 0.01, slowdown: {distribution: exponential, sigma: 1}}"],
        [
            "command line: training.pace.slowdown: sigma is no option of exponential (known: drawn)",
        ],
    ),
    "speeds of another number of ranks": (
        ["training.pace={step_seconds: 0.01, slowdown: [1, 2, 3]}"],
        ["command line: training.pace.slowdown: must have one number for each of the 4 ranks or ..."],
    ),
}
"""Words after the file BASE."""
