"""Command lines that are wrong, or name what is not there (`table.py` reads them)."""

WORDS = r"""
resume | decentnode: Missing argument 'RUN' (see decentnode --help)
resume nowhere | nowhere: not the directory of a run (it has no config.yaml)
resume <a * 260> | <a * 260>: not the directory of a run (it has no config.yaml)
status <a * 260> | <a * 260>: not the directory of a run (it has no config.yaml)
restart <a * 260> 0 | <a * 260>: not the directory of a run (it has no config.yaml)
keys x.yaml --out <a * 260> 'mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2,
    + nodes: 2}]}'
    | <a * 260>: cannot be written: File name too long
compare <a * 260> | <a * 260>...: no usable path: File name too long
report <a * 260> | <a * 260>...: no usable path: File name too long
frontier <a * 260> | <a * 260>...: no usable path: File name too long
watch <a * 260> | <a * 260>...: no usable path: File name too long
resume ring.edges | ring.edges: not the directory of a run (it has no config.yaml)
resume full | full: not the directory of a run (it has no config.yaml)
resume begun | {here}/begun: this run was never started, so there is nothing to resume from
resume torn
    | {here}/torn/run.json: not a JSON object: Input data was truncated; restore the file, or remove it
resume coded
    | {here}/coded: the code is not that of this run: corpus_nets.py; use the code that it began with, or
    + continue with --accept-code-change (in Python accept_code_change=True)
resume coded --accept-code-change
    | {here}/coded: rank 0 has no checkpoint to resume from: there is none in {here}/coded/checkpoints;
    + begin a new run, which checkpoint.final or checkpoint.every lets continue
resume older
    | {here}/older/run.json: has schema 2; this version of decentnode reads schema 3
resume undecoded | {here}/undecoded/run.json: not written by this version of decentnode: 'code': ...
status | decentnode: Missing argument 'RUN' (see decentnode --help)
status nowhere | nowhere: not the directory of a run (it has no config.yaml)
status ring.edges | ring.edges: not the directory of a run (it has no config.yaml)
status full | full: not the directory of a run (it has no config.yaml)
keys y.yaml | y.yaml: cannot be read: No such file or directory
keys ring.edges | ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'
keys x.yaml --out there 'mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}'
    | there/machines.json: exists, and new keys would invalidate it; --force replaces it
run x.yaml machine=0 'mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8,
    + nodes: 2}]}'
    | x.yaml:1 security: others on the network could reach this run, and there is no folder 'keys' beside the
    + configuration; run: decentnode keys CONFIG.yaml, set DECENTNODE_SECRET, or write security: none
sweep | decentnode: Missing argument 'STUDY' (see decentnode --help)
sweep y.yaml | y.yaml: cannot be read: No such file or directory
sweep x.yaml | x.yaml:1: this is a configuration; a study names it (base: x.yaml)
new full | full: is not empty; name a folder that does not exist yet
new x.yaml | x.yaml: is a file; name a folder that does not exist yet
new x.yaml/a | x.yaml/a: cannot be written: Not a directory
new 'a b' | a b: its last part is the name of the experiment, and must be made of letters, digits, ...
new a --with schme | --with: unknown part 'schme'; did you mean 'scheme'? (known: scheme, ...
show quikstart
    | quikstart: no such configuration or graph is shipped; did you mean 'quickstart'? ...
list choco beer | 'choco' is a plug-in, not a kind; the kind comes first: graph, mapping, weights, ...
rnu x.yaml | decentnode: No such command 'rnu'. Did you mean 'run'? (see decentnode --help)
--nope | decentnode: No such option: --nope (see decentnode --help)
nope | decentnode: No such command 'nope' (see decentnode --help)
restart run -1
    | decentnode: Invalid value for 'RANK': Input should be greater than or equal to 0 (see decentnode --help)
run x.yaml --no-load | decentnode: No such option: --no-load (see decentnode --help)
run | decentnode: Missing argument 'CONFIG' (see decentnode --help)
run a b | a: cannot be read: No such file or directory; decentnode list configs shows those that ship
run quikstart
    | quikstart: cannot be read: No such file or directory; did you mean 'quickstart'? ...
run x.yml | x.yml: cannot be read: No such file or directory; did you mean 'x.yaml'?
run ring.edges | ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'
run . | .: cannot be read: Is a directory
import x.ini | x.ini: cannot be read: No such file or directory; did you mean 'x.yaml'?
run rounds=3 x.yaml
    | rounds=3: cannot be read: No such file or directory; the configuration comes first, then what it changes
run '' | .: cannot be read: Is a directory
run 'a\0b' | decentnode: Invalid value for 'CONFIG': Value error, embedded null byte (see decentnode --help)
run <a * 260> | ...: cannot be read: File name too long
run ring.edges/x.yaml | ring.edges/x.yaml: cannot be read: Not a directory
run x.yaml run_dir=full | command line: run_dir: {here}/full is not empty; name another one, or remove it
run x.yaml run_dir=ring.edges | command line: run_dir: {here}/ring.edges cannot be written: File exists
run x.yaml run_dir=ring.edges/a
    | command line: run_dir: {here}/ring.edges/a cannot be written: Not a directory
run x.yaml run_dir=/proc/a | command line: run_dir: /proc/a cannot be written: No such file or directory
run x.yaml run_dir=<a * 260> | command line: run_dir: {here}/... cannot be written: File name too long
validate | decentnode: Missing argument 'CONFIG' (see decentnode --help)
validate x.yaml --noload
    | decentnode: No such option: --noload (Possible options: --load, --no-load) (see decentnode --help)
validate no/such/x.yaml | no/such/x.yaml: cannot be read: No such file or directory
graph | decentnode: Missing argument 'FILE|NAME|CONFIG' (see decentnode --help)
graph rings | unknown graph 'rings'; did you mean 'ring'? (known: ...)
graph ring | ring: nodes: missing; it must be a whole number > 0; add nodes=...
graph grid | grid: rows: missing; it must be a whole number > 0; add rows=...
    | grid: columns: missing; it must be a whole number > 0; add columns=...
graph ring 4 | command line: 4: an override is key=value, such as training.optimizer.lr=0.05
graph ring nodes=four | command line: nodes: must be a whole number > 0, not 'four'
graph ring nodes=0 | command line: nodes: must be a whole number > 0, not 0
graph ring nodes=-2 | command line: nodes: must be a whole number > 0, not -2
graph ring nodes | command line: nodes: an override is key=value, such as training.optimizer.lr=0.05
graph ring nodez=3 | command line: nodez: unknown option; did you mean 'nodes'?
graph rings.edges | rings.edges: cannot be read: No such file or directory; did you mean 'ring.edges'?
graph nofile.edges | nofile.edges: cannot be read: No such file or directory
graph ring nodes=4 --wights x
    | decentnode: No such option: --wights (Possible options: --weights) (see decentnode --help)
graph ring nodes=4 --rounds 3 | --rounds is for a picture; add --draw FILE
graph ring nodes=4 --draw x.png --color red | --color: must be machine, label or none, not 'red'
graph ring nodes=4 --network | --network needs a configuration, such as simulated
graph ring nodes=4 --draw x.png --color label
    | --color label needs a configuration, such as quickstart
graph x.yaml --weights x | --weights is for a graph; of an experiment change sharing.weights=RULE
graph ring nodes=4 --draw x.txt | --draw: x.txt: must end in .png, .svg or .pdf
graph random_matching nodes=4 --draw x.png --rounds 25 | --rounds: must be 1..24, not 25
graph ring nodes.x=3 | command line: nodes.x: must be a whole number > 0, not a mapping
graph ring nodes=4 degree=3 | command line: degree: unknown option (known: nodes)
graph erdos_renyi nodes=4 probability=.nan | command line: probability: .nan is not a finite number
graph ring 'nodes={'
    | command line: nodes: not valid YAML: expected the node content, but found '<stream end>'; write a ...
graph regular nodes=5 degree=3 | regular: nodes * degree must be even, got 5 * 3
graph ring nodes=1000000000 | 1,000,000,000 nodes are too many for a graph; at most 1,000,000
graph corpus_nomodule:Graph
    | cannot import 'corpus_nomodule:Graph': No module named 'corpus_nomodule' in {here}, beside the ...
graph corpus_broken:Net | cannot import 'corpus_broken:Net': ZeroDivisionError: division by zero
graph corpus_quits:Net | cannot import 'corpus_quits:Net': SystemExit: 0
graph :Net | ':Net' names no class; write module:Class
graph json:JSONDecoder | 'json:JSONDecoder' is no graph; it must be a subclass of decentnode.graph.base.Graph
graph <a * 260>.edges | ....edges: cannot be read: File name too long
graph ring nodes=4 --weights | decentnode: Option '--weights' requires an argument (see decentnode --help)
graph ring nodes=4 --weights metropolis
    | unknown weights 'metropolis'; did you mean 'metropolis_hastings'? (known: ...)
graph ring nodes=4 --weights ./full | ./full: cannot be read: Is a directory
graph ring nodes=4 --weights w.txt | w.txt: cannot be read: No such file or directory
graph exponential nodes=4 --weights metropolis_hastings
    | metropolis_hastings weights need an undirected graph; use uniform or file
graph ring nodes=4 --weights json:JSONDecoder
    | 'json:JSONDecoder' is no weights; it must be a subclass of decentnode.graph.mixing.Mixing
tune | decentnode: Missing argument 'CONFIG' (see decentnode --help)
tune y.yaml | y.yaml: cannot be read: No such file or directory
tune x.yaml
    | x.yaml:14 sharing: gossip has no gamma to tune; beer, beer_per_edge, choco, choco_per_edge,
    + deep_squeeze, moniqua, stc have one
tune x.yaml 'sharing={name: stc, server: 0}' 'graph={name: star, nodes: 4}'
    | command line: sharing: stc with a server makes no use of gamma
tune x.yaml sharing=choco 'graph={name: ring, nodes: 1}' mapping=null
    | command line: graph: one node alone has no neighbor to agree with
tune x.yaml rounds=x | command line: rounds: must be a whole number > 0, not 'x'
calibrate | decentnode: Missing argument 'CONFIG' (see decentnode --help)
calibrate y.yaml | y.yaml: cannot be read: No such file or directory
calibrate x.yaml --steps 1
    | decentnode: Invalid value for '--steps': Input should be greater than or equal to 3 ...
calibrate x.yaml rounds=x | command line: rounds: must be a whole number > 0, not 'x'
list sharng | unknown kind or plug-in 'sharng'; did you mean 'sharing'? (known: ...)
list optimizer | unknown kind or plug-in 'optimizer' (known: ...)
list sharing graph | unknown sharing 'graph' (known: ad_psgd, all_reduce, ...
plot | decentnode: Missing argument 'RUN...' (see decentnode --help)
plot nowhere | nowhere: not the directory of a run (it has no config.yaml)
plot ring.edges | ring.edges: not the directory of a run (it has no config.yaml)
plot full | full: not the directory of a run (it has no config.yaml)
compare full | full: not the directory of a run (it has no config.yaml)
report full | full: not the directory of a run (it has no config.yaml), nor of a study
plot full --output x | decentnode: No such option: --output (Possible options: --out) (see decentnode --help)
plot full --out | decentnode: Option '--out' requires an argument (see decentnode --help)
bench startp | bench: unknown benchmark 'startp' (known: ...)
doctor y.yaml | y.yaml: cannot be read: No such file or directory
doctor ring.edges | ring.edges:1: this is not a mapping; a configuration has lines such as 'seed: 1'
schema x | decentnode: Got unexpected extra argument(s) (x) (see decentnode --help)
keys | decentnode: Missing argument 'CONFIG' (see decentnode --help)
run x.yaml 'communication={name: zeromq, local: tcp, base_port: {busy}}'
    | command line: communication.base_port: port {busy} at 127.0.0.1 is in use; the ports {busy}... are
    + needed, so name others: communication.base_port=...
run x.yaml security=none machine=0 'mapping={rendezvous_port: {busy}, machines: [{address: 127.0.0.1,
    + nodes: 2}, {address: 127.0.0.2, nodes: 2}]}'
    | command line: mapping.rendezvous_port: port {busy} at 127.0.0.1 is in use; it is needed, so name
    + others: mapping.rendezvous_port=...
run x.yaml security=none 'mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address: 203.0.113.8,
    + nodes: 2}]}'
    | command line: mapping: no machine has an address of this host (0: 203.0.113.7, 1: 203.0.113.8); ...
run x.yaml security=none machine=0 'mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address:
    + 203.0.113.8, nodes: 2}]}'
    | command line: mapping: 203.0.113.7 is no address of this host, which is machine 0; correct either, or
    + add where it listens behind NAT, as listen: 0.0.0.0
run x.yaml 'mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}'
    | command line: mapping: several machines have an address of this host (0: 127.0.0.1, 1: 127.0.0.2); ...
run x.yaml machine=2 'mapping={machines: [{address: 127.0.0.1, nodes: 2}, {address: 127.0.0.2, nodes: 2}]}'
    | command line: machine: must be the index of a machine, 0..1, not 2
doctor x.yaml security=none 'mapping={machines: [{address: 203.0.113.7, nodes: 2}, {address:
    + 203.0.113.8, nodes: 2}]}'
    | command line: mapping: no machine has an address of this host (0: 203.0.113.7, 1: 203.0.113.8); ...
convert king nowhere | nowhere: cannot be read: No such file or directory
convert kng ring.edges
    | convert: unknown kind 'kng'; did you mean 'king'? (known: fedscale-capacity, fedscale-availability,
    + flash, king, wonderproxy, matrix)
convert matrix ring.edges | convert: a matrix needs --unit: us, ms, s
convert king ring.edges --unit min | convert: --unit must be us, ms, s, not 'min'
convert king ring.edges --nodes 0 | convert: --nodes must be at least 1, not 0
convert king ring.edges --hours 2 | convert: --hours is no option of king, but of fedscale-availability, flash
convert flash ring.edges --complete
    | convert: --complete is no option of flash, but of king, wonderproxy, matrix
convert flash ring.edges --hours nan | convert: --hours must be > 0, not nan
convert flash ring.edges | ring.edges: no pickle of plain values: ...
convert king ring.edges | ring.edges:2: has 2 numbers; the first line has 1
"""
"""Command lines beside the file BASE, which is right."""
