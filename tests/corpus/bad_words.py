"""Command lines that are wrong, or name what is not there."""

LONG = "a" * 260
TWO_MACHINES = "mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}"

WORDS: dict[str, tuple[list[str], list[str]]] = {
    "resume, nothing": (["resume"], ["decentnode: Missing argument 'RUN' (see decentnode --help)"]),
    "resume, missing": (
        ["resume", "nowhere"],
        ["nowhere: is not the directory of a run (it has no config.yaml)"],
    ),
    "resume, a name that is too long": (
        ["resume", LONG],
        [f"{LONG}: is not the directory of a run (it has no config.yaml)"],
    ),
    "status, a name that is too long": (
        ["status", LONG],
        [f"{LONG}: not the directory of a run; name one that holds a config.yaml"],
    ),
    "restart, a name that is too long": (
        ["restart", LONG, "0"],
        [f"{LONG}: not the directory of a run; name one that holds a config.yaml"],
    ),
    "keys, a folder whose name is too long": (
        ["keys", "x.yaml", "--out", LONG, TWO_MACHINES],
        [f"{LONG}: cannot be written: File name too long"],
    ),
    "resume, a file": (
        ["resume", "ring.edges"],
        ["ring.edges: is not the directory of a run (it has no config.yaml)"],
    ),
    "resume, another folder": (
        ["resume", "full"],
        ["full: is not the directory of a run (it has no config.yaml)"],
    ),
    "resume, a run without a state": (
        ["resume", "begun"],
        ["{here}/begun: this run was never started, so there is nothing to resume from"],
    ),
    "resume, a run of another kind": (
        ["resume", "torn"],
        ["{here}/torn/run.json: not a JSON object: Input data was truncated; restore the file, or remove it"],
    ),
    "resume, a run with other code": (
        ["resume", "coded"],
        [
            "{here}/coded: the code is not that of this run: corpus_nets.py; restore it from "
            "{here}/coded/code/abababababab, or continue with --accept-code-change"
        ],
    ),
    "resume, a run with other code that is accepted, and nothing else": (
        ["resume", "coded", "--accept-code-change"],
        [
            "{here}/coded: rank 0 has no checkpoint to resume from: "
            "there is none in {here}/coded/checkpoints/00000"
        ],
    ),
    "resume, a run whose code is damaged": (
        ["resume", "undecoded"],
        ["{here}/undecoded/run.json: not written by this version of decentnode: 'code': ..."],
    ),
    "status, nothing": (["status"], ["decentnode: Missing argument 'RUN' (see decentnode --help)"]),
    "status, missing": (
        ["status", "nowhere"],
        ["nowhere: not the directory of a run; name one that holds a config.yaml"],
    ),
    "status, a file": (
        ["status", "ring.edges"],
        ["ring.edges: not the directory of a run; name one that holds a config.yaml"],
    ),
    "status, another folder": (
        ["status", "full"],
        ["full: not the directory of a run; name one that holds a config.yaml"],
    ),
    "keys, missing": (["keys", "y.yaml"], ["y.yaml: cannot be read: No such file or directory"]),
    "keys, a broken file": (
        ["keys", "ring.edges"],
        ["ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'"],
    ),
    "keys, keys that are there": (
        [
            "keys",
            "x.yaml",
            "--out",
            "there",
            TWO_MACHINES,
        ],
        ["there/machines.json: exists, and new keys would invalidate it; --force replaces it"],
    ),
    "no keys where others can reach it": (
        [
            "run",
            "x.yaml",
            "machine=0",
            "mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8, nodes: 2}]}",
        ],
        [
            "x.yaml:1 security: others on the network could reach this run, and there is "
            "no folder 'keys' beside the configuration; run: decentnode keys "
            "CONFIG.yaml, or write security: none"
        ],
    ),
    "sweep, nothing": (["sweep"], ["decentnode: Missing argument 'study' (see decentnode --help)"]),
    "sweep, missing": (["sweep", "y.yaml"], ["y.yaml: cannot be read: No such file or directory"]),
    "sweep, a configuration": (
        ["sweep", "x.yaml"],
        ["x.yaml:1: this is a configuration; a study names it (base: x.yaml)"],
    ),
    "no such command": (
        ["rnu", "x.yaml"],
        ["decentnode: No such command 'rnu'. Did you mean 'run'? (see decentnode --help)"],
    ),
    "no such option": (["--nope"], ["decentnode: No such option: --nope (see decentnode --help)"]),
    "an option of another command": (
        ["run", "x.yaml", "--no-load"],
        ["decentnode: No such option: --no-load (see decentnode --help)"],
    ),
    "run, nothing": (["run"], ["decentnode: Missing argument 'config' (see decentnode --help)"]),
    "run, two files": (["run", "a", "b"], ["a: cannot be read: No such file or directory"]),
    "run, a missing file": (
        ["run", "x.yml"],
        ["x.yml: cannot be read: No such file or directory; did you mean 'x.yaml'?"],
    ),
    "run, a graph": (
        ["run", "ring.edges"],
        ["ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'"],
    ),
    "run, a folder": (["run", "."], [".: cannot be read: Is a directory"]),
    "run, overrides first": (
        ["run", "rounds=3", "x.yaml"],
        [
            "rounds=3: cannot be read: No such file or directory; the configuration "
            "comes first, then what it changes"
        ],
    ),
    "run, an empty name": (["run", ""], [".: cannot be read: Is a directory"]),
    "run, a null": (
        ["run", "a\x00b"],
        ["decentnode: Invalid value for 'config': Value error, embedded null byte (see decentnode --help)"],
    ),
    "run, a long name": (["run", "a" * 260], ["...: cannot be read: File name too long"]),
    "run, below a file": (
        ["run", "ring.edges/x.yaml"],
        ["ring.edges/x.yaml: cannot be read: Not a directory"],
    ),
    "run, a directory that is full": (
        ["run", "x.yaml", "run_dir=full"],
        ["command line: run_dir: {here}/full is not empty; name another one, or remove it"],
    ),
    "run, a directory that is a file": (
        ["run", "x.yaml", "run_dir=ring.edges"],
        ["command line: run_dir: {here}/ring.edges cannot be written: File exists"],
    ),
    "run, a directory below a file": (
        ["run", "x.yaml", "run_dir=ring.edges/a"],
        ["command line: run_dir: {here}/ring.edges/a cannot be written: Not a directory"],
    ),
    "run, a directory in /proc": (
        ["run", "x.yaml", "run_dir=/proc/a"],
        ["command line: run_dir: /proc/a cannot be written: No such file or directory"],
    ),
    "run, a long directory": (
        ["run", "x.yaml", "run_dir=" + "a" * 260],
        ["command line: run_dir: {here}/... cannot be written: File name too long"],
    ),
    "validate, nothing": (["validate"], ["decentnode: Missing argument 'config' (see decentnode --help)"]),
    "validate, a wrong flag": (
        ["validate", "x.yaml", "--noload"],
        [
            "decentnode: No such option: --noload (Possible options: --load, --no-load) "
            "(see decentnode --help)"
        ],
    ),
    "validate, a missing folder": (
        ["validate", "no/such/x.yaml"],
        ["no/such/x.yaml: cannot be read: No such file or directory"],
    ),
    "graph, nothing": (["graph"], ["decentnode: Missing argument 'FILE|NAME' (see decentnode --help)"]),
    "graph, unknown": (["graph", "rings"], ["unknown graph 'rings'; did you mean 'ring'? (known: ...)"]),
    "graph, no nodes": (
        ["graph", "ring"],
        ["ring: nodes: missing; it must be a whole number > 0; add nodes=..."],
    ),
    "graph, two options missing": (
        ["graph", "grid"],
        [
            "grid: rows: missing; it must be a whole number > 0; add rows=...",
            "grid: columns: missing; it must be a whole number > 0; add columns=...",
        ],
    ),
    "graph, a bare number": (
        ["graph", "ring", "4"],
        ["command line: 4: an override is key=value, such as training.optimizer.lr=0.05"],
    ),
    "graph, text": (
        ["graph", "ring", "nodes=four"],
        ["command line: nodes: must be a whole number > 0, not 'four'"],
    ),
    "graph, zero": (["graph", "ring", "nodes=0"], ["command line: nodes: must be a whole number > 0, not 0"]),
    "graph, below an option": (
        ["graph", "ring", "nodes.x=3"],
        ["command line: nodes.x: must be a whole number > 0, not a mapping"],
    ),
    "graph, another's option": (
        ["graph", "ring", "nodes=4", "degree=3"],
        ["command line: degree: unknown option (known: nodes)"],
    ),
    "graph, not a number": (
        ["graph", "erdos_renyi", "nodes=4", "probability=.nan"],
        ["command line: probability: .nan is not a finite number"],
    ),
    "graph, open brace": (
        ["graph", "ring", "nodes={"],
        [
            "command line: nodes: not valid YAML: expected the node content, but found "
            "'<stream end>'; write a value, or null"
        ],
    ),
    "graph, impossible": (
        ["graph", "regular", "nodes=5", "degree=3"],
        ["regular: nodes * degree must be even, got 5 * 3"],
    ),
    "graph, a billion nodes": (
        ["graph", "ring", "nodes=1000000000"],
        ["1,000,000,000 nodes are too many for a graph; at most 1,000,000"],
    ),
    "graph, no module": (
        ["graph", "corpus_nomodule:Graph"],
        [
            "cannot import 'corpus_nomodule:Graph': No module named 'corpus_nomodule' in "
            "{here}, beside the configuration, or installed"
        ],
    ),
    "graph, a module that raises": (
        ["graph", "corpus_broken:Net"],
        ["cannot import 'corpus_broken:Net': ZeroDivisionError: division by zero"],
    ),
    "graph, a module that ends the process": (
        ["graph", "corpus_quits:Net"],
        ["cannot import 'corpus_quits:Net': SystemExit: 0"],
    ),
    "graph, a class of no module": (
        ["graph", ":Net"],
        ["':Net' names no class; write module:Class"],
    ),
    "graph, another class": (
        ["graph", "json:JSONDecoder"],
        ["'json:JSONDecoder' is no graph; it must be a subclass of decentnode.graph.base.Graph"],
    ),
    "graph, a long name": (
        ["graph", "a" * 260 + ".edges"],
        ["....edges: cannot be read: File name too long"],
    ),
    "weights, nothing": (
        ["graph", "ring", "nodes=4", "--weights"],
        ["decentnode: Option '--weights' requires an argument (see decentnode --help)"],
    ),
    "weights, unknown": (
        ["graph", "ring", "nodes=4", "--weights", "metropolis"],
        [
            "unknown weights 'metropolis'; did you mean 'metropolis_hastings'? (known: "
            "file, from_graph, metropolis_hastings, uniform)"
        ],
    ),
    "weights, a folder": (
        ["graph", "ring", "nodes=4", "--weights", "./full"],
        ["./full: cannot be read: Is a directory"],
    ),
    "weights, a missing file": (
        ["graph", "ring", "nodes=4", "--weights", "w.txt"],
        ["w.txt: cannot be read: No such file or directory"],
    ),
    "weights, a directed graph": (
        ["graph", "exponential", "nodes=4", "--weights", "metropolis_hastings"],
        ["metropolis_hastings weights need an undirected graph; use uniform or file"],
    ),
    "weights, another class": (
        ["graph", "ring", "nodes=4", "--weights", "json:JSONDecoder"],
        ["'json:JSONDecoder' is no weights; it must be a subclass of decentnode.graph.mixing.Mixing"],
    ),
    "tune, nothing": (["tune"], ["decentnode: Missing argument 'config' (see decentnode --help)"]),
    "tune, a missing file": (["tune", "y.yaml"], ["y.yaml: cannot be read: No such file or directory"]),
    "tune, no gamma": (
        ["tune", "x.yaml"],
        [
            "x.yaml:14 sharing: gossip has no gamma to tune; beer, beer_per_edge, choco, choco_per_edge, "
            "deep_squeeze, moniqua, stc have one"
        ],
    ),
    "tune, a server": (
        ["tune", "x.yaml", "sharing={name: stc, server: 0}", "graph={name: star, nodes: 4}"],
        ["command line: sharing: stc with a server makes no use of gamma"],
    ),
    "tune, one node": (
        ["tune", "x.yaml", "sharing=choco", "graph={name: ring, nodes: 1}", "mapping=null"],
        ["command line: graph: one node alone has no neighbor to agree with"],
    ),
    "tune, a wrong override": (
        ["tune", "x.yaml", "rounds=x"],
        ["command line: rounds: must be a whole number > 0, not 'x'"],
    ),
    "list, unknown": (
        ["list", "sharng"],
        ["unknown kind or plug-in 'sharng'; did you mean 'sharing'? (known: ...)"],
    ),
    "list, not a kind": (["list", "optimizer"], ["unknown kind or plug-in 'optimizer' (known: ...)"]),
    "list, two": (
        ["list", "sharing", "graph"],
        ["decentnode: Got unexpected extra argument(s) (graph) (see decentnode --help)"],
    ),
    "plot, nothing": (["plot"], ["decentnode: Missing argument 'RUN...' (see decentnode --help)"]),
    "plot, missing": (
        ["plot", "nowhere"],
        ["nowhere/evaluations.jsonl: No such file or directory; name the directory of a run"],
    ),
    "plot, a file": (
        ["plot", "ring.edges"],
        ["ring.edges/evaluations.jsonl: Not a directory; name the directory of a run"],
    ),
    "plot, another folder": (
        ["plot", "full"],
        ["full/evaluations.jsonl: No such file or directory; name the directory of a run"],
    ),
    "plot, a wrong option": (
        ["plot", "full", "--output", "x"],
        ["decentnode: No such option: --output (Possible options: --out) (see decentnode --help)"],
    ),
    "plot, no value": (
        ["plot", "full", "--out"],
        ["decentnode: Option '--out' requires an argument (see decentnode --help)"],
    ),
    "bench, unknown": (["bench", "startp"], ["bench: unknown benchmark 'startp' (known: ...)"]),
    "doctor, missing": (["doctor", "y.yaml"], ["y.yaml: cannot be read: No such file or directory"]),
    "doctor, a broken file": (
        ["doctor", "ring.edges"],
        ["ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'"],
    ),
    "schema, a word": (
        ["schema", "x"],
        ["decentnode: Got unexpected extra argument(s) (x) (see decentnode --help)"],
    ),
    "keys, nothing": (["keys"], ["decentnode: Missing argument 'config' (see decentnode --help)"]),
    "a busy port": (
        ["run", "x.yaml", "communication={name: zeromq, local: tcp, base_port: {busy}}"],
        [
            "command line: communication.base_port: port {busy} at 127.0.0.1 is in use; "
            "the ports {busy}... are needed, so name others: communication.base_port=..."
        ],
    ),
    "a busy meeting point": (
        [
            "run",
            "x.yaml",
            "security=none",
            "machine=0",
            "mapping={rendezvous_port: {busy}, machines: [{address: 127.0.0.1, nodes: "
            "2}, {address: 127.0.0.2, nodes: 2}]}",
        ],
        [
            "command line: mapping.rendezvous_port: port {busy} at 127.0.0.1 is in use; "
            "it is needed, so name others: mapping.rendezvous_port=..."
        ],
    ),
    "no own address": (
        [
            "run",
            "x.yaml",
            "security=none",
            "mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8, nodes: 2}]}",
        ],
        [
            "command line: mapping: no machine has an address of this host (0: "
            "203.0.113.7, 1: 203.0.113.8); correct it, or add machine=K"
        ],
    ),
    "another's address": (
        [
            "run",
            "x.yaml",
            "security=none",
            "machine=0",
            "mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8, nodes: 2}]}",
        ],
        [
            "command line: mapping: 203.0.113.7 is no address of this host, which is machine 0; "
            "correct either, or add where it listens behind NAT, as listen: 0.0.0.0"
        ],
    ),
    "two own addresses": (
        [
            "run",
            "x.yaml",
            TWO_MACHINES,
        ],
        [
            "command line: mapping: several machines have an address of this host (0: "
            "127.0.0.1, 1: 127.0.0.2); name one: machine=K"
        ],
    ),
    "a machine that does not exist": (
        [
            "run",
            "x.yaml",
            "machine=2",
            TWO_MACHINES,
        ],
        ["command line: machine: must be the index of a machine, 0..1, not 2"],
    ),
    "doctor, no own address": (
        [
            "doctor",
            "x.yaml",
            "security=none",
            "mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8, nodes: 2}]}",
        ],
        [
            "command line: mapping: no machine has an address of this host (0: "
            "203.0.113.7, 1: 203.0.113.8); correct it, or add machine=K"
        ],
    ),
}
"""Command lines beside the file BASE, which is right."""
