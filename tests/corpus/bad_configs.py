"""Configurations and overrides that are wrong, and the lines that say so (`table.py` reads them)."""

EDITS = r"""
= name: trial
name: a/b | 1 name | must be made of letters, digits, '_', '-' and '.', at most 100, not 'a/b'
name: "\\ud800" | 1 name | this text has a character that is not allowed (null, or half of a surrogate pair)
name: 5 | 1 name | must be text, not 5
extend: base.yaml | 1 extend | unknown key; did you mean 'extends'?
name: '' | 1 name | must be made of letters, digits, '_', '-' and '.', at most 100, not ''
name: <a * 101> | 1 name | must be made of letters, digits, '_', '-' and '.', at most 100, not '<a * 40>'
name: my run | 1 name | must be made of letters, digits, '_', '-' and '.', at most 100, not 'my run'
name: ../up | 1 name | must be made of letters, digits, '_', '-' and '.', at most 100, not '../up'
name: 'trial | 1 | not valid YAML: found unexpected end of stream; a quote that begins here has no end
name: "\\q"
    | 1 | not valid YAML: found unknown escape character 'q'; write \\\\ for a backslash, or use single quotes
%YAML 9.9\n---\nname: trial | 1 | not valid YAML: found incompatible YAML document (version 1.* is required)
name: !!binary aGVsbG8= | 1 name | the tag 'binary' is not read; write a plain value

= seed: 1
sed: 1 | 2 sed | unknown key; did you mean 'seed'?
zebra: 1 | 2 zebra | unknown key (known: ...)
seed: 99999999999999999999 | 2 seed | 99999999999999999999 is too large; whole numbers have at most 63 bits
device: gpu | 2 device | must be 'cpu' or 'cuda' or 'auto', not 'gpu'
seed: 1\nseed: 2 | 3 seed | this key appears twice; the first is in line 2
seed: !!python/object:os.system x
    | 2 seed | the tag 'python/object:os.system' is not read; write a plain value
1: seed | 2 | the key 1 is not text; put it in quotes
? !!str [a]\n: 1 | 2 | a key is a string, not a list or a mapping
? [a]\n: 1 | 2 | a key is a string, not a list or a mapping
seed: -1 | 2 seed | must be a whole number >= 0, not -1
seed: 1.5 | 2 seed | must be a whole number >= 0, not 1.5
seed: [1] | 2 seed | must be a whole number >= 0, not a list of 1
seed: false | 2 seed | must be a whole number >= 0, not false
seed: 1e3 | 2 seed | must be a whole number >= 0, not 1000.0
device: 0 | 2 device | must be 'cpu' or 'cuda' or 'auto', not 0
device: cuda:0 | 2 device | must be 'cpu' or 'cuda' or 'auto', not 'cuda:0'
run_dir: 5 | 2 run_dir | must be text or null, not 5
machine: -1 | 2 machine | must be a whole number >= 0 or null, not -1
machine: node1 | 2 machine | must be a whole number >= 0 or null, not 'node1'
Seed: 1 | 2 Seed | unknown key; did you mean 'seed'?
batch_size: 3 | 2 batch_size | unknown key (known: ...)
checkpoint: {every: -1} | 2 checkpoint.every | must be a whole number >= 0, not -1
checkpoint: 10 | 2 checkpoint | must be a mapping with every, final, not 10
checkpoint: {evry: 10} | 2 checkpoint.evry | unknown key; did you mean 'every'?
seed:1 | 2 | not valid YAML: could not find expected ':'; write 'key: value', with a blank after the colon
seed: & 1
    | 2 | not valid YAML: expected alphabetic or numeric character, but found ' '; put text that begins ...
seed: *one | 2 | not valid YAML: found undefined alias 'one'; put text that begins with * in quotes
%seed: 1
    | 2 | not valid YAML: expected alphabetic or numeric character, but found ':'; put text that begins ...
seed: @1
    | 2 | not valid YAML: found character '@' that cannot start any token; put text that begins with it in ...
seed: |\n  1 | 2 seed | must be a whole number >= 0, not '1\\n'
~: 1 | 2 | the key ~ is not text; put it in quotes
seed: 2026-11-21 | 2 seed | must be a whole number >= 0, not '2026-11-21'
seed: !!float x | 2 seed | 'x' is not a number
seed: !!int '0b1' | 2 seed | '0b1' is not a number
seed: <9 * 5000> | 2 seed | <9 * 40>... is too large; whole numbers have at most 63 bits
task: clasification | 2 task | unknown task 'clasification'; did you mean 'classification'? (known: ...)
task: {name: next_token, top_k: [5]} | 2 task.top_k | unknown option of next_token
records: {writers: {name: csv}} | 2 records.writers | must be a list of writers, not a mapping
records: {writers: [csv, tensorbord]}
    | 2 records.writers[1] | unknown writer 'tensorbord'; did you mean 'tensorboard'? (known: ...)
records: {writers: [{name: csv, per_rank: true}]}
    | 2 records.writers[0].per_rank | unknown option of csv (known: file)
records: {writers: [{name: wandb, mode: of}]}
    | 2 records.writers[0].mode | must be 'online' or 'offline' or 'disabled' or null, not 'of'
records: {writers: ['corpus_graphs:Honest']}
    | 2 records.writers[0] | 'corpus_graphs:Honest' is no writer; it must be a subclass of
    + decentnode.results.writers.base.Writer
adversaries: [{name: sign_flp, ranks: [1]}]
    | 2 adversaries[0].name | unknown attack 'sign_flp'; did you mean 'sign_flip'? (known: ...)
adversaries: [{name: sign_flip, ranks: [4]}]
    | 2 adversaries[0].ranks | rank 4 does not exist; the graph has 0..3
adversaries: [{name: sign_flip, ranks: [1]}, {name: noise, ranks: [2, 1]}]
    | 2 adversaries[1].ranks | rank 1 already makes the attack of adversaries[0]; name it once
adversaries: [{name: membership, ranks: [0], victims: [2]}]
    | 2 adversaries[0].victims | rank 2 is no neighbor of ranks 0; these are 1, 3
adversaries: [{name: record, links: [[1, 3]]}]
    | 2 adversaries[0].links | ranks 1 and 3 never exchange in this graph; name ranks that do
adversaries: [{name: lira, links: [[0, 1]]}]
    | 2 adversaries[0].public | lira needs samples, and an eavesdropper has none; give it a share of the test
    + samples, such as public: 0.5, or name ranks
adversaries: [{name: linkability, ranks: [0], method: loss}]
    | 2 adversaries[0].method | loss needs the samples of the candidates, which no party has; knows_samples:
    + true grants them, and distance and timing need none
adversaries: [{name: reconstruction, ranks: [0], unknowns: all}]
    | 2 adversaries[0].unknowns | must be 'models' or 'gradient' or 'updates', not 'all'
adversaries: [{name: reconstruction, ranks: [0], victims: [4]}]
    | 2 adversaries[0].victims | rank 4 does not exist; the graph has 0..3
adversaries: [{name: reconstruction, ranks: [0], online: true}]
    | 2 adversaries[0].online | reconstruction solves for all rounds after the run; set false
adversaries: [{name: topology_inference, ranks: [0], threshold: 0}]
    | 2 adversaries[0].threshold | must be a number > 0 and <= 1, not 0
adversaries: [{name: record, ranks: [0], owns: true}]
    | 2 adversaries[0].owns | unknown option of record; did you mean 'own'?
adversaries: [{name: dlg}] | 2 adversaries[0] | nobody listens; give ranks, or links such as [[0, 1]]
adversaries: [{name: sign_flip, ranks: [0, 1, 2, 3]}]
    | 2 adversaries | all nodes are adversaries; leave some honest
faults: {name: crash} | 2 faults | must be a list of faults, not a mapping
faults: crash | 2 faults | must be a list of faults, not 'crash'
faults: [{name: crsh}] | 2 faults[0].name | unknown fault 'crsh'; did you mean 'crash'? (known: ...)
faults: [{name: crash, seconds: 3}] | 2 faults[0].seconds | unknown option of crash; did you mean 'rounds'?
faults: [{name: crash, ranks: 4}] | 2 faults[0] | rank 4 does not exist; the graph has the ranks 0..3
faults: [{name: crash, ranks: -1}]
    | 2 faults[0].ranks | must be 'all' or a whole number >= 0 or a list of whole numbers >= 0, not -1
faults: [{name: crash, ranks: [0, x]}] | 2 faults[0].ranks[1] | must be a whole number >= 0, not 'x'
faults: [{name: crash, machine: 1}] | 2 faults[0].machine | must be the index of a machine, 0..0, not 1
faults: [{name: crash, rounds: 3}] | 2 faults[0].rounds | never comes: the rounds are 0..2, and it begins in 3
faults: [{name: crash, rounds: -1}]
    | 2 faults[0].rounds | must be a whole number >= 0 or a list of exactly 2 (a whole number >= 0, a whole
    + number >= 0) or null, not -1
faults: [{name: crash, rounds: [0, 1, 2]}]
    | 2 faults[0].rounds | must be a list of exactly 2 (a whole number >= 0, a whole ... not a list of 3
faults: [{name: crash, rounds: [2, 1]}]
    | 2 faults[0].rounds | must be the first and the last, not 2 and then 1
faults: [{name: drop, probability: 10}] | 2 faults[0].probability | must be a number >= 0 and <= 1, not 10
faults: [{name: crash, activity: training}]
    | 2 faults[0].activity | must be 'begin' or 'train' or 'send' or 'receive' or 'mix' or 'evaluate' or
    + 'checkpoint', not 'training'
faults: [{name: stop, seconds: 0}] | 2 faults[0].seconds | must be a number > 0, not 0
faults: [{name: slow, factor: 1}] | 2 faults[0].factor | must be a number > 1, not 1
faults: [{name: slow, activity: receive}]
    | 2 faults[0].activity | 'receive' is for one rank, named in `ranks`: several nodes that take long to
    + wait for each other wait ever longer
faults: [partition] | 2 faults[0].groups | missing; it must be a list of lists of whole numbers >= 0
faults: [{name: partition, groups: [[0, 1], [1, 2]]}]
    | 2 faults[0].groups | rank 1 is named 2 times; once is right
faults: [{name: partition, groups: [[0, 9], [1]]}]
    | 2 faults[0] | rank 9 does not exist; the graph has the ranks 0..3
faults: [{name: partition, groups: [[0, 1]]}]
    | 2 faults[0].groups | must be two lists of ranks or more, none of them empty
faults: [null] | 2 faults[0] | missing; name one of: ...
security: off
    | 2 security | must be 'auto' or 'none' or 'environment' or a mapping with keys or a mapping with
    + secret, not 'off'
security: 1
    | 2 security | must be 'auto' or 'none' or 'environment' or a mapping with keys or a mapping with
    + secret, not 1
security: {key: keys} | 2 security.key | unknown key; did you mean 'keys'?
security:\n  secrt: job.key | 3 security.secrt | unknown key; did you mean 'secret'?
security: {zebra: 1} | 2 security.zebra | unknown key (known: keys, secret)
security: {keys: keys, secret: job.key}
    | 2 security.secret | does not go with keys; leave one of them out
security: {}
    | 2 security | must be 'auto' or 'none' or 'environment' or a mapping with keys or a mapping with
    + secret, not an empty mapping
security: {keys: null} | 2 security.keys | must be a path, not null
"a\\nb": 1 | 2 a\\nb | unknown key (known: ...)
seed: &a [1] | 2 seed | must be a whole number >= 0, not a list of 1

= seed: 1\n
seed: x\r\n | 2 seed | must be a whole number >= 0, not 'x'

= rounds: 3
ruonds: 3 | 3 ruonds | unknown key; did you mean 'rounds'?
rounds: -3 | 3 rounds | must be a whole number > 0, not -3
rounds: '3' | 3 rounds | must be a whole number > 0, not '3'
rounds: true | 3 rounds | must be a whole number > 0, not true
rounds: 3.0 | 3 rounds | must be a whole number > 0, not 3.0
rounds: 1_000 | 3 rounds | must be a whole number > 0, not '1_000'
rounds: 0 | 3 rounds | must be a whole number > 0, not 0
rounds: null | 3 rounds | missing; it must be a whole number > 0
rounds: .inf | 3 rounds | .inf is not a finite number
rounds: {a: 1} | 3 rounds | must be a whole number > 0, not a mapping
rounds: 3 rounds | 3 rounds | must be a whole number > 0, not '3 rounds'
rounds: 9223372036854775808 | 3 rounds | 9223372036854775808 is too large; whole numbers have at most 63 bits

= rounds: 3\n
"" | 1 rounds | missing; it must be a whole number > 0

= rounds: 3\ngraph: {name: file, path: ring.edges}
rounds: x\ngraph: ring\nmachin: 1 | 3 rounds | must be a whole number > 0, not 'x'
    | 4 graph.nodes | missing; it must be a whole number > 0
    | 5 machin | unknown key; did you mean 'machine'?

= {name: file, path: ring.edges}
rng | 4 graph | unknown graph 'rng'; did you mean 'ring'? (known: ...)
{name: regular, degree: 2} | 4 graph.nodes | missing; it must be a whole number > 0
null | 4 graph | missing; name one of: ...
{} | 4 graph.name | missing; name one of: ...
4 | 4 graph | must be a name, or a mapping with its options, not 4
[ring] | 4 graph | must be a name, or a mapping with its options, not a list of 1
{name: ring, nodes: 0} | 4 graph.nodes | must be a whole number > 0, not 0
{name: ring, nodes: 4.0} | 4 graph.nodes | must be a whole number > 0, not 4.0
{name: ring, nodes: '4'} | 4 graph.nodes | must be a whole number > 0, not '4'
{name: ring, nodes: 1000000000} | 4 graph | 1,000,000,000 nodes are too many for a graph; at most 1,000,000
{name: hypercube, dimension: 17} | 4 graph.dimension | must be a whole number >= 0 and <= 16, not 17
{name: regular, nodes: 4, degree: 4} | 4 graph | regular: degree must be below nodes, got degree 4 for 4 nodes
{name: regular, nodes: 5, degree: 3} | 4 graph | regular: nodes * degree must be even, got 5 * 3
{name: regular, nodes: 4, degree: 1} | 4 graph | regular: degree must be at least 2 to connect 4 nodes, got 1
{name: regular, nodes: 3, degree: 5} | 4 graph | regular: degree must be below nodes, got degree 5 for 3 nodes
    | 4 graph | regular: nodes * degree must be even, got 3 * 5
{name: small_world, nodes: 8, degree: 3, rewire: 0.1}
    | 4 graph | small_world: degree must be even, half of it on each side, got 3
{name: small_world, nodes: 2, degree: 2, rewire: 0.1}
    | 4 graph | small_world: degree must be below nodes, got degree 2 for 2 nodes
{name: epidemic_oracle, nodes: 7, degree: 3}
    | 4 graph | epidemic_oracle: nodes * degree must be even, got 7 * 3
{name: epidemic_oracle, nodes: 4, degree: 4}
    | 4 graph | epidemic_oracle: degree must be below nodes, got 4 and 4
{name: epidemic_local, nodes: 4, degree: 4}
    | 4 graph | epidemic_local: degree must be below nodes, got 4 and 4
{name: mosaic, nodes: 4, degree: 4, fragments: 2}
    | 4 graph | mosaic: degree must be below nodes, got 4 and 4
{name: mosaic, nodes: 4, degree: 2, fragments: 1001}
    | 4 graph.fragments | must be a whole number >= 1 and <= 1000, not 1001
{name: equi_topo, nodes: 1, shifts: 2} | 4 graph | equi_topo: nodes must be at least 2, got 1
{name: one_peer_hypercube, nodes: 6}
    | 4 graph | one_peer_hypercube: nodes must be 1, 2, 4, 8, ..., not 6; one_peer_exponential and
    + base_k_plus_one take any number
{name: alternating_exponential_ring, nodes: 6, per_machine: 4}
    | 4 graph | alternating_exponential_ring: nodes must be a multiple of per_machine, got 6 and 4
{name: alternating_exponential_ring, nodes: 12, per_machine: 4}
    | 4 graph | alternating_exponential_ring: there must be 1, 2, 4, 8, ... machines, got 12 / 4 = 3;
    + base_k_plus_one takes any number of nodes
{name: alternating_ring, nodes: 2000000}
    | 4 graph | 2,000,000 nodes are too many for a graph; at most 1,000,000
{name: federated, nodes: 1} | 4 graph | federated: nodes must be at least 2, so that there is a client, got 1
{name: federated, nodes: 4, server: 4} | 4 graph | federated: server must be a rank, 0..3, got 4
{name: federated, nodes: 4, standby: 5} | 4 graph | federated: standby must be a rank, 0..3, got 5
{name: federated, nodes: 4, standby: 0}
    | 4 graph | federated: standby must be another rank than the server, 0
{name: federated, nodes: 4, clients: 4} | 4 graph | federated: clients must be at most 3, got 4
{name: token_walk, nodes: 4, degree: 2, path: ring.edges}
    | 4 graph | token_walk: give either degree or path
{name: token_walk, nodes: 4, degree: 4}
    | 4 graph | token_walk: degree must be below nodes, got degree 4 for 4 nodes
{name: small_world, nodes: 4, degree: 5, rewire: 0.1}
    | 4 graph | small_world: degree must be below nodes, got degree 5 for 4 nodes
    | 4 graph | small_world: degree must be even, half of it on each side, got 5
'corpus_graphs:Changes'
    | 4 graph | Changes declares static, but changes: targets(0, 0) is (1,), targets(0, 1) is (3,); set
    + period = None, or give its period (AperiodicGraph or PeriodicGraph of decentnode.graph)
'corpus_graphs:Late'
    | 4 graph | Late declares that it repeats after 2 rounds, but does not: targets(0, 0) is (1,), ...
'corpus_graphs:Apart'
    | 4 graph | Apart: the graph falls into 2 components, nodes 0 and 2 do not reach each other; add edges or
    + set allow_disconnected = True
'corpus_graphs:Lonely'
    | 4 graph | Lonely: 1 of 4 nodes have no neighbor (3); add edges or set allow_disconnected = True
'corpus_graphs:OneWay'
    | 4 graph | OneWay: targets(0, 0) has 1, but targets(1, 0) lacks 0; correct that, or set directed = True
'corpus_graphs:Itself' | 4 graph | Itself: targets(0, 0) must be ranks 0..3 other than 0, ascending, not (0,)
'corpus_graphs:Raises' | 4 graph | Raises: targets(0, 0) fails: KeyError: 0
{name: small_world, nodes: 4, degree: 2, rewire: 1.5}
    | 4 graph.rewire | must be a number >= 0 and <= 1, not 1.5
{name: erdos_renyi, nodes: 4, probability: 0}
    | 4 graph | none of 100 draws of ErdosRenyi(nodes=4, seed=1, probability=0.0) was connected; take a
    + probability above ln(n)/n = 0.347
{name: erdos_renyi, nodes: 4, probability: .nan} | 4 graph.probability | .nan is not a finite number
{name: grid, rows: 2, colums: 2} | 4 graph.colums | unknown option of grid; did you mean 'columns'?
graphs/ring.edges | 4 graph.path | no such file: {here}/graphs/ring.edges
{name: federated, nodes: 4}
    | 14 sharing | gossip is for peers, but federated has a server; use one of: fed_adam, fed_avg, ...
    | 14 sharing.weights | metropolis_hastings weights need an undirected graph; use uniform or file
{name: federated, nodes: 4, rate: 0.5, clients: 2}
    | 4 graph | federated: give the rate or the number of clients, not both
{name: token_walk, nodes: 4} | 4 graph | token_walk: give either degree or path
{name: hierarchical, nodes: 4, nodes_per_cluster: 3}
    | 4 graph | hierarchical: nodes must be a multiple of nodes_per_cluster, got 4 and 3
{name: hierarchical, nodes: 2000000, nodes_per_cluster: 1}
    | 4 graph | 2,000,000 nodes are too many for a graph; at most 1,000,000
{name: grid, rows: 100000, columns: 100000}
    | 4 graph | 10,000,000,000 nodes are too many for a graph; at most 1,000,000

= path: ring.edges
path: ring.edges, nodes: 4
    | 4 graph.nodes | unknown option of file (known: path, type, directed, allow_disconnected, edge_weights)
path: ring.edges, type: csv
    | 4 graph.type | must be 'edges' or 'adjacency' or 'gml' or 'graphml' or ...
path: null | 4 graph.path | must be text, not null
path: . | 4 graph | {here}: cannot be read: Is a directory
path: ~nobody_here/ring.edges
    | 4 graph.path | no usable path: '~nobody_here/ring.edges': there is no such user
path: <a * 260>.edges | 4 graph.path | no usable path: '<a * 40>...': File name too long
path: asymmetric.adj
    | 4 graph | {here}/asymmetric.adj:3: node 1 lists 2, but node 2 does not list 1; add it or set directed
    | 4 graph | {here}/asymmetric.adj:5: node 3 lists 0, but node 0 does not list 3; add it or set directed
path: mixed.edges
    | 4 graph | {here}/mixed.edges:6: '2 3' is there, '3 2' is not, unlike others; add it or set directed

= path: ring.edges}
path: ring.edges, directed: true}\nsharing2: 1 | 5 sharing2 | unknown key; did you mean 'sharing'?
    | 15 sharing.weights | metropolis_hastings weights need an undirected graph; use uniform or file

= ring.edges
rong.edges | 4 graph.path | no such file: {here}/rong.edges; did you mean 'ring.edges'?
bad.edges | 4 graph | {here}/bad.edges:2: rank 9 is out of range; with 4 nodes it is 0..3
    | 4 graph | {here}/bad.edges:3: node 1 is its own neighbor; remove that, it always has its own model
ring.edges, directed: true
    | 14 sharing.weights | metropolis_hastings weights need an undirected graph; use uniform or file

= mapping:\n
mapping:\n  name: liner\n
    | 6 mapping.name | unknown mapping 'liner'; did you mean 'linear'? (known: environment, linear, open)
mapping:\n  hosts: 3\n | 6 mapping.hosts | unknown option of linear (known: machines, rendezvous_port, name)
mapping:\n  rendezvous_port: 0\n | 6 mapping.rendezvous_port | must be a whole number > 0 and < 65536, not 0
mapping:\n  rendezvous_port: 70000\n
    | 6 mapping.rendezvous_port | must be a whole number > 0 and < 65536, not 70000
mapping:\n  rendezvous_port: http\n
    | 6 mapping.rendezvous_port | must be a whole number > 0 and < 65536, not 'http'

= \s machines:\n    - {address: 127.0.0.1, nodes: 4}
\s name: linear | 5 mapping.machines | missing; it must be a list of mappings with address and nodes

= \n    - {address: 127.0.0.1, nodes: 4}
\s[] | 6 mapping.machines | the list is empty; give at least one {address: ..., nodes: ...}
\s4 | 6 mapping.machines | must be a list of mappings with address and nodes, not 4
\s{address: 127.0.0.1, nodes: 4}
    | 6 mapping.machines | must be a list of mappings with address and nodes, not a mapping

= {address: 127.0.0.1, nodes: 4}
4 | 7 mapping.machines[0] | must be a mapping with address and nodes, not 4
{address: 'fd00::1', nodes: 2}\n    - {address: 'fd00:0::1', nodes: 2}
    | 8 mapping.machines[1] | fd00:0::1 is the address of machines[0] too; give each machine its own, or ...
{address: 'fd00::1', nodes: 2}\n    - {address: 'FD00::1', nodes: 2}
    | 8 mapping.machines[1] | FD00::1 is the address of machines[0] too; give each machine its own, or ...

= {address: 127.0.0.1,\s
{ | 7 mapping.machines[0].address | missing; it must be text

= 127.0.0.1
10.0.0.300
    | 7 mapping.machines[0].address | '10.0.0.300' is not an address; give an IPv4 or IPv6 address or a ...
0.0.0.0
    | 7 mapping.machines[0].address | '0.0.0.0' is not the address of one machine; give the one that the ...
'node1:29600'
    | 7 mapping.machines[0].address | 'node1:29600' is more than an address; give an IPv4 or IPv6 address or
    + a host name without protocol and port
'[::1]' | 7 mapping.machines[0].address | '[::1]' is not an IPv6 address; write it bare, such as fd00::1
'' | 7 mapping.machines[0].address | '' is not an address; give an IPv4 or IPv6 address or a host name
127 | 7 mapping.machines[0].address | must be text, not 127
'tcp://10.0.0.1'
    | 7 mapping.machines[0].address | 'tcp://10.0.0.1' is more than an address; give an IPv4 or IPv6 address
    + or a host name without protocol and port
224.0.0.1
    | 7 mapping.machines[0].address | '224.0.0.1' is not the address of one machine; give the one that the ...
'::'
    | 7 mapping.machines[0].address | '::' is not the address of one machine; give the one that the others ...
<x * 64>.example
    | 7 mapping.machines[0].address | '<x * 64>.example' is not an address; give an IPv4 or IPv6 address ...
'my host'
    | 7 mapping.machines[0].address | 'my host' is not an address; give an IPv4 or IPv6 address or a host name
10.0.1
    | 7 mapping.machines[0].address | '10.0.1' is not an address; give an IPv4 or IPv6 address or a host name
'-node'
    | 7 mapping.machines[0].address | '-node' is not an address; give an IPv4 or IPv6 address or a host name
a..b
    | 7 mapping.machines[0].address | 'a..b' is not an address; give an IPv4 or IPv6 address or a host name
'fd00:::1' | 7 mapping.machines[0].address | 'fd00:::1' is not an IPv6 address; write it bare, such as fd00::1

= , nodes: 4}
} | 7 mapping.machines[0].nodes | missing; it must be a whole number > 0

= nodes: 4
nodes: 4, user: me | 7 mapping.machines[0].user | unknown key (known: address, nodes, listen)
nodes: 5 | 5 mapping | the machines carry 5 nodes, the graph has 4; correct either, they must be equal
nodes: 0 | 7 mapping.machines[0].nodes | must be a whole number > 0, not 0
nodes: 1.5 | 7 mapping.machines[0].nodes | must be a whole number > 0, not 1.5

= nodes: 4}
nodes: 2}\n    - {address: 127.0.0.1, nodes: 2}
    | 8 mapping.machines[1] | 127.0.0.1 is the address of machines[0] too; give each machine its own, or ...

= nodes: 4}\n
nodes: 2}\n    - {address: 10.0.0.2, nodes: 2}\nmachine: 2\n
    | 9 machine | must be the index of a machine, 0..1, not 2

= dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}\n
""
    | 1 dataset | missing; name one of: amazon, celeba, cifar10, cifar100, digits, femnist, hugging_face,
    + idx, image_folder, movielens, parallel, quadratic, reddit, sent140, shakespeare, synthetic, table,
    + text, tokens

= {name: digits, partition: {name: dirichlet, alpha: 0.5}}
null | 8 dataset | missing; name one of: ...

= name: digits
name: digit | 8 dataset.name | unknown dataset 'digit'; did you mean 'digits'? (known: ...)
name: digits, path: x
    | 8 dataset.path | unknown option of digits (known: train_size, test_size, mean, std, sample, partition,
    + skew, validation)
name: digits, train_size: 0 | 8 dataset.train_size | must be a whole number > 0 or null, not 0
name: digits, train_size: 0.5 | 8 dataset.train_size | must be a whole number > 0 or null, not 0.5
name: digits, test_size: -5 | 8 dataset.test_size | must be a whole number > 0 or null, not -5
name: idx, variant: fashion
    | 8 dataset.variant | must be 'fashion-mnist' or 'mnist' or 'kmnist' or 'emnist-balanced' or
    + 'emnist-byclass' or 'emnist-bymerge' or 'emnist-digits' or 'emnist-letters' or 'emnist-mnist', not
    + 'fashion'
name: synthetic, samples_per_node: 4 | 8 dataset.samples_per_node | must be a whole number >= 5 or null, not 4
name: synthetic, alpha: -1 | 8 dataset.alpha | must be a number >= 0, not -1
name: quadratic, a: [1, 0] | 8 dataset.a[1] | must be a number > 0, not 0
name: quadratic, b: ranks
    | 8 dataset.b | must be 'rank' or 'normal' or a list of numbers, not 'ranks'; did you mean 'rank'?

= partition: {name: dirichlet, alpha: 0.5}
skew: rotation | 8 dataset.skew | must be a list of skew, not 'rotation'
skew: [noise, {name: rotaton}]
    | 8 dataset.skew[1].name | unknown skew 'rotaton'; did you mean 'rotation'? (known: color, label_noise,
    + noise, rotation)
skew: [{name: label_noise, rate: 1.5}]
    | 8 dataset.skew[0].rate | must be a number >= 0 and <= 1 or a list of numbers >= 0 and <= 1, not 1.5
validation: {source: test, size: 1.0}
    | 8 dataset.validation.size | must be a whole number > 0 or a number > 0 and < 1, not 1.0
validation: {size: 5} | 8 dataset.validation.source | missing; it must be 'train' or 'test'

= {name: dirichlet, alpha: 0.5}
3 | 8 dataset.partition | must be a name, or a mapping with its options, not 3
{name: natural, rest: drop} | 8 dataset.partition.rest | must be 'pool' or 'refuse' or 'leave_out', not 'drop'
{name: shards, labels_per_node: 0} | 8 dataset.partition.labels_per_node | must be a whole number > 0, not 0
sizes | 8 dataset.partition.sizes | missing; it must be a list of numbers >= 0
{name: sizes, sizes: [0.5, -0.5]} | 8 dataset.partition.sizes[1] | must be a number >= 0, not -0.5

= name: dirichlet
name: dirichle
    | 8 dataset.partition.name | unknown partition 'dirichle'; did you mean 'dirichlet'? (known: dirichlet,
    + iid, natural, quantity, shards, sizes)

= alpha
alhpa | 8 dataset.partition.alhpa | unknown option of dirichlet; did you mean 'alpha'?

= alpha: 0.5
alpha: 0 | 8 dataset.partition.alpha | must be a number > 0, not 0
alpha: -0.5 | 8 dataset.partition.alpha | must be a number > 0, not -0.5
alpha: .inf | 8 dataset.partition.alpha | .inf is not a finite number
min_size: -1 | 8 dataset.partition.min_size | must be a whole number >= 0, not -1
ranks: [0, -1] | 8 dataset.partition.ranks[1] | must be a whole number >= 0, not -1
ranks: 3 | 8 dataset.partition.ranks | must be a list of whole numbers >= 0 or null, not 3

= {name: mlp, hidden: [8]}
nowhere:Net | 9 model | cannot import 'nowhere:Net': No module named 'nowhere' in {here}, beside the ...
corpus_broken:Net | 9 model | cannot import 'corpus_broken:Net': ZeroDivisionError: division by zero
[mlp] | 9 model | must be a name, or a mapping with its options, not a list of 1
null
    | 9 model | missing; name one of: celeba_cnn, cifar_cnn, cnn, gpt2, lenet, logistic_regression, lstm,
    + matrix_factorization, mlp, quadratic, reddit_lstm, resnet18, resnet50, resnet8, shakespeare_lstm,
    + transformer, vgg11, vit
{name: cnn, channels: [1, 2, 3]}
    | 9 model.channels | must be a list of exactly 2 (a whole number > 0, a whole number > 0), not a list of 3
{name: resnet18, norm: layer} | 9 model.norm | must be 'group' or 'batch', not 'layer'
{name: quadratic, start: zero} | 9 model.start | must be a number, not 'zero'
{name: 'corpus_nets:Net', with: 5}
    | 9 model.with | unknown option of corpus_nets:Net; did you mean 'width'?
'json:' | 9 model | 'json:' names no class; write module:Class
'json:JSONDecoder'
    | 9 model | 'json:JSONDecoder' is no model; it must be a subclass of decentnode.models.base.Model or ...
'.models:Net' | 9 model | '.models:Net' names no class; write module:Class
'syntax:Net'
    | 9 model | cannot import 'syntax:Net': No module named 'syntax' in {here}, beside the configuration, ...
'quits:Net'
    | 9 model | cannot import 'quits:Net': No module named 'quits' in {here}, beside the configuration, or ...
'outside.py:Net' | 9 model | cannot import 'outside.py:Net': No module named 'outside'

= name: mlp
name: 3 | 9 model.name | must be a name, not 3; name one of: ...
name: MLP | 9 model.name | unknown model 'MLP'; did you mean 'mlp'? (known: ...)

= hidden: [8]
hidden: [8, 0] | 9 model.hidden[1] | must be a whole number > 0, not 0
hidden: 8 | 9 model.hidden | must be a list of whole numbers > 0, not 8
hidden: ['8'] | 9 model.hidden[0] | must be a whole number > 0, not '8'
hidden: null | 9 model.hidden | must be a list of whole numbers > 0, not null
hidden: [8
    | 9 | not valid YAML: expected ',' or ']', but got '}'; close what is open with } or ], and put commas ...
hidden: !!set {8} | 9 model.hidden | the key 8 is not text; put it in quotes
    | 9 model.hidden | must be a list of whole numbers > 0, not an empty mapping

= training:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n  steps_per_round: 5\n
"" | 1 training | missing; it must be a mapping with optimizer and steps_per_round or epochs_per_round

= training:\n
training: []\nname2:\n
    | 10 training | must be a mapping with optimizer and steps_per_round or epochs_per_round, not a list of 0
    | 11 name2 | unknown key; did you mean 'name'?

= \s optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n  steps_per_round: 5\n
"" | 10 training | missing; it must be a mapping with optimizer and steps_per_round or epochs_per_round

= \s optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n
"" | 10 training.optimizer | missing; name one of: ...

= optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
optimizer: LBFGS\n  dtype: bfloat16\n  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}
    | 11 training.optimizer | LBFGS takes several gradients in a step, and each spends; use SGD
    | 12 training.dtype | dp_sgd clips exactly, which bfloat16 cannot; use float32

= {name: SGD, lr: 0.1, momentum: 0.9}
null | 11 training.optimizer | missing; name one of: ...
0.1 | 11 training.optimizer | must be a name, or a mapping with its options, not 0.1
{name: Adam, betas: [0.9]}
    | 11 training.optimizer.betas | must be a list of exactly 2 (a number, a number), not a list of 1
{name: Adam, betas: 0.9}
    | 11 training.optimizer.betas | must be a list of exactly 2 (a number, a number), not 0.9
{name: Adam, betas: {a: 1}}
    | 11 training.optimizer.betas | must be a list of exactly 2 (a number, a number), not a mapping
{name: Adam, betas: [0.9, 1.5]} | 11 training.optimizer | Adam: Invalid beta parameter at index 1: 1.5
{name: Adam, eps: -1} | 11 training.optimizer | Adam: Invalid epsilon value: -1.0
{name: AccumAdam, accum_iter: 0}
    | 11 training.optimizer | AccumAdam: accum_iter must be a whole number > 0, not 0
SparseAdam
    | 11 training.optimizer | SparseAdam needs sparse gradients, and the gradient here is one dense ...
LBFGS\n  amp: float16
    | 12 training.amp | float16 skips steps whose gradient overflows, and LBFGS cannot leave a line ...
{name: AccumAdm} | 11 training.optimizer.name | unknown optimizer 'AccumAdm'; did you mean 'AccumAdam'? ...
{name: AccumAdam, accum: 2}
    | 11 training.optimizer.accum | unknown option of AccumAdam; did you mean 'accum_iter'?
{name: Muon, adamw_params: 1.*}
    | 11 training.optimizer | Muon: adamw_params must be a list of patterns, not '1.*'
{name: Muon, adamw_rl: 1} | 11 training.optimizer.adamw_rl | unknown option of Muon; did you mean 'adamw_lr'?
{name: Muon, adamw_eps: -1} | 11 training.optimizer | Muon: Invalid epsilon value: -1.0
{name: Muon}\n  execution: {batches: 8}
    | 12 training.execution.batches | needs all nodes in one process, and zeromq has several; use inproc or
    + simulated
    | 12 training.execution.batches | Muon does not change each number by its own gradient alone; leave it
    + out, or ...
{name: SGD, lr: 0.1}\n  decay: weights
    | 12 training.decay | weights needs an optimizer with a weight_decay above 0

= name: SGD
name: sgd | 11 training.optimizer.name | unknown optimizer 'sgd'; did you mean 'SGD'? (known: ...)
name: muon | 11 training.optimizer.name | unknown optimizer 'muon'; did you mean 'Muon'? (known: ...)
name: Adma | 11 training.optimizer.name | unknown optimizer 'Adma'; did you mean 'Adam'? (known: ...)

= lr: 0.1
lr: .nan | 11 training.optimizer.lr | .nan is not a finite number
lr: 1e999 | 11 training.optimizer.lr | 1e999 is not a finite number
lr: -1 | 11 training.optimizer | SGD: Invalid learning rate: -1.0
lr: fast | 11 training.optimizer.lr | must be a number, not 'fast'
lr: '0.1' | 11 training.optimizer.lr | must be a number, not '0.1'
lr: null | 11 training.optimizer.lr | must be a number, not null
lr: [0.1] | 11 training.optimizer.lr | must be a number, not a list of 1
lr: 0,1 | 11 training.optimizer | the key 1 is not text; put it in quotes

= momentum
momentm | 11 training.optimizer.momentm | unknown option of SGD; did you mean 'momentum'?

= momentum: 0.9
<<: {momentum: 0.9}
    | 11 training.optimizer | merge keys (<<) are not read; write the keys out, or use an alias for a ...
momentum: -0.9 | 11 training.optimizer | SGD: Invalid momentum value: -0.9
nesterov: true | 11 training.optimizer | SGD: Nesterov momentum requires a momentum and zero dampening

= \s batch_size
\tbatch_size | 12 | a tab; YAML is indented with spaces
\s  batch_size
    | 12 | not valid YAML: expected <block end>, but found '<block mapping start>'; the entries of one
    + section begin in the same column

= batch_size
bach_size | 12 training.bach_size | unknown key; did you mean 'batch_size'?

= batch_size: 16
dtype: bfloat16\n  amp: float16
    | 13 training.amp | needs training.dtype: float32; bfloat16 computes the same without amp
amp: bfloat16\n  loss: BCELoss
    | 12 training.amp | BCELoss is not safe in mixed precision; use BCEWithLogitsLoss, and a model without a
    + sigmoid at its end
privacy: {name: dp_sgd, clip: 1, noise: 1, epsilon: 1, accountant: none, delta: 1.0e-5}
    | 12 training.privacy.epsilon | needs an accountant: rdp or pld
privacy: {name: dp_sgd, clip: 1, noise: 0, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.noise | 0 protects nothing; leave it out to compute it
privacy: {name: dp_sgd, pipeline: {epsilon_share: 0.1}, clip: 1, noise: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline.epsilon_share | is a part of training.privacy.epsilon, which is missing;
    + give pipeline.noise instead
privacy: {name: dp_sgd, pipeline: {}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline | give one of epsilon_share and noise
privacy: {name: dp_sgd, pipeline: {noise: 5, epsilon_share: 0.1}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline | give one of epsilon_share and noise
privacy: {name: dp_sgd, pipeline: {epsilon_share: 1, delta_share: 0}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline.epsilon_share | must be a number > 0 and < 1 or null, not 1
    | 12 training.privacy.pipeline.delta_share | must be a number > 0 and < 1 or null, not 0
privacy: {name: dp_sgd, pipeline: {noise: 0, bounds: [0, 1, 2]}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline.noise | must be a number > 0 or null, not 0
    | 12 training.privacy.pipeline.bounds | must be a list of exactly 2 (a number, a number), not a list of 3
privacy: {name: dp_sgd, pipeline: {noise: 1e5}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline | noise must be from 0.001 to 10000, not 100000
privacy: {name: dp_sgd, pipeline: {noise: 9, bounds: [3, 1]}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline | bounds must be two numbers, the least first, not 3 and 1
privacy: {name: dp_sgd, pipeline: {noise: 9, bounds: {age: [1, 1]}}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline | bounds of 'age' must be two numbers, the least first, not 1 and 1
privacy: {name: dp_sgd, pipeline: {noise: 9, bound: [0, 1]}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 12 training.privacy.pipeline.bound | unknown key; did you mean 'bounds'?
scheduler: {name: WarmupCosine, total: 5, start_factor: 0}
    | 12 training.scheduler | WarmupCosine: start_factor must be > 0 and <= 1, not 0.0
scheduler: {name: WarmupCosine, total: 5, final_lr: -1}
    | 12 training.scheduler | WarmupCosine: final_lr must be >= 0, not -1.0
scheduler: {name: InverseSquareRoot, warmup: 0}
    | 12 training.scheduler | InverseSquareRoot: warmup must be a whole number > 0, not 0
scheduler: StepLR | 12 training.scheduler.step_size | missing; it has no default
scheduler: WarmupCosine | 12 training.scheduler.total | missing; it has no default
scheduler: {name: WarmupCosine, warmup: 10, total: 10}
    | 12 training.scheduler | WarmupCosine: warmup must be >= 0 and below total, not 10 of 10
loss: {name: CrossEntropyLoss, reduction: none}
    | 12 training.loss | CrossEntropyLoss: reduction 'none' gives no single loss; use 'mean' or 'sum'
batch_size: 0 | 12 training.batch_size | must be a whole number > 0 or null, not 0
batch_size: -1 | 12 training.batch_size | must be a whole number > 0 or null, not -1
batch_size: 16.5 | 12 training.batch_size | must be a whole number > 0 or null, not 16.5
batch_size: 16\n  batch_tokens: 64 | 10 training | give one of batch_size and batch_tokens, not both
clip_norm: 0 | 12 training.clip_norm | must be a number > 0 or null, not 0
clip_norm: .inf | 12 training.clip_norm | .inf is not a finite number
dtype: float16 | 12 training.dtype | must be 'float64' or 'float32' or 'bfloat16', not 'float16'
amp: true | 12 training.amp | must be 'bfloat16' or 'float16' or null, not true
dtype: float64\n  amp: bfloat16
    | 13 training.amp | needs training.dtype: float32; float64 would lose its digits
batch_nodes: 8 | 12 training.batch_nodes | unknown key; did you mean 'batch_tokens'?
execution: all
    | 12 training.execution | must be 'auto' or 'alone' or a mapping with batches or a mapping with workers,
    + not 'all'
execution: {batches: all} | 12 training.execution.batches | must be a whole number > 0 or 'auto', not 'all'
execution: {workers: 0} | 12 training.execution.workers | must be a whole number > 0 or 'auto', not 0
execution: {workers: 2, batches: 8}
    | 12 training.execution.workers | does not go with batches; leave one of them out
execution: {batchs: auto} | 12 training.execution.batchs | unknown key; did you mean 'batches'?
execution:\n    workrs: 2\n    batchs: 8
    | 13 training.execution.workrs | unknown key; did you mean 'workers'?
    | 14 training.execution.batchs | unknown key; did you mean 'batches'?
execution: {batches: 2, x: 1} | 12 training.execution.x | unknown key (known: batches)
execution: {alone: true} | 12 training.execution.alone | unknown key (known: batches, workers)
execution: {batches: {batchs: 1}}
    | 12 training.execution.batches | must be a whole number > 0 or 'auto', not a mapping
execution: {}
    | 12 training.execution | must be 'auto' or 'alone' or a mapping with batches or a mapping with workers,
    + not an empty mapping
execution: [auto]
    | 12 training.execution | must be 'auto' or 'alone' or a mapping with batches or a mapping with workers,
    + not a list of 1
execution: null
    | 12 training.execution | must be 'auto' or 'alone' or a mapping with batches or a mapping with workers,
    + not null
pace: {step_second: 1, slowdown: {distributon: stragglers}}
    | 12 training.pace.slowdown.distributon | unknown key; did you mean 'distribution'?
    | 12 training.pace.step_second | unknown key; did you mean 'step_seconds'?
accumulate: 0 | 12 training.accumulate | must be a whole number > 0, not 0
compile: fast
    | 12 training.compile | must be true or false or 'default' or 'reduce-overhead' or 'max-autotune' or
    + 'eager' or 'aot_eager', not 'fast'
augmentation: [flip, {name: crp}]
    | 12 training.augmentation[1].name | unknown augmentation 'crp'; did you mean 'crop'? (known: ...)
augmentation: crop | 12 training.augmentation | must be a list of augmentation, not 'crop'
augmentation: [mixup, mixup] | 12 training.augmentation | mixup mixes a batch once; name it once
privacy: dp_sdg | 12 training.privacy | unknown privacy 'dp_sdg'; did you mean 'dp_sgd'? (known: dp_sgd)
privacy: {name: dp_sgd, clip: 0, epsilon: -1, delta: 1.0}
    | 12 training.privacy.clip | must be a number > 0, not 0
    | 12 training.privacy.delta | must be a number > 0 and < 1, not 1.0
    | 12 training.privacy.epsilon | must be a number > 0 or null, not -1
privacy: {name: dp_sgd, clip: 1, delta: 1.0e-5}
    | 12 training.privacy | give noise, or epsilon, for which the noise is computed
privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5, sampling: shuffle}
    | 12 training.privacy.sampling | rdp covers poisson and cyclic, not shuffle; use one of ...
privacy: {name: dp_sgd, correlation: factorised, clip: 1, noise: 1, delta: 1.0e-5}
    | 12 training.privacy.correlation | unknown correlation 'factorised'; did you mean 'factorized'? ...
privacy: {name: dp_sgd, correlation: {name: factorized, band: 0}, clip: 1, noise: 1, delta: 1.0e-5}
    | 12 training.privacy.correlation.band | must be a whole number > 0 or 'auto' or 'dense', not 0
privacy: {name: dp_sgd, correlation: {name: edges, ratio: -1}, clip: 1, noise: 1, delta: 1.0e-5}
    | 12 training.privacy.correlation.ratio | must be a number >= 0 or 'auto', not -1
privacy: {name: dp_sgd, correlation: {name: square_root, workload: alone}, clip: 1, noise: 1, delta: 1.0e-5}
    | 12 training.privacy.correlation.workload | unknown option of square_root (known: band)
privacy: {name: dp_sgd, correlation: anti_pgd, sampling: shuffle, accountant: none, clip: 1, noise: 1,
    + delta: 1.0e-5}
    | 12 training.privacy.correlation | needs to know in which steps a sample may be; use ...
privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}\n  compile: true\n  augmentation: [mixup]\n
    +  scheduler: ReduceLROnPlateau\n  batch_tokens: 100\n  amp: float16
    | 13 training.compile | dp_sgd does not compile the gradients of samples; leave it out
    | 14 training.augmentation | mixup mixes samples, and dp_sgd bounds what each adds; leave it out
    | 15 training.scheduler | ReduceLROnPlateau reads training losses, which are not private
    | 16 training.batch_tokens | dp_sgd draws each sample by itself; use batch_size
    | 17 training.amp | float16 scales losses, and dp_sgd clips gradients; use bfloat16
schedule_step: epoch | 12 training.schedule_step | must be 'round' or 'step', not 'epoch'
memory_format: channels-last
    | 12 training.memory_format | must be 'auto' or 'contiguous' or 'channels_last', not 'channels-last'; did
    + you mean 'channels_last'?
mix_buffers: 1 | 12 training.mix_buffers | must be true or false, not 1
scheduler: CosineAnnealing
    | 12 training.scheduler | unknown scheduler 'CosineAnnealing'; did you mean 'CosineAnnealingLR'? ...
scheduler: {name: StepLR, step_size: 0}
    | 12 training.scheduler | StepLR: cannot be stepped once per round: integer modulo by zero
scheduler: {name: StepLR, step_size: ten}
    | 12 training.scheduler | StepLR: cannot be stepped once per round: unsupported operand type(s) for %: ...
scheduler: {name: CosineAnnealingLR, T_max: 0}
    | 12 training.scheduler | CosineAnnealingLR: cannot be stepped once per round: integer modulo by zero
scheduler: {name: MultiStepLR, milestones: 3}
    | 12 training.scheduler | MultiStepLR: 'int' object is not iterable
scheduler: {name: LambdaLR} | 12 training.scheduler.name | unknown scheduler 'LambdaLR' (known: ...)
scheduler: {name: ExponentialLR, gamma: x}
    | 12 training.scheduler | ExponentialLR: cannot be stepped once per round: can't multiply sequence by ...
loss: CrossEntropy
    | 12 training.loss | unknown loss 'CrossEntropy'; did you mean 'CrossEntropyLoss'? (known: ...)
loss: {name: CrossEntropyLoss, label_smoothing: 2}
    | 12 training.loss | CrossEntropyLoss: no loss of scores and labels: label_smoothing must be between ...
loss: {name: CrossEntropyLoss, weight: 3}
    | 12 training.loss | CrossEntropyLoss: no loss of scores and labels: weight tensor should be defined ...
loss: TripletMarginLoss
    | 12 training.loss | unknown loss 'TripletMarginLoss' (known: ...)
batch_size: 16\n  batch_size: 32 | 13 training.batch_size | this key appears twice; the first is in line 12

= \s steps_per_round: 5\n
"" | 10 training | give exactly one of steps_per_round and epochs_per_round

= steps_per_round: 5
steps_per_round: [5, x, 5, -1] | 13 training.steps_per_round[1] | must be a whole number >= 0, not 'x'
    | 13 training.steps_per_round[3] | must be a whole number >= 0, not -1
steps_per_round: many
    | 13 training.steps_per_round | must be a whole number >= 0 or a list of whole numbers >= 0 ... not 'many'
steps_per_round: 5\n  epochs_per_round: 1
    | 10 training | give exactly one of steps_per_round and epochs_per_round
steps_per_round: [5, 5, 5]
    | 13 training.steps_per_round | must be one number, or one for each of the 4 ranks, not a list of 3
epochs_per_round: -0.5
    | 13 training.epochs_per_round | must be a number >= 0 or a list of numbers >= 0 or null, not -0.5
steps_per_round: []
    | 13 training.steps_per_round | must be one number, or one for each of the 4 ranks, not a list of 0

= {name: gossip, weights: metropolis_hastings}
1 | 14 sharing | must be a name, or a mapping with its options, not 1

= name: gossip
name: gosip | 14 sharing.name | unknown sharing 'gosip'; did you mean 'gossip'? (known: ...)
name: all_reduce
    | 14 sharing | all_reduce needs a graph where every node receives from every other, such as
    + fully_connected; this one is not
name: gossip, gamma: 0.5
    | 14 sharing.gamma | unknown option of gossip (known: fill, outer, outer_every, blend, weights, ...)
name: gossip, fill: mean | 14 sharing.fill | must be 'own' or 'zero' or 'sent', not 'mean'
name: gossip, mixing_strength: fast | 14 sharing.mixing_strength | must be a number >= 0 and <= 1 or ...
name: gossip, mixing_strength: 1.5 | 14 sharing.mixing_strength | must be a number >= 0 and <= 1 or ...
name: gossip, mixing_strength: []
    | 14 sharing.mixing_strength | must have pairs of round and number, in the order of their rounds
name: gossip, mixing_strength: [[3, 1], [3, 0.5]]
    | 14 sharing.mixing_strength | must have pairs of round and number, in the order of their rounds
name: gossip, mixing_strength: learning_rate
    | 14 sharing.mixing_strength | learning_rate needs a rate that changes; give ...
name: choco, mixing_strength: 0.5
    | 14 sharing.mixing_strength | the equations of choco hold for W alone; its gamma ...
name: gossip, blend: 0.5
    | 14 sharing.blend | is for the step of `outer`, and there is none; use mixing_strength
name: gossip, outer: SGD, blend: 2 | 14 sharing.blend | must be a number >= 0 and <= 1, not 2
name: choco, gamma: 0 | 14 sharing.gamma | must be a number > 0 and <= 1, not 0
name: choco, gamma: 2 | 14 sharing.gamma | must be a number > 0 and <= 1, not 2
name: moniqua, bits: 9 | 14 sharing.bits | must be a whole number >= 1 and <= 8, not 9
name: quasi_global, beta: 1 | 14 sharing.beta | must be a number >= 0 and < 1, not 1
name: stc, server: 9 | 14 sharing | stc with server 9 needs a star around that rank; this graph is none
name: secure_aggregation, bits: 16 | 14 sharing.bits | must be 32 or 64, not 16
name: jwins, wavelet: sym99
    | 14 sharing | wavelet knows no family 'sym99'; did you mean 'sym9'? (jwins itself puts it into the chain)
name: relay_sum
    | 14 sharing | relay_sum needs a graph that is a tree, such as chain, star or binary_tree; this one is not
name: fed_avg | 14 sharing | fed_avg needs a graph with a server, such as federated; file has none
name: choco_per_edge, memory: 0 | 14 sharing.memory | must be a whole number > 0 or null, not 0
name: levels | 14 sharing | levels needs a graph of two levels, such as hierarchical; file has one
name: levels, inner: {name: gossip, fil: own}
    | 14 sharing.inner.fil | unknown option of gossip; did you mean 'fill'?
name: levels,\n  inner: {fill: 1},\n  outer: {name: fed_avg, eta: 0, transforms: [no, {name: cast, dtype: 1}]}
    | 15 sharing.inner.name | missing; name one of: ...
    | 16 sharing.outer.eta | must be a number > 0, not 0
    | 16 sharing.outer.transforms[0] | unknown transform 'no' (known: ...
    | 16 sharing.outer.transforms[1].dtype | must be 'fp16' or 'bf16', not 1
name: levels,\n  inner: ,\n  outer: {name: gossip, transforms: }
    | 15 sharing.inner | must be ...
    | 16 sharing.outer.transforms | must be ...
name: levels, inner: secure_aggregation, outer: gradient_tracking
    | 14 sharing.inner | secure_aggregation does not work in a level; use gossip or fed_avg
    | 14 sharing.outer | gradient_tracking changes local steps; heads only mix: use gossip
name: levels, inner: ad_psgd
    | 14 sharing.inner | 'ad_psgd' is no sharing; it must be a subclass of decentnode.sharing.base.Sharing
name: gradient_tracking
    | 11 training.optimizer | gradient_tracking needs plain SGD, as its equations are about gradient ...
name: demo, beta: 1
    | 14 sharing.beta | must be a number >= 0 and < 1, not 1
name: krum
    | 14 sharing | krum with faults 1 needs 5 models, and rank 0 has 3 with its own; lower faults, add ...

= name: gossip, weights: metropolis_hastings
name: jwins, fractions: []
    | 14 sharing | top_k needs one fraction or more (jwins itself puts it into the chain)
name: choco, transforms: [{name: gaussian_noise, sigma: 1, scope: neighbor}]
    | 14 sharing.transforms[0] | gaussian_noise sends each neighbor another payload, but choco needs the ...
name: jwins, transforms: [{name: top_k, fraction: 0.1}]
    | 14 sharing.transforms[0] | ...; jwins itself begins with wavelet, top_k, auto
name: choco, transforms: [error_feedback, sign]
    | 14 sharing.transforms[0] | error_feedback would count errors twice, because choco itself sends later
    + what was dropped; leave it out
name: deep_squeeze, transforms: [error_feedback, sign]
    | 14 sharing.transforms[0] | error_feedback would count errors twice, because deep_squeeze itself sends
    + later what was dropped; leave it out
name: gossip, outer_every: 2
    | 14 sharing.outer_every | there is no outer optimizer; name one in outer, or leave it out
name: gossip, transforms: [{name: error_feedback, decay: 0.9}, sign]
    | 14 sharing.transforms[0] | error_feedback with decay is for differences, but here it corrects models;
    + leave decay out
name: sparse_loco, decay: 0
    | 14 sharing.decay | must be a number > 0 and <= 1, not 0
name: sparse_loco
    | 14 sharing | sparse_loco needs a graph where every node receives from every other in every round, ...
name: quasi_global, transforms: [error_feedback, sign]
    | 11 training.optimizer | quasi_global needs plain SGD, ...; not momentum 0.9
    | 14 sharing.transforms[0] | error_feedback is right for differences, but quasi_global sends models; ...
name: choco_per_edge, transforms: [{name: top_k, by: change}]
    | 14 sharing.transforms[0] | top_k remembers one thing that was sent to all, but ...

= weights: metropolis_hastings
transforms: [{name: cast, dtpe: bf16}]
    | 14 sharing.transforms[0].dtpe | unknown option of cast; did you mean 'dtype'?
transforms: [{dtype: bf16}] | 14 sharing.transforms[0].name | missing; name one of: ...
transforms: cast | 14 sharing.transforms | must be a list of transforms, not 'cast'
transforms: [cast, cast]
    | 14 sharing.transforms[1] | cast takes dense or sparse but cast gives quantized; leave one of them out
weights: metropolis
    | 14 sharing.weights | unknown weights 'metropolis'; did you mean 'metropolis_hastings'? (known: file,
    + from_graph, metropolis_hastings, uniform)
personal: head.* | 14 sharing.personal | must be a list of texts, not 'head.*'
personal: [3] | 14 sharing.personal[0] | must be text, not 3
weights: 0.5 | 14 sharing.weights | must be a name, or a mapping with its options, not 0.5
weights: file | 14 sharing.weights.path | missing; it must be text
weights: {name: file, path: w.txt} | 14 sharing.weights.path | no such file: {here}/w.txt
weights: {name: file, path: bad_weights.txt}
    | 14 sharing.weights | {here}/bad_weights.txt:1: 4 weights in a file of 1 rows; the matrix is n times n
    | 14 sharing.weights | {here}/bad_weights.txt:1: the weights that node 1 gives sum to 0; they must sum ...
    | 14 sharing.weights | {here}/bad_weights.txt:1: the weights that node 2 gives sum to 0; they must sum ...
    | 14 sharing.weights | {here}/bad_weights.txt:1: the weights that node 3 gives sum to 0; they must sum ...
transforms: {name: cast} | 14 sharing.transforms | must be a list of transforms, not a mapping
transforms: [5] | 14 sharing.transforms[0] | must be a name, or a mapping with its options, not 5
transforms: [null] | 14 sharing.transforms[0] | missing; name one of: ...
transforms: [topk] | 14 sharing.transforms[0] | unknown transform 'topk'; did you mean 'top_k'? (known: ...)
transforms: [{name: top_k, fraction: 0}]
    | 14 sharing.transforms[0].fraction | must be a number > 0 and <= 1 or a list of numbers > 0 and ... not 0
transforms: [{name: top_k, fraction: 10}]
    | 14 sharing.transforms[0].fraction | must be a number > 0 and <= 1 or a list of numbers > 0 ... not 10
transforms: [{name: top_k, fraction: .nan}] | 14 sharing.transforms[0].fraction | .nan is not a finite number
transforms: [{name: top_k, fraction: [0.1, 2]}]
    | 14 sharing.transforms[0].fraction[1] | must be a number > 0 and <= 1, not 2
transforms: [{name: uniform, bits: 3}] | 14 sharing.transforms[0].bits | must be 1 or 2 or 4 or 8, not 3
transforms: [{name: qsgd, levels: 200}]
    | 14 sharing.transforms[0].levels | must be a whole number >= 1 and <= 127, not 200
transforms: [{name: sign, scale: block, block: 0}]
    | 14 sharing.transforms[0].block | must be a whole number > 0, not 0
transforms: [{name: low_rank, rank: 0}] | 14 sharing.transforms[0].rank | must be a whole number > 0, not 0
transforms: [clip] | 14 sharing.transforms[0].norm | missing; it must be a number > 0
transforms: [{name: gaussian_noise, sigma: -1}]
    | 14 sharing.transforms[0].sigma | must be a number > 0, not -1
transforms: [{name: wavelet, family: syn2}]
    | 14 sharing.transforms[0] | wavelet knows no family 'syn2'; did you mean 'sym2'?
transforms: [{name: dct, chunk: 2000}]
    | 14 sharing.transforms[0].chunk | must be a whole number > 0 and <= 1024, not 2000
transforms: [wavelet, {name: dct, matrices: true}]
    | 14 sharing.transforms[1] | dct with matrices needs the model's, which a change of basis before it takes
    + away
transforms: [{name: chunk_top_k, chunk: 0}]
    | 14 sharing.transforms[0].chunk | must be a whole number > 0, not 0
transforms: [{name: chunk_top_k, by: training}]
    | 14 sharing.transforms[0].by | must be 'magnitude' or 'change' or null, not 'training'
transforms: [chunk_top_k, rice]
    | 14 sharing.transforms[1] | rice codes indices, but those before it are coded already; leave one of them
    + out, or set packed: false in chunk_top_k
transforms: [{name: fragments, count: 0}]
    | 14 sharing.transforms[0].count | must be a whole number > 0 or null, not 0
transforms: [{name: fragments, count: 2, order: random}]
    | 14 sharing.transforms[0].order | must be 'strided' or 'sequential', not 'random'
transforms: [wavelet, {name: fragments, count: 2}]
    | 14 sharing.transforms[1] | fragments needs the layers of the model, which a transform before it mixes;
    + put it first
transforms: [{name: zstd, level: 23}]
    | 14 sharing.transforms[0].level | must be a whole number >= -7 and <= 22, not 23
transforms: [zstd, {name: top_k, fraction: 0.1}]
    | 14 sharing.transforms[1] | top_k takes dense but zstd gives bytes; put it before zstd
transforms: [rice]
    | 14 sharing.transforms[0] | rice takes quantized or sparse but the signal gives dense; put one that
    + selects or rounds before it, such as top_k
transforms: [cast, top_k]
    | 14 sharing.transforms[1] | top_k takes dense but cast gives quantized; put it before cast
transforms: [top_k, {name: gaussian_noise, sigma: 1}]
    | 14 sharing.transforms[1] | gaussian_noise takes dense but top_k gives sparse; put it before top_k
transforms: [error_feedback]
    | 14 sharing.transforms[0] | error_feedback corrects the transforms after it, and there are none; add ...
transforms: [error_feedback, top_k]
    | 14 sharing.transforms | gossip takes error feedback before transforms that round, not before one that
    + selects; leave it out
transforms: [zstd, lz4]
    | 14 sharing.transforms[1] | lz4 takes dense or quantized or sparse but zstd gives bytes; leave one of ...

= weights
weigts | 14 sharing.weigts | unknown option of gossip; did you mean 'weights'?

= communication: zeromq
communication: zmq
    | 15 communication | unknown communication 'zmq'; did you mean 'zeromq'? (known: hybrid, inproc,
    + simulated, torch_distributed, zeromq)
communication: {name: hybrid, group_ranks: [0, 9]}
    | 15 communication.group_ranks | must be ranks of the 4 nodes of the graph, not 9
communication: 5 | 15 communication | must be a name, or a mapping with its options, not 5
communication: {local: shm} | 15 communication.local | must be 'shared_memory' or 'ipc' or 'tcp', not 'shm'
communication: {base_port: 0} | 15 communication.base_port | must be a whole number > 0 and < 65536, not 0
communication: {base_port: '29600'}
    | 15 communication.base_port | must be a whole number > 0 and < 65536, not '29600'
communication: {nodes_per_process: 0} | 15 communication.nodes_per_process | must be a whole number > 0, not 0
communication: {connections: 17}
    | 15 communication.connections | must be 'auto' or a whole number >= 1 and <= 16, not 17
communication: {name: inproc, connections: 3}
    | 15 communication.connections | unknown option of inproc (known: overlap)
communication: {name: inproc, base_port: 29600}
    | 15 communication.base_port | unknown option of inproc (known: overlap)
communication: {local: tcp, base_port: 65533}
    | 15 communication.base_port | the ports 65533..65536 are needed, the last that exists is 65535
communication: zeromq\nmodel: lenet | 16 model | this key appears twice; the first is in line 9
communication: inproc\nfaults: [drop]
    | 16 faults[0] | drop acts on messages between processes; give each node a process of its own (zeromq ...

= zeromq
{base_port: 70000} | 15 communication.base_port | must be a whole number > 0 and < 65536, not 70000

= evaluation: {every: 10}
evaluation: {target: 0.9} | 16 evaluation.target | must be a mapping to numbers or null, not 0.9
evaluation: {target: {accuracy: .9, loss: 1}}
    | 16 evaluation.target | must be one metric and its value, not 2
evaluation: {every: 0, target: {loss: 1}}
    | 16 evaluation.target | nothing is tested before the end; give every (evaluation.every)
evaluation: {average_model: yes} | 16 evaluation.average_model | must be true or false, not 'yes'
evaluation: {metrics: f1_macro}
    | 16 evaluation.metrics | must be a list of metrics, not 'f1_macro'
evaluation: {metrics: [f1_makro]}
    | 16 evaluation.metrics[0] | unknown metric 'f1_makro'; did you mean 'f1_macro'? (known: ...
evaluation: {metrics: [roc_auc]}
    | 16 evaluation.metrics[0] | unknown metric 'roc_auc'; did you mean 'auroc'? (known: ...
evaluation: {metrics: [{name: ece, bins: 0}]}
    | 16 evaluation.metrics[0].bins | must be a whole number > 0, not 0
evaluation: {metrics: [{name: auroc, label: local_auc}]}
    | 16 evaluation.metrics[0].label | must be letters, digits and _, begin with a letter, and not with ...
evaluation: {metrics: [rmse]}
    | 16 evaluation.metrics[0] | rmse is of numbers; task classification predicts classes
evaluation: {metrics: [auroc, auroc]}
    | 16 evaluation.metrics[1] | evaluation.metrics[0] is named auroc, too; give it a label
evaluation: {metrics: ['torchmetrix.classification:MulticlassAUROC']}
    | 16 evaluation.metrics[0] | cannot import 'torchmetrix.classification:...
evaluation: {metrics: ['torch.nn:Identity']}
    | 16 evaluation.metrics[0] | Identity has no method update; give a torchmetrics.Metric
evaluation: 10
    | 16 evaluation | must be a mapping with every, final, background, nodes, samples, batch_size, ... not 10
records: {models: 5} | 16 records.models | must be a mapping with every or null, not 5
records: {models: {every: -1}} | 16 records.models.every | must be a whole number >= 0, not -1
evaluation: &e {every: 10}\ncheckpoint: *e\nfaults: *e | 18 faults | must be a list of faults, not a mapping

= {every: 10}
[10]
    | 16 evaluation | must be a mapping with every, final, background, nodes, samples, batch_size,
    + average_model, figures, target, metrics, node_test_split, not a list of 1

= every: 10
every: -1 | 16 evaluation.every | must be a whole number >= 0, not -1
every: never | 16 evaluation.every | must be a whole number >= 0, not 'never'
evry: 10 | 16 evaluation.evry | unknown key; did you mean 'every'?
batch_size: 0 | 16 evaluation.batch_size | must be a whole number > 0 or null, not 0
nodes: 5 | 16 evaluation.nodes | must be at most the 4 nodes of the graph, not 5
nodes: [0, 4] | 16 evaluation.nodes | must be ranks of the graph, 0..3, not 4
nodes: [] | 16 evaluation.nodes | no node is given; give a number, ranks, or all
nodes: most | 16 evaluation.nodes | must be 'all' or a whole number > 0 or
    + a list of whole numbers >= 0 or null, not 'most'
background: 'yes' | 16 evaluation.background | must be true or false or a whole number > 0, not 'yes'
figures: 'false' | 16 evaluation.figures | must be true or false, not 'false'
final: no | 16 evaluation.final | must be true or false, not 'no'
every: 10, every: 20 | 16 evaluation.every | this key appears twice; the first is in line 16

= failures: {deadline: 60}
failure: {deadline: 60} | 17 failure | unknown key; did you mean 'failures'?
failures: {on_loss: continue}\nsharing: choco | 18 sharing | this key appears twice; the first is in line 14

= {deadline: 60}
stop
    | 17 failures | must be a mapping with on_loss, deadline, grace, start_deadline, stop_deadline, start,
    + restart, allow_different_code, not 'stop'

= deadline: 60
deadline: 0 | 17 failures.deadline | must be a number > 0, not 0
on_loss: ignore | 17 failures.on_loss | must be 'auto' or 'continue' or 'stop', not 'ignore'
deadline: -1 | 17 failures.deadline | must be a number > 0, not -1
deadline: .inf | 17 failures.deadline | .inf is not a finite number
deadline: 60s | 17 failures.deadline | must be a number > 0, not '60s'
grace: -1 | 17 failures.grace | must be a number >= 0, not -1
start_deadline: 0 | 17 failures.start_deadline | must be a number > 0, not 0
stop_deadline: 0 | 17 failures.stop_deadline | must be a number > 0 or 'auto', not 0
start: most | 17 failures.start | must be 'all' or 'at_least N' with the number of nodes, not 'most'
start: at_least 0
    | 17 failures.start | must be 'all' or 'at_least N' with the number of nodes, not 'at_least 0'
start: 3 | 17 failures.start | must be text, not 3
start: at_least 5 | 17 failures.start | must be at most the 4 nodes of the graph, not 5
start: at_least 3, on_loss: stop
    | 17 failures.start | would end in round 1 with failures.on_loss: stop; use continue there
restart: 3 | 17 failures.restart | must be a mapping with attempts, not 3
restart: {attempts: -1} | 17 failures.restart.attempts | must be a whole number >= 0, not -1
restart: {attemps: 1} | 17 failures.restart.attemps | unknown key; did you mean 'attempts'?
timeout: 60
    | 17 failures.timeout | unknown key (known: on_loss, deadline, grace, start_deadline, stop_deadline,
    + start, restart, allow_different_code)
"""
"""Edits of the configuration BASE, and what follows `x.yaml:`."""

LOADED = r"""
= seed: 1
task: {name: classification, top_k: [11]} | 2 task.top_k | 11 is more than the 10 classes
device: cuda | 2 device | cuda is asked for, but torch finds no GPU here; use cpu or auto

= dataset: {name: digits, partition: {name: dirichlet, alpha: 0.5}}\nmodel: {name: mlp, hidden: [8]}
dataset: {name: digits, train_size: 4}\nmodel: {name: resnet18, norm: batch, width: 4}
    | 8 dataset.partition | rank 0 has a single sample, but batch norm needs 2 at once; give each rank 2 ...

= {name: digits, partition: {name: dirichlet, alpha: 0.5}}
{name: quadratic, nodes: 4}
    | 10 training.loss | CrossEntropyLoss is always 0 where there is one class; use NLLLoss
{name: quadratic, nodes: 3}\nx: 1 | 9 x | unknown key (known: ...)

= name: digits
name: digits, train_size: 99999 | 8 dataset.train_size | 99999 samples asked for, the train set has 1437
name: digits, test_size: 99999 | 8 dataset.test_size | 99999 samples asked for, the test set has 360
name: digits, train_size: 3 | 8 dataset.partition | 4 training ranks need a sample each, there are 3
name: idx, path: nowhere
    | 8 dataset.path | no complete set of fashion-mnist files in {here}/nowhere; fetch them with: decentnode
    + download idx variant=fashion-mnist --to {here}/nowhere
name: cifar10, path: ring.edges
    | 8 dataset.path | no complete set of cifar10 files in {here}/ring.edges; fetch them with: decentnode
    + download cifar10 --to {here}/ring.edges
name: idx, path: <a * 260> | 8 dataset.path | no usable path: '<a * 40>...': File name too long

= {name: dirichlet, alpha: 0.5}
{name: shards, labels_per_node: 11}
    | 8 dataset.partition.labels_per_node | is 11, the training samples have 10 labels
{name: shards, labels_per_node: 1}
    | 8 dataset.partition.labels_per_node | 4 training ranks of 1 labels cannot hold all 10; it must be at ...
natural | 8 dataset.partition | natural needs a dataset with groups; this one has none
{name: sizes, sizes: [1, 2]} | 8 dataset.partition.sizes | has 2 entries for 4 training ranks
{name: sizes, sizes: [0.5, 0.2, 0.2, 0.2]}
    | 8 dataset.partition.sizes | sum to 1.1; fractions must sum to 1, counts to the 1437 training samples
{name: sizes, sizes: [1000, 400, 30, 8]}
    | 8 dataset.partition.sizes | sum to 1438; fractions must sum to 1, counts to the 1437 training samples
{name: quantity, min_size: 1000}
    | 8 dataset.partition.min_size | 4 training ranks of at least 1000 need 4000 samples, there are 1437

= alpha: 0.5
ranks: [0, 4] | 8 dataset.partition.ranks | 4 is no rank; ranks are 0..3
ranks: [] | 8 dataset.partition.ranks | is empty; at least one rank must train
ranks: [1, 1] | 8 dataset.partition.ranks | names a rank twice
min_size: 1000
    | 8 dataset.partition.min_size | 4 training ranks of at least 1000 need 4000 samples, there are 1437

= model: {name: mlp, hidden: [8]}\ntraining:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n
    +  batch_size: 16
model: {name: resnet18, norm: batch, width: 4}\ntraining:\n  optimizer: {name: SGD, lr: 0.1}\n  batch_size: 1
    | 12 training.batch_size | batch norm needs 2 samples or more at once, not 1

= {name: digits, partition: {name: dirichlet, alpha: 0.5}}\nmodel: {name: mlp, hidden: [8]}\ntraining:
{name: synthetic, nodes: 4, features: 4}\nmodel: mlp\ntraining:\n  augmentation: [crop]
    | 11 training.augmentation | crop needs images of shape (channels, height, width); the dataset has inputs
    + of shape (4,)

= {name: mlp, hidden: [8]}\ntraining:
{name: resnet18, norm: batch, width: 4}\ntraining:\n
    +  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 1.0e-5}
    | 11 training.privacy | BatchNorm2d '1' of the model mixes samples, so that each changes the gradients of
    + others; use GroupNorm (norm: group)

= {name: mlp, hidden: [8]}
{name: resnet18, groups: 7} | 9 model | resnet18: groups 7 does not divide width 64
quadratic | 9 model | quadratic takes the samples of dataset quadratic, and no other
{name: 'corpus_nets:Net', width: 3} | 9 model | Net gives (2, 3) for 2 samples; it must give (2, 10)
'corpus_nets:Raises' | 9 model | Raises cannot be built: KeyError: 'weights'
'corpus_nets:Wide'
    | 9 model | '1.weight' is torch.float64; the vector is torch.float32 (training.dtype), so set
    + training.dtype: float64, or call .to(torch.float32)
'corpus_nets:Fails' | 9 model | Fails does not take samples of shape (1, 8, 8): KeyError: 'x'

= every: 10
samples: 361 | 16 evaluation.samples | 361 samples asked for, the test set has 360
every: 10, target: {acuracy: .9} | 16 evaluation.target.acuracy | unknown metric; did you mean 'accuracy'?
every: 10, target: {speed: .9} | 16 evaluation.target.speed | unknown metric (known: accuracy, loss)
every: 10, target: {accuracy: 95}
    | 16 evaluation.target.accuracy | must be a number > 0 and <= 1, a fraction, not 95

= mlp, hidden: [8]}\ntraining:\n  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}\n  batch_size: 16\n
    +  steps_per_round: 5\nsharing: {name: gossip, weights: metropolis_hastings}
resnet18, norm: batch, width: 4}\ntraining:\n  optimizer: {name: SGD, lr: 0.1}\n  mix_buffers: true\n
    +  steps_per_round: 5\nsharing: {name: gossip, transforms: [{name: clip, norm: 1}]}
    | 12 training.mix_buffers | running statistics would travel beside the transforms, where clip does not
    + hide them; leave it out, and every node keeps its own

= hidden: [8]}
hidden: [8], adapters: {rank: 9}}
    | 9 model.adapters.rank | must be at most 8 for '1', whose weight is 8 x 64; or name other targets
hidden: [8], adapters: {rank: 2, targets: ['1', head]}}
    | 9 model.adapters.targets[1] | no linear layer matches 'head' (known: 1, 3)
hidden: [8], adapters: {rank: 2, modules_to_save: ['33']}}
    | 9 model.adapters.modules_to_save[0] | no module matches '33'; did you mean '3'?
hidden: [8], adapters: {rank: 2, target: ['1']}}
    | 9 model.adapters.target | unknown key; did you mean 'targets'?
hidden: [8], adapters: {rank: 0}} | 9 model.adapters.rank | must be a whole number > 0, not 0

= {name: SGD, lr: 0.1, momentum: 0.9}
{name: Muon, adamw_params: [1.wieght]}
    | 11 training.optimizer | Muon: adamw_params: no parameter matches '1.wieght'; did you mean '1.weight'?
{name: Muon, adamw_params: ['1.*']}
    | 11 training.optimizer | Muon: no hidden matrix of Sequential is left for it; use AdamW

= weights: metropolis_hastings
personal: ['*'] | 14 sharing.personal | all parameters are personal, so nothing is left to share; use
    + sharing.name: none
personal: [1.wieght] | 14 sharing.personal[0] | no parameter matches '1.wieght'; did you mean '1.weight'?
transforms: [{name: fragments, count: 3}]
    | 14 sharing.transforms[0] | fragments divides a model of 2 layers into 3 fragments; use count: 2 at most
personal: ['1.*', head] | 14 sharing.personal[1] | no parameter matches 'head' (known: 1.*, 3.*, 1.weight,
    + ...)

= batch_size: 16
batch_size: 16\n  privacy: {name: dp_sgd, clip: 1, noise: 1, delta: 0.5}
    | 13 training.privacy.delta | must be below 1 / ...
batch_size: 16\n  privacy: {name: dp_sgd, clip: 1, noise: 0.5, epsilon: 0.1, delta: 1.0e-5}
    | 13 training.privacy.epsilon | the steps of the first round exceed it at every node; allow more, use
    + more noise, or fewer samples in a step
batch_size: 16\n  privacy: {name: dp_sgd, pipeline: {noise: 0.5}, clip: 1, epsilon: 1, delta: 1.0e-5}
    | 13 training.privacy.pipeline.noise | 0.5 spends epsilon ... before the first step, and the budget is 1;
    + add more noise
batch_size: 16\n  privacy: {name: dp_sgd, pipeline: {noise: 9, delta_share: 0.1},
    + clip: 1, noise: 1, delta: 1.0e-5}
    | 13 training.privacy.pipeline.delta_share | the dataset computes no categories; leave it out
batch_size: 16\n  privacy: {name: dp_sgd, pipeline: {noise: 9, bounds: {a: [0, 1]}},
    + clip: 1, noise: 1, delta: 1.0e-5}
    | 13 training.privacy.pipeline.bounds | inputs have no names; give one pair of numbers for all
batch_tokens: 64 | 12 training.batch_tokens | the samples of the dataset are no tokens; use batch_size
augmentation: [{name: cutout, size: 9}]
    | 12 training.augmentation | cutout of 9 x 9 pixels is larger than the images of 8 x 8
"""
"""Edits of BASE whose defects are found when samples and model are looked at."""

EXTENDED = r"""
= name: trial -> name: trial
sed: 1 | x.yaml:2 sed | unknown key; did you mean 'seed'?
training: {optimizer: {lr: a}} | x.yaml:2 training.optimizer.lr | must be a number, not 'a'
sharing: {name: choco, fill: own} | x.yaml:2 sharing.fill | unknown option of choco ...
rounds: .inf | x.yaml:2 rounds | .inf is not a finite number
graph: {path: nope.edges} | x.yaml:2 graph.path | no such file: {here}/nope.edges

= name: trial -> extends: ../x.yaml
"" | base/base.yaml:1 extends | a circle: x.yaml extends base/base.yaml extends x.yaml; one of ...

= name: trial -> name: 'trial
"" | base/base.yaml:1 | not valid YAML: found unexpected end of stream; a quote that begins here has no end

= seed: 1 -> sed: 1
"" | base/base.yaml:2 sed | unknown key; did you mean 'seed'?

= seed: 1 -> seed: 1e999
machine: 0 | base/base.yaml:2 seed | 1e999 is not a finite number

= seed: 1 -> seed: 2\nseed: 3
rounds: 1 | base/base.yaml:3 seed | this key appears twice; the first is in line 2

= weights: -> weigts:
"" | base/base.yaml:14 sharing.weigts | unknown option of gossip; did you mean 'weights'?

= weights: metropolis_hastings -> transforms: [top_l]
sharing: {fill: own} | base/base.yaml:14 sharing.transforms[0] | unknown transform 'top_l'...

= lr: 0.1 -> lr: a
training: {batch_size: 8} | base/base.yaml:11 training.optimizer.lr | must be a number, not 'a'
seed: a\nrounds: 0 | x.yaml:2 seed | must be a whole number >= 0, not 'a'
    | x.yaml:3 rounds | must be a whole number > 0, not 0
    | base/base.yaml:11 training.optimizer.lr | must be a number, not 'a'

= ring.edges -> rig.edges
graph: {type: edges}
    | base/base.yaml:4 graph.path | no such file: {here}/base/rig.edges or {here}/rig.edges; did ...

= nodes: 4 -> nodes: 3
graph: {name: ring, nodes: 4} | base/base.yaml:5 mapping | the machines carry 3 nodes, the graph has 4; ...

= rounds: 3 -> # no rounds
"" | x.yaml:1 rounds | missing; it must be a whole number > 0
"""
"""Edits of BASE in `base/base.yaml`, old and new, and what `x.yaml`, which extends it, has besides."""

UNREADABLE = r"""
"" | 1 | the file is empty; a configuration has lines such as 'seed: 1'
# none\n | 1 | the file is empty; a configuration has lines such as 'seed: 1'
\n- 1\n | 2 | this is not a mapping; a configuration has lines such as 'seed: 1'
hello | 1 | this is not a mapping; a configuration has lines such as 'seed: 1'
a:\n\tb: 1\n | 2 | a tab; YAML is indented with spaces
a: {b: 1\nc: 2\n
    | 2 | not valid YAML: expected ',' or '}', but got ':'; close what is open with } or ], and put commas ...
a: b: c\n
    | 1 | not valid YAML: mapping values are not allowed here; one 'key: value' per line; put text with a ...
a: 1\nb: *c\n | 2 | not valid YAML: found undefined alias 'c'; put text that begins with * in quotes
a: 1\n---\nb: 2\n | 2 | a second document begins; a configuration is one document
a: <[ * 9999> | 1 | nested deeper than 32 levels
a: &a [*a]\n | 1 | nested deeper than 32 levels
<# * 300000> | x.yaml | too large for a configuration; at most 262144 bytes are read
n\0a\0m\0e\0:\0 \0t\0r\0i\0a\0l\0\n\0 | 1 | character 0x0000 is not allowed in YAML; remove it
<\0 * 100> | 1 | character 0x0000 is not allowed in YAML; remove it
\s \n\n | 1 | the file is empty; a configuration has lines such as 'seed: 1'
---\n | 2 | the file is empty; a configuration has lines such as 'seed: 1'
null\n | 1 | the file is empty; a configuration has lines such as 'seed: 1'
42\n | 1 | this is not a mapping; a configuration has lines such as 'seed: 1'
graph: <[ * 40><] * 40> | 1 | nested deeper than 32 levels
{"seed": 1,, "rounds": 2}
    | 1 | not valid YAML: expected the node content, but found ','; write a value, or null
{"seed": 1
    | 1 | not valid YAML: expected ',' or '}', but got '<stream end>'; close what is open with } or ], and ...
[training]\nlr = 0.1\n
    | 2 | not valid YAML: expected '<document start>', but found '<scalar>'; a configuration has lines ...
import os\nprint(1)\n | 1 | this is not a mapping; a configuration has lines such as 'seed: 1'
a: 1\n...\n---\nb: 2\n | 3 | a second document begins; a configuration is one document
a: *x\nb: &x 1\n | 1 | not valid YAML: found undefined alias 'x'; put text that begins with * in quotes
a: 1\n- b\n
    | 2 | not valid YAML: expected <block end>, but found '-'; the entries of one section begin in the ...
seed: 1\nname: "\\U00110000"\n | 2 | not valid YAML: \\U is followed by a character's number, at most 0010FFFF
name: "\\UFFFFFFFF"\n | 1 | not valid YAML: \\U is followed by a character's number, at most 0010FFFF
a:\n-\tb\n\t- c\n | 2 | a tab; YAML is indented with spaces
extends: nope.yaml | 1 extends | no such file: {here}/nope.yaml
extends: xx.yaml | 1 extends | no such file: {here}/xx.yaml; did you mean 'x.yaml'?
seed: 1\nextends: [a, b] | 2 extends | must be the path or the name of one configuration, not a list of 2
extends: '' | 1 extends | must be the path or the name of one configuration, not ''
extends: x.yaml | 1 extends | a circle: x.yaml extends x.yaml; one of them must not extend another
extends: ~nobody-here/x.yaml | 1 extends | no usable path: '~nobody-here/x.yaml': there is no such user
extends: full | full | cannot be read: Is a directory
"""
"""Whole files that give nothing to check, and what follows `x.yaml:`."""

BYTES: dict[bytes, str] = {
    b"a: 1\nb: \x01\n": "2: character 0x0001 is not allowed in YAML; remove it",
    b"a: \x0b\n": "1: character 0x000b is not allowed in YAML; remove it",
    b"a: 1\nname: caf\xe9\n": "2: not UTF-8 text (byte 0xe9); save it as UTF-8",
    b"a: \xf0\x9f\x98\n": "1: not UTF-8 text (byte 0xf0); save it as UTF-8",
    "name: trial\nseed: 1\n".encode("utf-16"): "1: not UTF-8 text (byte 0xff); save it as UTF-8",
    "name: trial\nseed: 1\n".encode("utf-32"): "1: not UTF-8 text (byte 0xff); save it as UTF-8",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR": "1: not UTF-8 text (byte 0x89); save it as UTF-8",
    b"\x1f\x8b\x08\x00abc": "1: not UTF-8 text (byte 0x8b); save it as UTF-8",
    b"\x7fELF\x02\x01\x01" + bytes(range(256)): "2: not UTF-8 text (byte 0x80); save it as UTF-8",
    b"\xef\xbb\xbf": "1: the file is empty; a configuration has lines such as 'seed: 1'",
    b"".join(b" " * i + b"a:\n" for i in range(100)): "32: nested deeper than 32 levels",
    b"a0: &a0 [x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 9)): (
        "1: aliases make this too large; at most 100000 values"
    ),
}
"""More of them that are no text, or that grow."""

OVERRIDES = r"""
rounds | rounds | an override is key=value, such as training.optimizer.lr=0.05
training.dtype=bfloat16 sharing=exact_diffusion
    | training.dtype | exact_diffusion needs the precision of float32, not bfloat16; set training.dtype: ...
training.dtype=bfloat16 'sharing.transforms=[fourier]'
    | sharing.transforms[0] | fourier needs the precision of float32, not bfloat16; set training.dtype: ...
training.dtype=bfloat16 sharing=jwins
    | sharing | wavelet needs the precision of float32, not bfloat16; set training.dtype: float32, and cast
    + for the wire (jwins itself puts it into the chain)
=3 | =3 | an override is key=value, such as training.optimizer.lr=0.05
--rounds=3 | decentnode | No such option: --rounds (see decentnode --help)
-rounds=3 | decentnode | No such option: -r (see decentnode --help)
'rounds = 3' | rounds = 3 | an override is key=value, such as training.optimizer.lr=0.05
training..lr=3 | training..lr=3 | an override is key=value, such as training.optimizer.lr=0.05
.rounds=3 | rounds=3 | an override is key=value, such as training.optimizer.lr=0.05
round=3 | round | unknown key; did you mean 'rounds'?
trainig.batch_size=3 | trainig.batch_size | unknown key; did you mean 'training'?
training.optimizer.lr.x=3 | training.optimizer.lr | must be a number, not a mapping
seed.x=1 | seed | must be a whole number >= 0, not a mapping
name=a name.b=1 | name | must be text, not a mapping
training.execution=alone training.execution.wrkers=2
    | training.execution.wrkers | unknown key; did you mean 'workers'?
training.execution=alnoe
    | training.execution | must be 'auto' or 'alone' or a mapping with batches or a mapping with workers, not
    + 'alnoe'; did you mean 'alone'?
training.pace=instnt
    | training.pace | must be a mapping with step_seconds or 'instant' or null, not 'instnt'; did you mean
    + 'instant'?
training.pace=instant training.pace.device=phone
    | training.pace.step_seconds | missing; it must be a number > 0 or text
'training.pace={step_seconds: 1, slowdown: straglers}' training.pace.slowdown.share=0.5
    | training.pace.slowdown.distribution | unknown slowdown 'straglers'; did you mean 'stragglers'? ...
'training.loss={name: CrossEntropyLoss, weight: {a: 1}}'
    | training.loss.weight | must be finite numbers from 0 on, not all 0
'mapping.machines[1].nodes=3' | mapping.machines.1.nodes | mapping.machines has the entries 0..0, not 1
mapping.machines.first.nodes=3
    | mapping.machines.first.nodes | mapping.machines has the entries 0..0, not first
'mapping.machines.²=4' | mapping.machines.² | mapping.machines has the entries 0..0, not ²
'mapping.machines[<1 * 5000>].nodes=4'
    | mapping.machines.<1 * 40>....nodes | mapping.machines has the entries 0..0, not <1 * 40>...
'name="\\U00110000"' | name | not valid YAML: \\U is followed by a character's number, at most 0010FFFF
sharing=gradient_tracking 'training.optimizer={name: SGD, lr: 0.1, maximize: true}'
    | training.optimizer | gradient_tracking needs plain SGD, as its equations are about gradient steps; ...
sharing=decent_lam 'training.optimizer={name: SGD, lr: 0.1}' 'graph={name: one_peer_exponential, nodes: 4}'
    | sharing | decent_lam diverges on this graph: even without gradients, what models differ by grows 1.08
    + times a round; use quasi_global, a beta below 0.9, or an undirected graph that stays the same
'sharing={name: quasi_global, mu: 0}' 'training.optimizer={name: SGD, lr: 0.1}' 'graph={name: torus,
    + rows: 4, columns: 4}' 'mapping.machines[0].nodes=16'
    | sharing | quasi_global diverges on this graph: even without gradients, what models differ by grows 1.5
    + times a round; use a mu above 0, or a beta below 0.9
'sharing={name: decent_lam, transforms: [{name: random_k, fraction: 0.5}, zstd]}'
    + 'training.optimizer={name: SGD, lr: 0.1}'
    | sharing.transforms[0] | random_k is too coarse for decent_lam, whose momentum makes the error grow; use
    + quasi_global, or leave it out
'seed[0]=1' | seed | must be a whole number >= 0, not a mapping
rounds=three | rounds | must be a whole number > 0, not 'three'
rounds=-3 | rounds | must be a whole number > 0, not -3
training.optimizer.lr=nan training.optimizer.lr=.nan | training.optimizer.lr | .nan is not a finite number
'sharing={name: gossip'
    | sharing | not valid YAML: expected ',' or '}', but got '<stream end>'; close what is open with } or ],
    + and put commas between its entries
'name='"'"'x' | name | not valid YAML: found unexpected end of stream; a quote that begins here has no end
'evaluation={every: 1, every: 2}' | evaluation.every | this key appears twice
rounds= | rounds | missing; it must be a whole number > 0
sharing=gosip | sharing | unknown sharing 'gosip'; did you mean 'gossip'? (known: ...)
graph=rings.edges | graph.path | no such file: {here}/rings.edges; did you mean 'ring.edges'?
rounds=x seed=-1 modle=mlp | modle | unknown key; did you mean 'model'?
    | seed | must be a whole number >= 0, not -1
    | rounds | must be a whole number > 0, not 'x'
x.yaml | x.yaml | an override is key=value, such as training.optimizer.lr=0.05
a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b=1
    | a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b | nested deeper ...
    | a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b | unknown key ...
seed=<9 * 300> | seed | <9 * 40>... is too large; whole numbers have at most 63 bits
'seed=\t1' | seed | a tab; YAML is indented with spaces
'name=!!python/name:os.system' | name | the tag 'python/name:os.system' is not read; write a plain value
sharing.weigths=uniform | sharing.weigths | unknown option of gossip; did you mean 'weights'?
'sharing.transforms[0].fraction=0.1'
    | sharing.transforms.0.fraction | must be a list of transforms, not a mapping
sharing=ubar 'training.privacy={name: dp_sgd, clip: 1, noise: 1, delta: 1e-5}'
    | sharing | ubar mixes by losses of a node's samples, and no noise covers those; ...
training.name=ddp sharing=none 'training.privacy={name: dp_sgd, clip: 1, noise: 1, delta: 1e-5}'
    | training.privacy | makes the steps of each node private by itself, but ddp sends gradients within ...
training.loss_weights=high
    | training.loss_weights | must be a mapping to numbers or a list of numbers or null, not 'high'
training.name=dpp | training.name | unknown training 'dpp' (known: ddp, local)
training.bucket_mb=3 | training.bucket_mb | unknown key (known: ...)
training.name=ddp
    | x.yaml:14 sharing | ddp keeps one model on all nodes, so nothing is left to share; use none
communication.nodes_per_process=2 'faults=[drop]'
    | faults[0] | drop acts on messages between processes; give each node a process of its own (zeromq ...
training.optimzer.lr=0.05 | training.optimzer.lr | unknown key; did you mean 'optimizer'?
run_dir=$NOWHERE/a | run_dir | no usable path: '$NOWHERE/a': the variable NOWHERE is not set
extends=other.yaml | extends | is read from a file alone; write it there, or name ...
communication=inproc 'mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2, nodes: 1}]'
    | communication | carries nodes of one machine, but there are 2 machines; use zeromq
training.steps_per_round=[1,2,3] 'mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2,
    + nodes: 1}]'
    | training.steps_per_round | must be one number, or one for each of the 4 ranks or 2 machines, not a ...
communication.base_port=65534 'mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2,
    + nodes: 1}]'
    | communication.base_port | the ports 65534..65536 are needed, the last that exists is 65535
communication.base_port=29498 'mapping.machines=[{address: 127.0.0.1, nodes: 3}, {address: 10.0.0.2,
    + nodes: 1}]'
    | communication.base_port | the ports 29498..29500 are needed, but 29500 is mapping.rendezvous_port
'sharing={name: gossip, outer: SGD, outer_every: 3}' training.train_every=2 communication.overlap=true
    | communication.overlap | would lose all local steps beside an outer step, which replaces the whole
    + model; give sharing.blend, fragments in the chain, or training.train_every: 2 with outer_every: 2
'sharing={name: gossip, outer: SGD, outer_every: 2, transforms: [{name: fragments, count: 2}]}'
    | sharing.transforms | each round has the outer step of its fragment; leave outer_every out
'sharing={name: gossip, fill: zero, transforms: [{name: fragments, count: 2}]}'
    | sharing.transforms | fill: zero would set the fragments to 0 that a round does not send; leave ...
'graph={name: federated, nodes: 4}' 'sharing={name: fed_avg, outer: SGD, transforms: [{name: fragments,
    + count: 2}]}'
    | sharing.transforms | a step of fed_avg's server is one of the whole model; leave out ...
sharing.outer=SGD communication.overlap=true
    | communication.overlap | would lose all local steps beside an outer step, which replaces the whole ...
training.name=ddp sharing=none communication.overlap=true
    | communication.overlap | ddp overlaps its all-reduce with the backward pass by itself; leave it out
training.name=ddp sharing=none communication=inproc | communication | ddp needs a process for each node; ...
'graph={name: flipper, nodes: 4, degree: 2}' 'failures={start: at_least 3, restart: {attempts: 1}}'
    | failures.restart.attempts | nodes of flipper cannot rejoin: a new process does not know its ...
    | failures.start | nodes of flipper cannot rejoin: ...
'graph={name: flipper, nodes: 4, degree: 2}' sharing=none
    | graph | none exchanges nothing, so no node needs flipper; use ring
'graph={name: similarity, nodes: 4, neighbors: 1, of: gradient}' communication.overlap=true
    | communication.overlap | similarity of gradients needs the models as the local steps have left them; ...
'graph={name: peer_sampler, nodes: 4, degree: 2, port: 31000}' 'mapping.machines=[{address: 127.0.0.1,
    + nodes: 2}, {address: 127.0.0.2, nodes: 2}]' mapping.rendezvous_port=31000
    | graph.port | 31000 is mapping.rendezvous_port; take another
'graph={name: flipper, nodes: 4, degree: 2}' 'sharing={name: secure_aggregation}'
    | sharing | secure_aggregation needs to know all that a neighbor receives from, and flipper does not ...
'graph={name: relayed, nodes: 4, degree: 2}' 'sharing={name: shatter, chunks: 3}'
    | sharing | shatter: 2 neighbors with 1 chunks each are too few for 3 chunks; use fewer, a larger degree,
    + or a larger per_neighbor
'graph={name: ring, nodes: 4}' 'sharing={name: shatter, chunks: 2}'
    | sharing | shatter needs relays between neighbors; use graph: {name: relayed, nodes: 4, degree: ...}
'sharing={name: secure_aggregation, transforms: [{name: random_k, shared_mask: true, whole_every: 2}]}'
    | sharing.transforms | secure_aggregation cannot mask what random_k makes: all rounds must have equally
    + many values; use random_k with shared_mask alone
'sharing={name: secure_aggregation, transforms: [{name: fragments, count: 2}]}'
    | sharing.transforms | secure_aggregation cannot mask what fragments makes: all rounds must have ...
sharing.name=swift time_model=asynchronous 'sharing.transforms=[{name: fragments, count: 2}]'
    | sharing.transforms[0] | fragments counts rounds, and messages of swift have none; leave it out
sharing.name=ad_psgd time_model=asynchronous 'sharing.transforms=[{name: random_k, whole_every: 2}]'
    | sharing.transforms[0] | random_k counts rounds, and messages of ad_psgd have none; ...
sharing=mosaic
    | sharing | mosaic needs a graph for each fragment; use graph: {name: mosaic, nodes: 4, degree: ...,
    + fragments: ...}
'graph={name: mosaic, nodes: 4, degree: 2, fragments: 2}' 'sharing={name: mosaic, transforms: [cast]}'
    | sharing.transforms | mosaic sends fragments of plain models; leave the transforms out
'graph={name: ring, nodes: 4}' 'sharing={name: cesar}'
    | sharing.transforms | cesar needs random_k, or top_k with one fraction, and at most a coder of indices
    + after it; this chain does not select values
'graph={name: one_peer_hypercube, nodes: 4}' 'sharing={name: secure_aggregation}'
    | sharing | secure_aggregation hides models among at least 2 senders to each node, but rank 0 hears 1
    + alone, and no node ever hears enough
'graph={name: epidemic_local, nodes: 4, degree: 3}' 'sharing={name: secure_aggregation, threshold: 0.5}'
    | sharing | secure_aggregation with threshold needs an undirected graph, as a node tells its senders who
    + has arrived; leave threshold out, or use a graph such as epidemic_oracle
'graph={name: flipper, nodes: 4, degree: 2}' sharing.weights=from_graph
    | sharing.weights | from_graph weights need a graph that comes with its own, ...
    | sharing.weights | flipper has metropolis_hastings weights; leave it out
training.name=ddp sharing=none 'failures={on_loss: continue, restart: {attempts: 1}}'
    | failures.on_loss | ddp cannot continue without a node; ...
    | failures.restart.attempts | ddp cannot continue without a node; ...
training.name=ddp sharing=none 'training.steps_per_round=[1, 2, 2, 2]'
    | training.steps_per_round | ddp makes the same steps on all ranks; give one number
'sharing={name: choco, copies: node}' 'graph={name: random_matching, nodes: 4}'
    | sharing | choco needs a graph that is the same in every round; this one is not; use copies: edge
'sharing={name: multi_gossip, acceleration: chebyshev}' 'graph={name: random_matching, nodes: 4}'
    | sharing | multi_gossip with acceleration needs a graph that is the same in every round; this one is ...
'sharing={name: multi_gossip, transforms: [qsgd]}'
    | sharing.transforms[0] | qsgd is too coarse for multi_gossip, ...
'sharing={name: consensus_control, slow_down: true}' 'training.optimizer={name: Adam}'
    | training.optimizer | consensus_control needs plain SGD, ...; not Adam
'sharing={name: consensus_control, transforms: [cast]}'
    | sharing.transforms[0] | cast changes the models that consensus_control compares; ...
training.seconds_per_round=1 training.steps_per_round=null
    | x.yaml:10 training | give exactly one of steps_per_round and epochs_per_round
training.seconds_per_round=0 | training.seconds_per_round | must be a number > 0 or null, not 0
training.name=ddp sharing=none training.seconds_per_round=1
    | training.seconds_per_round | ddp makes the same steps on all ranks; leave it out
'graph={name: churn, schedule: [[0, 1, 2]]}' | graph.graph | missing; it must be a graph
'graph={name: churn, graph: {name: ring, nods: 4}, schedule: [[0, 1, 2]]}'
    | graph.graph.nods | unknown option of ring; did you mean 'nodes'?
'graph={name: churn, graph: {name: similarity, nodes: 8, neighbors: 1}, schedule: [[3, 1, 2]]}'
    | graph | churn: similarity is more than the edges of each round (...); choose ...
'training.privacy={name: dp_sgd, clip: 1, delta: 1e-5, noise: 1e300}'
    | training.privacy.noise | must be 0, or from 0.001 to 10000, not 1e+300
'adversaries=[{name: mimic, ranks: [0], victim: 0}]'
    | adversaries[0].victim | rank 0 is an adversary itself; name an honest one of 0..3
'graph={name: churn, graph: {name: ring, nodes: 4}, schedule: [[4, 1, 2]]}'
    | graph | churn: rank 4 of the schedule is none of ring, 0..3
'graph={name: churn, graph: {name: ring, nodes: 4}}' | graph | churn: give one of schedule and schedule_path
'graph={name: churn, schedule: [[1, 5, 4]], graph: {name: ring, nodes: 4}}'
    | graph | churn: rank 1 leaves in round 4, before its first round 5
'graph={name: churn, schedule: [[1, 0, 4], [1, 5, 6]], graph: {name: ring, nodes: 4}}'
    | graph | churn: rank 1 begins in round 5, but is there already; leave a round...
'graph={name: churn, schedule: [[1, 0, null], [1, 5, 6]], graph: {name: ring, nodes: 4}}'
    | graph | churn: rank 1 begins in round 5, but is there already...
'graph={name: churn, graph: {name: ring, nodes: 4}, schedule: [[1]]}' | graph.schedule[0] | must be ...
graph=by_rounds
    | graph.schedule | missing; it must be a list of lists of exactly 2 (a whole number >= 0, a graph)
'graph={name: by_rounds, schedule: 3}' | graph.schedule | must be a list of lists of exactly 2 (..., not 3
'graph={name: by_rounds, schedule: []}' | graph.schedule | must have at least one [first round, graph]
'graph={name: by_rounds, schedule: [[0]]}'
    | graph.schedule[0] | must be a list of exactly 2 (...), not a list of 1
'graph={name: by_rounds, schedule: [[0, 7], [a, {name: ring, nods: 4}], [2, ring]]}'
    | graph.schedule[0][1] | must be a name, or a mapping with its options, not 7
    | graph.schedule[1][1].nods | unknown option of ring; did you mean 'nodes'?
    | graph.schedule[2][1].nodes | missing; it must be a whole number > 0
    | graph.schedule[1][0] | must be a whole number >= 0, not 'a'
'graph={name: by_rounds, schedule: [[1, {name: empty, nodes: 4}], [3, {name: ring, nodes: 5}],
    + [3, {name: ring, nodes: 4}]]}'
    | graph.schedule[0][0] | must be 0, as the first graph holds from the start, not 1; empty is a graph ...
    | graph.schedule[2][0] | must be above 3, the first round of the graph before it, not 3
    | graph.schedule[1][1] | ring has 5 nodes, but empty has 4; all graphs must have the same nodes
'graph={name: by_rounds, schedule: [[0, {name: empty, nodes: 4}], [1, {name: by_rounds,
    + schedule: [[0, {name: ring, nodes: 4}]]}], [2, {name: federated, nodes: 4}]]}'
    | graph.schedule[1][1] | must be a graph other than by_rounds; write all into one schedule
    | graph.schedule[2][1] | federated is more than the edges of each round (...); choose ...
'graph={name: by_rounds, schedule: [[0, {name: empty, nodes: 4}], [1000, {name: ring, nodes: 4}]]}'
    | graph.schedule[1][0] | ring would begin in round 1000, and the rounds are 0..2; ...
'graph={name: by_rounds, schedule: [[0, {name: empty, nodes: 4}]]}'
    | graph | by_rounds has no edges, so gossip would exchange nothing; use sharing: none, or by_rounds ...
'graph={name: empty, nodes: 4}'
    | graph | empty has no edges, so gossip would exchange nothing; use sharing: none, or by_rounds ...
sharing=all_reduce 'graph={name: by_rounds, schedule: [[0, {name: empty, nodes: 4}], [1, {name: ring,
    + nodes: 4}]]}'
    | sharing | all_reduce needs a graph where every node receives from every other, ...; this one is not
sharing=demo 'training.optimizer={name: SGD, lr: 0.1}' 'graph={name: by_rounds, schedule:
    + [[0, {name: empty, nodes: 4}], [1, {name: fully_connected, nodes: 4}]]}'
    | sharing | demo needs a graph where every node receives from every other in every round, ...
sharing=sparse_loco 'graph={name: by_rounds, schedule: [[0, {name: empty, nodes: 4}],
    + [1, {name: fully_connected, nodes: 4}]]}'
    | sharing | sparse_loco needs a graph where every node receives from every other in every round, such as
    + fully_connected; this one is not
training.name=ddp sharing=none 'graph={name: partial_participation, nodes: 4, degree: 2, probability: 0.5}'
    | graph | ddp makes the same steps on all ranks, and nodes of partial...
training.name=ddp sharing=none 'training.optimizer={name: LBFGS}'
    | training.optimizer | LBFGS looks at each rank's own loss, ...
training.name=ddp sharing=none security=none 'mapping.machines=[{address: 10.0.0.1, nodes: 2},
    + {address: 10.0.0.2, nodes: 2}]'
    | x.yaml:10 training.trusted_network | gloo and NCCL send in plain between machines, to ports that
    + anybody there can reach; write true where nobody else is in that network, or use training.name: local
time_model=asynchronous
    | x.yaml:14 sharing | gossip exchanges in rounds, and time_model asynchronous has none; ...
time_model=asynchronous sharing=ad_psgd 'graph={name: peer_sampler, nodes: 4, degree: 2}'
    | graph | peer_sampler answers for rounds, and time_model asynchronous has none; use epidemic_local
sharing=ad_psgd | sharing | ad_psgd needs time_model: asynchronous; with rounds, ...
'time_model={name: asynchronous, schedule: replay}' sharing=swift
    | time_model.schedule_path | is the recorded run of schedule: replay; ...
time_model=asynchronous sharing=ad_psgd 'graph={name: exponential, nodes: 4}'
    | sharing | ad_psgd needs a graph that is undirected; this one is not
time_model=asynchronous sharing=async_fed_avg
    | sharing | async_fed_avg needs a graph with a server, such as federated; file has none
time_model=asynchronous 'sharing={name: async_fed_avg, quorum: 4}' 'graph={name: federated, nodes: 4}'
    | sharing.quorum | must be at most the 3 clients, not 4
time_model=asynchronous sharing=async_fed_avg 'graph={name: federated, nodes: 4, standby: 1}'
    | sharing | async_fed_avg has one server; leave graph.standby out
time_model=asynchronous 'sharing={name: async_fed_avg, delay: 2, outer: {name: Adam, lr: 0.1}}'
    + 'graph={name: federated, nodes: 4}'
    | sharing.delay | lets gradients act before their momentum, which is right for SGD, not Adam; ...
time_model=asynchronous sharing=async_fed_avg 'graph={name: federated, nodes: 4, clients: 2}'
    | graph | federated has rounds of rest, and time_model asynchronous has no rounds; let all clients take
    + part
'training.pace={step_seconds: 0.01, slowdown: {distribution: stragglers, share: 2}}'
    | training.pace.slowdown.share | must be a number > 0 and <= 1, not 2
'training.pace={step_seconds: 0.01, slowdown: {distribution: exponential, sigma: 1}}'
    | training.pace.slowdown.sigma | unknown option of exponential (known: drawn)
'communication={name: simulated, uplink: {distribution: lognormal, medain: 1}}'
    | communication.uplink.medain | unknown option of lognormal; did you mean 'median'?
'communication={name: simulated, latency: {edges: 5, others: {distribution: gauss}}, uplink: {mean: 1}}'
    | communication.latency.others.distribution | unknown distribution 'gauss' (known: exponential, ...
    | communication.latency.edges | must be text or a list of lists of exactly 3 (...), not 5
    | communication.uplink.mean | unknown key (known: distribution, table, regions, shares, within)
'training.pace={step_seconds: 0.01, slowdown: {distribution: lognormal, sigma: 9, drwn: rank}, devise: phone}'
    | training.pace.slowdown.drwn | unknown option of lognormal; did you mean 'drawn'?
    | training.pace.slowdown.sigma | must be a number > 0 and <= 3, not 9
    | training.pace.devise | unknown key; did you mean 'device'?
'communication={name: simulated, latency: {table: mlab, shares: [1, -2]}}'
    | communication.latency.shares[1] | must be a number > 0, not -2
'communication={name: simulated, latency: {table: azur}}'
    | communication.latency.table | must be 'azure' or 'mlab', not 'azur'; did you mean 'azure'?
'communication={name: simulated, uplink: {distribution: quantiles, levels: [0.9, 0.1], values: [1, 2]}}'
    | communication.uplink.levels | must increase: 0.9, 0.1
training.pace=instant 'communication={name: simulated, nodes_per_process: 2}'
    | communication.latency | is 0 between nodes of different processes (nodes_per_process), which must take
    + some time; write it like 20 ms
'communication={loss: 0.1, tcp: lv08, name: simulated, nodes_per_process: 2, latency: 1 ms}'
    + training.pace=instant
    | communication.nodes_per_process | a message takes its latency alone between processes; leave out loss,
    + tcp, or this
training.name=ddp sharing=none training.pace=instant
    + 'communication={name: simulated, nodes_per_process: 1, latency: 1 ms}'
    | communication | ddp needs a process for each node; use zeromq with nodes_per_process: 1
training.execution.workers=2 'faults=[{name: offline, ranks: 1, seconds: 1}]' training.pace=instant
    + failures.restart.attempts=1 'communication={name: simulated, nodes_per_process: 2, latency: 1 ms}'
    | communication.nodes_per_process | faults need all nodes of a simulation in one process; leave it out
    | communication.nodes_per_process | restarts (failures.restart) need all nodes of a simulation in one ...
    | training.execution.workers | nodes are in several processes already (communication.nodes_per_process)
sharing=ad_psgd 'communication={name: simulated, nodes_per_process: 2, latency: 1 ms}' time_model=asynchronous
    + training.pace=instant training.steps_per_round=1
    | communication.nodes_per_process | messages outside of rounds need all nodes of a simulation in one ...
'graph={name: peer_sampler, nodes: 4, degree: 2}' training.pace=instant
    + 'communication={name: simulated, nodes_per_process: 2, latency: 1 ms}'
    | communication.nodes_per_process | the service of peer_sampler needs all nodes of a simulation in one ...
training.pace=instant 'communication={name: simulated, downlink: {table: azure}}'
    | communication.downlink | azure has latencies alone; mlab has quantiles of rates
'training.pace={step_seconds: 0.01, slowdown: [1, 2, 3]}'
    | training.pace.slowdown | must have one number for each of the 4 ranks or ...
training.pace.step_seconds=-1 | training.pace.step_seconds | must be a number > 0 or text, not -1
training.pace.step_seconds='0 ms' | training.pace.step_seconds | must be > 0 and finite, not 0 ms
training.pace.step_seconds='5 mss'
    | training.pace.step_seconds | '5 mss' has an unknown unit; write it like 20 ms; units: ns, us, ms, s, ...
training.pace.step_seconds=-5ms
    | training.pace.step_seconds | '-5ms' is negative; write it like 20 ms
'training.pace={step_seconds: 1, trace_repeats: false}'
    | training.pace.trace_repeats | needs trace_path; leave it out
'training.pace={step_seconds: 1, trace_path: paces.csv, trace_repeats: false}' rounds=3
    | training.pace.trace_path | {here}/paces.csv:2: ends after 2 rounds, and the run has 3; add numbers, or
    + let it begin again (trace_repeats: true)
'training.pace={step_seconds: 1, device: phone}'
    | training.pace.device | needs device_classes, a CSV file with the header class,factor
'training.pace={step_seconds: 1, device_classes: devices.csv, device: phon}'
    | training.pace.device | no class 'phon' in {here}/devices.csv; did you mean 'phone'?
'training.pace={device: {phone: 0.5, tablet: 0.5}, step_seconds: 1, device_classes: devices.csv}'
    | training.pace.device | no class 'tablet' in {here}/devices.csv (known: phone, laptop)
'training.pace={device: {phone: 0.5}, step_seconds: 1, device_classes: devices.csv}'
    | training.pace.device | the shares add up to 0.5; they must be 1
'training.pace={step_seconds: 1, device_classes: devices.csv, device: [phone, laptop]}'
    | training.pace.device | must have one class for each of the 4 ranks or 1 machines, not 2
'training.pace={step_seconds: 1, device_classes: device.csv}'
    | training.pace.device_classes | no such file: {here}/device.csv; did you mean 'devices.csv'?
'training.execution={batches: auto}'
    | training.execution.batches | needs all nodes in one process, and zeromq has several; use inproc or
    + simulated
'training.execution={workers: auto}'
    | training.execution.workers | needs all nodes in one process, and zeromq has several; use inproc or
    + simulated
communication=inproc training.execution.batches=8 'training.optimizer={name: LBFGS}'
    | training.execution.batches | LBFGS does not change each number by its own gradient alone; leave it out,
    + or use SGD or Adam
communication=inproc training.execution.batches=8 training.amp=bfloat16
    | training.execution.batches | sums of 16 bits are not the same in batches of nodes; leave it out, or use
    + float32
communication=inproc training.execution.batches=8 training.compile=true
    | training.execution.batches | training.compile is for the steps of one node; leave one of both out
communication=inproc training.execution.batches=8
    + 'training.privacy={name: dp_sgd, noise: 1, clip: 1, delta: 0.001}'
    | training.execution.batches | private steps are computed sample by sample; leave it out
communication=simulated training.seconds_per_round=1 training.pace=instant
    | training.seconds_per_round | needs training.pace in virtual time: ...
communication=inproc training.execution.workers=2 sharing=quasi_global training.optimizer=SGD
    | training.execution.workers | quasi_global changes each gradient by what it has in the process of the
    + nodes; use alone or auto
communication=inproc training.execution.workers=2 device=cuda
    | training.execution.workers | workers compute on the CPU (device); use alone or auto
communication=inproc training.execution.workers=many
    | training.execution.workers | must be a whole number > 0 or 'auto', not 'many'
'communication={name: inproc, workers: 2}' | communication.workers | unknown option of inproc (known: overlap)
'communication={name: simulated, latency: {tabel: azure}, uplink: {tabl: mlab, shares: [1]},
    + downlink: {distribtion: lognormal, median: 1}, bandwidth: {edgs: []}}'
    | communication.latency.tabel | unknown key; did you mean 'table'?
    | communication.uplink.tabl | unknown key; did you mean 'table'?
    | communication.downlink.distribtion | unknown key; did you mean 'distribution'?
    | communication.bandwidth.edgs | unknown key; did you mean 'edges'?
'communication={name: simulated, latency: {edges: [[0, 1, {a: 1}]], others: {tabl: azure}},
    + bandwidth: {other: 5}}'
    | communication.latency.edges[0][2] | must be a number >= 0 or text, not a mapping
    | communication.latency.others.tabl | unknown key; did you mean 'table'?
    | communication.bandwidth.other | unknown key; did you mean 'others'?
'communication={name: simulated, latency: {table: azure, edges: []}, bandwidth: {}, uplink: {shares: [1]},
    + downlink: {distribution: lognormal, median: 1, table: mlab}}'
    | communication.latency.edges | does not go with table; leave one of them out
    | communication.uplink.table | missing; it must be 'azure' or 'mlab'
    | communication.downlink.table | unknown option of lognormal (known: median, sigma)
    | communication.bandwidth | must be a number >= 0 ... or a mapping with table or a mapping with edges or
    + null, not an empty mapping
'model.adapters={rnk: 4}' | model.adapters.rnk | unknown key; did you mean 'rank'?
'dataset.validation={sorce: train, size: 5}'
    | dataset.validation.sorce | unknown key; did you mean 'source'?
dataset.validation=0.1 | dataset.validation | must be a mapping with source and size, not 0.1
'dataset={name: table, path: ring.edges, label: y, columns: {a: {knd: number}, b: {kind: nmber}, c: 5}}'
    | dataset.columns.a.knd | unknown key; did you mean 'kind'?
    | dataset.columns.b.kind | must be 'number' or 'category' or 'ordered' or 'time' or 'skip' or null, ...
    | dataset.columns.c | must be 'number' or ... or a mapping with kind, values, max_categories, missing, ...
'training.privacy={name: dp_sgd, noise: 1, clip: 1, delta: 0.001, correlation: {nam: edges},
    + pipeline: {noise: 1, delta_shar: 0.1, bounds: {a: [1]}}}'
    | training.privacy.correlation.nam | unknown key; did you mean 'name'?
    | training.privacy.pipeline.delta_shar | unknown key; did you mean 'delta_share'?
    | training.privacy.pipeline.bounds.a | must be a list of exactly 2 (a number, a number), not a list of 1
'records={models: {evry: 1}, coordinates: {evry: 1}, writers: [{nam: csv}]}'
    | records.writers[0].nam | unknown key; did you mean 'name'?
    | records.models.evry | unknown key; did you mean 'every'?
    | records.coordinates.evry | unknown key; did you mean 'every'?
'failures.restart={attempt: 1}' 'time_model={nam: asynchronous}' 'evaluation.metrics=[{nam: f1}]'
    | time_model.nam | unknown key; did you mean 'name'?
    | evaluation.metrics[0].nam | unknown key; did you mean 'name'?
    | failures.restart.attempt | unknown key; did you mean 'attempts'?
'graph={name: churn, graph: {nam: ring}}' | graph.graph.nam | unknown key; did you mean 'name'?
'graph={nam: ring, nodes: 4}' 'dataset={nam: digits}' 'model={nam: mlp}' 'sharing={name: levels,
    + inner: {nam: gossip}, outer: {name: gossip, outer: {nam: SGD}}}'
    | graph.nam | unknown key; did you mean 'name'?
    | dataset.nam | unknown key; did you mean 'name'?
    | model.nam | unknown key; did you mean 'name'?
    | sharing.inner.nam | unknown key; did you mean 'name'?
    | sharing.outer.outer.nam | unknown key; did you mean 'name'?
'communication={nam: simulated}' 'task={nam: classification}' 'dataset.partition={nam: iid}'
    + 'sharing.weights={nam: uniform}' 'training.loss={nam: MSELoss}' 'sharing.transforms=[{nam: cast}]'
    | dataset.partition.nam | unknown option of iid; did you mean 'name'?
    | task.nam | unknown option of classification; did you mean 'name'?
    | training.loss.nam | unknown option of CrossEntropyLoss; did you mean 'name'?
    | sharing.weights.nam | unknown option of metropolis_hastings; did you mean 'name'?
    | sharing.transforms[0].nam | unknown key; did you mean 'name'?
    | communication.nam | unknown option of zeromq; did you mean 'name'?
'training.optimizer={nam: SGD}' 'training.scheduler={nam: StepLR}' 'training.augmentation=[{nam: flip}]'
    + 'faults=[{nam: crash}]' 'adversaries=[{nam: noise}]' 'dataset.skew=[{nam: rotate}]'
    | dataset.skew[0].nam | unknown key; did you mean 'name'?
    | training.optimizer.nam | unknown key; did you mean 'name'?
    | training.scheduler.nam | unknown key; did you mean 'name'?
    | training.augmentation[0].nam | unknown key; did you mean 'name'?
    | faults[0].nam | unknown key; did you mean 'name'?
    | adversaries[0].nam | unknown key; did you mean 'name'?
'after_round=[{nam: mine:f}, {}, f]'
    | after_round[0].nam | unknown key; did you mean 'name'?
    | after_round[1].name | missing; name one of: module:function
    | after_round[2] | unknown after_round 'f' (known: module:function)
"""
"""Words after the file BASE, and what follows `command line: `, or whole lines."""
